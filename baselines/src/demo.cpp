// DeMo. Formulas in the header.
#include "demo.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "exchange.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

constexpr int max_chunk = 256;  // a frequency fits a byte

// The matrix of the transform, then its transpose: both directions then add whole rows, which vectorises.
std::vector<float> dct(std::int64_t n) {
  std::vector<float> both(static_cast<std::size_t>(2 * n * n));
  for (std::int64_t f = 0; f < n; ++f) {
    const double scale = std::sqrt((f == 0 ? 1.0 : 2.0) / static_cast<double>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const double angle = std::numbers::pi * static_cast<double>((2 * i + 1) * f) / static_cast<double>(2 * n);
      const auto value = static_cast<float>(scale * std::cos(angle));
      both[static_cast<std::size_t>(f * n + i)] = value;
      both[static_cast<std::size_t>(n * n + i * n + f)] = value;
    }
  }
  return both;
}

float sign(float x) {
  return x > 0 ? 1.0F : x < 0 ? -1.0F : 0.0F;
}

}  // namespace

void Demo::Options::declare(OptionTable& table) {
  table.add("demo_chunk", chunk, "neighbours in the last dimension that are transformed together",
            {{"16", 16}, {"32", 32}, {"64", 64}, {"128", 128}, {"256", 256}});
  table.add("demo_topk", topk, "coefficients sent of each chunk", {.min = 1});
  table.add("demo_decay", decay, "decay of the momentum", {.min = 0, .below = 1});
}

Demo::Demo(const Options& options, const CommonOptions& common, const MethodContext& context)
    : options_(options),
      common_(common),
      size_(context.layout.size()),
      rank_(context.rank),
      ranks_(context.ranks),
      update_(update_kernels(context.device)),
      momentum_(size_),
      squares_(ranks_) {
  require(context.device.kind == DeviceKind::cpu, ErrorKind::usage, "optimizer 'demo' has kernels for the CPU only");
  for (const ParameterTensor& tensor : context.layout.tensors()) {
    const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    for (std::int64_t begin = tensor.range.begin; begin < tensor.range.end; begin += row) {
      for (std::int64_t first = begin; first < begin + row; first += options_.chunk) {
        const Range range{first, std::min<std::int64_t>(first + options_.chunk, begin + row)};
        const auto [transform, added] = transforms_.try_emplace(range.size());
        if (added) transform->second = dct(range.size());
        const std::int64_t count = std::min(options_.topk, range.size());
        chunks_.push_back({range, transform->second.data(), coefficients_, count, tensor.role == TensorRole::matrix ? 1.0F : 0.0F});
        coefficients_ += count;
      }
    }
  }
  messages_ = Buffer<std::uint8_t>(ranks_ * message_bytes());
}

Span<float> Demo::values_of(int rank) const {
  return {reinterpret_cast<float*>(messages_.data() + rank * message_bytes()), coefficients_, cpu_device};
}
std::uint8_t* Demo::frequencies_of(int rank) const {
  return messages_.data() + rank * message_bytes() + 4 * coefficients_;
}

// q of every chunk, in order of magnitude; of equal magnitudes the lower frequency.
void Demo::extract(const float* momentum) {
  std::array<float, max_chunk> y{};
  std::array<std::uint8_t, max_chunk> order{};
  float* values = values_of(rank_).data();
  std::uint8_t* frequencies = frequencies_of(rank_);
  for (const Chunk& chunk : chunks_) {
    const std::int64_t n = chunk.range.size();
    std::fill_n(y.begin(), n, 0.0F);
    for (std::int64_t i = 0; i < n; ++i) {
      const float* at_i = chunk.transform + n * n + i * n;
      const float value = momentum[chunk.range.begin + i];
      for (std::int64_t f = 0; f < n; ++f) y[static_cast<std::size_t>(f)] += value * at_i[f];
    }
    std::iota(order.begin(), order.begin() + n, std::uint8_t{0});
    const auto magnitude = [&](std::uint8_t f) { return std::bit_cast<std::uint32_t>(y[f]) & 0x7fffffffU; };
    std::partial_sort(order.begin(), order.begin() + chunk.count, order.begin() + n, [&](std::uint8_t a, std::uint8_t b) {
      return magnitude(a) != magnitude(b) ? magnitude(a) > magnitude(b) : a < b;
    });
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      const std::uint8_t f = order[static_cast<std::size_t>(i)];
      frequencies[chunk.first + i] = f;
      values[chunk.first + i] = y[f];
    }
  }
}

