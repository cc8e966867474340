// PowerSGD. Formulas in the header.
#include "powersgd.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "exchange.hpp"
#include "scape/error.hpp"
#include "scape/rng.hpp"

namespace scape {

namespace {

// Σ x y in sixteen interleaved partial sums, so that the loop vectorises.
float dot(const float* x, const float* y, std::int64_t n) {
  constexpr std::int64_t lanes = 16;
  std::array<float, lanes> sums{};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) sums[static_cast<std::size_t>(lane)] += x[i + lane] * y[i + lane];
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}

double exact_dot(const float* x, const float* y, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * y[i];
  return sum;
}

void add_scaled(float* y, const float* x, float factor, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

}  // namespace

void PowerSgd::Options::declare(OptionTable& table) {
  table.add("powersgd_rank", rank, "rank r of the factors", {.min = 1});
  table.add("powersgd_warm_start", warm_start, "start from the last step's Q instead of a random one");
  table.add("error_feedback", error_feedback, "keep what was not sent and add it to the next gradient");
}

PowerSgd::PowerSgd(const Options& options, const CommonOptions&, const MethodContext& context)
    : options_(options),
      ranks_(context.ranks),
      seed_(context.seed),
      size_(context.layout.size()),
      update_(update_kernels(context.device)),
      squares_(1, context.device) {
  require(context.device.kind == DeviceKind::cpu, ErrorKind::usage, "sync 'powersgd' has kernels for the CPU only");
  std::int64_t p = 0;
  std::int64_t q = 0;
  for (const ParameterTensor& tensor : context.layout.tensors()) {
    const std::int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const std::int64_t columns = tensor.range.size() / rows;
    const std::int64_t rank = std::min({options_.rank, rows, columns});
    if (tensor.role == TensorRole::vector || rank * (rows + columns) >= rows * columns) {
      dense_.push_back(tensor.range);
      continue;
    }
    factors_.push_back({tensor.range, rows, columns, rank, p, q});
    p += rank * rows;
    q += rank * columns;
  }
  for (const Range range : dense_) p += range.size();
  payload_ = Buffer<float>(p);
  q_ = Buffer<float>(q);
  next_q_ = Buffer<float>(q);
  if (options_.error_feedback) residual_ = Buffer<float>(size_);
  draw_q(0);
}

// The same on every rank.
void PowerSgd::draw_q(std::int64_t step) {
  Rng rng(seed_, static_cast<std::uint64_t>(step));
  for (float& value : q_.host()) value = rng.normal();
}

void PowerSgd::project(const float* a) {
  float* dense = payload_.data() + payload_.size();
  for (auto range = dense_.rbegin(); range != dense_.rend(); ++range) {
    dense -= range->size();
    std::copy_n(a + range->begin, range->size(), dense);
  }
  for (const Factors& f : factors_) {
    for (std::int64_t row = 0; row < f.rows; ++row) {
      const float* a_row = a + f.range.begin + row * f.columns;
      for (std::int64_t k = 0; k < f.rank; ++k)
        payload_.data()[f.p + k * f.rows + row] = dot(a_row, q_.data() + f.q + k * f.columns, f.columns);
    }
  }
}

// A column that depends on those before it, to rounding, becomes zero.
void PowerSgd::orthonormalise() {
  for (const Factors& f : factors_) {
    for (std::int64_t k = 0; k < f.rank; ++k) {
      float* column = payload_.data() + f.p + k * f.rows;
      const double before = std::sqrt(exact_dot(column, column, f.rows));
      for (int pass = 0; pass < 2; ++pass) {
        for (std::int64_t j = 0; j < k; ++j) {
          const float* earlier = payload_.data() + f.p + j * f.rows;
          add_scaled(column, earlier, static_cast<float>(-exact_dot(earlier, column, f.rows)), f.rows);
        }
      }
      const double norm = std::sqrt(exact_dot(column, column, f.rows));
      const bool independent = norm > 1e-6 * before;
      for (std::int64_t i = 0; i < f.rows; ++i) column[i] = independent ? static_cast<float>(column[i] / norm) : 0.0F;
    }
  }
}

void PowerSgd::project_back(const float* a) {
  std::fill_n(next_q_.data(), next_q_.size(), 0.0F);
  for (const Factors& f : factors_) {
    for (std::int64_t row = 0; row < f.rows; ++row) {
      const float* a_row = a + f.range.begin + row * f.columns;
      for (std::int64_t k = 0; k < f.rank; ++k) {
        add_scaled(next_q_.data() + f.q + k * f.columns, a_row, payload_.data()[f.p + k * f.rows + row], f.columns);
      }
    }
  }
}

void PowerSgd::reconstruct(float* a) {
  if (options_.error_feedback) std::copy_n(a, size_, residual_.data());
  std::fill_n(a, size_, 0.0F);
  for (const Factors& f : factors_) {
    for (std::int64_t row = 0; row < f.rows; ++row) {
      float* a_row = a + f.range.begin + row * f.columns;
      for (std::int64_t k = 0; k < f.rank; ++k) {
        add_scaled(a_row, next_q_.data() + f.q + k * f.columns, payload_.data()[f.p + k * f.rows + row], f.columns);
      }
    }
    // A direction that vanished gave a zero column: the old one serves the next step better, for zero would stay zero.
    for (std::int64_t k = 0; k < f.rank; ++k) {
      const float* column = next_q_.data() + f.q + k * f.columns;
      if (exact_dot(column, column, f.columns) > 0) std::copy_n(column, f.columns, q_.data() + f.q + k * f.columns);
    }
  }
  if (options_.error_feedback) add_scaled(residual_.data(), a, -1, size_);
  const float* dense = payload_.data() + payload_.size();
  for (auto range = dense_.rbegin(); range != dense_.rend(); ++range) {
    dense -= range->size();
    std::copy_n(dense, range->size(), a + range->begin);
    if (options_.error_feedback) std::fill_n(residual_.data() + range->begin, range->size(), 0.0F);
  }
}

// data ← its mean over the ranks; false, on all ranks, when that is not finite.
bool PowerSgd::mean(Span<float> data, const StepContext& context) {
  if (data.empty()) return true;
  exchange(context, [&](const Stream& comm_stream) { context.comm.all_reduce(data, ReduceOp::sum, comm_stream); });
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  update_.divide(data, static_cast<float>(ranks_), context.stream);
  update_.sum_of_squares(data, squares_, context.stream);
  return std::isfinite(read(squares_.span(), context.stream));
}

bool PowerSgd::reduce(const StepContext& context) {
  stream_ = context.stream;
  float* a = context.grads.data();
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream_);
    if (options_.error_feedback) update_.add(context.grads, residual_, 1, stream_);
    stream_.enqueue([this, a, step = context.step] {
      if (!options_.warm_start) draw_q(step);
      project(a);
    });
  }
  if (!mean(payload_, context)) return false;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream_);
    stream_.enqueue([this, a] {
      orthonormalise();
      project_back(a);
    });
  }
  if (!mean(next_q_, context)) return false;
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream_);
  stream_.enqueue([this, a] { reconstruct(a); });
  return true;
}

std::vector<StateEntry> PowerSgd::state() {
  std::vector<StateEntry> entries{state_entry("powersgd/q", StateScope::replicated, q_.span())};
  if (options_.error_feedback) entries.push_back(state_entry("powersgd/residual", StateScope::per_rank, residual_.span()));
  return entries;
}

double PowerSgd::expected_wire_bytes(std::int64_t) const {
  return wire_bytes(Collective::all_reduce, 4.0 * static_cast<double>(payload_.size() + q_.size()), ranks_);
}

double PowerSgd::density() const {
  return static_cast<double>(payload_.size() + q_.size()) / static_cast<double>(size_);
}

double PowerSgd::residual_norm() const {
  if (!options_.error_feedback) return not_available;
  update_.sum_of_squares(residual_, squares_, stream_);
  return std::sqrt(read(squares_.span(), stream_));
}

}  // namespace scape