// x [chunk] += factor · Tᵀ q of a rank.
void Demo::add_decoded(const Chunk& chunk, int rank, float factor, float* x) const {
  const std::int64_t n = chunk.range.size();
  for (std::int64_t i = 0; i < chunk.count; ++i) {
    const float* basis = chunk.transform + frequencies_of(rank)[chunk.first + i] * n;
    const float value = factor * values_of(rank).data()[chunk.first + i];
    for (std::int64_t j = 0; j < n; ++j) x[j] += value * basis[j];
  }
}

// The new momentum, from what the gradients hold, and θ. The sign of the sum is that of the mean.
void Demo::update(const StepContext& context) {
  const auto rate = static_cast<float>(context.learning_rate);
  const auto decay = static_cast<float>(common_.weight_decay);
  std::copy_n(context.grads.data(), size_, momentum_.data());
  std::array<float, max_chunk> sum;
  for (const Chunk& chunk : chunks_) {
    add_decoded(chunk, rank_, -1, momentum_.data() + chunk.range.begin);
    sum.fill(0);
    for (int r = 0; r < ranks_; ++r) add_decoded(chunk, r, 1, sum.data());
    float* theta = context.params.data() + chunk.range.begin;
    const float keep = 1 - rate * decay * chunk.decays;
    for (std::int64_t j = 0; j < chunk.range.size(); ++j)
      theta[j] = keep * theta[j] - rate * sign(sum[static_cast<std::size_t>(j)]);
  }
}

StepResult Demo::step(const StepContext& context) {
  StepResult result;
  const Stream& stream = context.stream;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    update_.sum_of_squares(context.grads, squares_.span().subspan(0, 1), stream);
    result.gradient_norm = std::sqrt(read(squares_.span().subspan(0, 1), stream));
    const auto clip = static_cast<float>(clip_coefficient(result.gradient_norm, common_.clip_norm));
    stream.enqueue([this, m = context.grads.data(), clip, decay = static_cast<float>(options_.decay)] {
      for (std::int64_t j = 0; j < size_; ++j) m[j] = decay * momentum_.data()[j] + clip * m[j];
      extract(m);
    });
  }
  exchange(context, [&](const Stream& comm_stream) {
    context.comm.all_gather(messages_.span().subspan(rank_ * message_bytes(), message_bytes()), messages_.span(), comm_stream);
  });

  const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
  for (int r = 0; r < ranks_; ++r) update_.sum_of_squares(values_of(r), squares_.span().subspan(r, 1), stream);
  double total = 0;
  for (const double squares : read_back(squares_, stream)) total += squares;
  constexpr double largest = std::numeric_limits<float>::max();
  result.applied = total < largest * largest / (2.0 * max_chunk * ranks_);  // then no sum of coefficients overflows
  if (!result.applied) return result;
  stream.enqueue([this, &context] { update(context); });
  update_.sum_of_squares(momentum_, squares_.span().subspan(0, 1), stream);
  result.residual_norm = std::sqrt(read(squares_.span().subspan(0, 1), stream));  // waits: the context is no longer needed
  result.density = static_cast<double>(coefficients_) / static_cast<double>(size_);
  return result;
}

std::vector<StateEntry> Demo::state() {
  return {state_entry("demo/momentum", StateScope::per_rank, momentum_.span())};
}

double Demo::expected_wire_bytes(std::int64_t) const {
  return wire_bytes(Collective::all_gather, static_cast<double>(ranks_ * message_bytes()), ranks_);
}

}  // namespace scape
