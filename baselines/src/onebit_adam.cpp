// 1-bit Adam. Formulas in the header.
//
// State is written only when every rank has seen a finite mean: a piece that is not finite is coded by a NaN scale, which passes
// through both phases to all ranks.
#include "onebit_adam.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "exchange.hpp"
#include "scape/error.hpp"
#include "scape/scape.hpp"

namespace scape {

namespace {

constexpr std::int64_t scale_bytes = sizeof(float);

std::int64_t record_size(std::int64_t n) {
  return n == 0 ? 0 : scale_bytes + (n + 7) / 8;
}

float inverse_correction(double beta, std::int64_t t) {
  return static_cast<float>(1 / (1 - std::pow(beta, static_cast<double>(t))));
}

}  // namespace

void OneBitAdam::Options::declare(OptionTable& table) {
  table.add("onebit_warmup_fraction", warmup_fraction, "length of the dense warm-up as a fraction of the run",
            {.min = 0, .max = 1});
}

OneBitAdam::OneBitAdam(const Options& options, const CommonOptions& common, const MethodContext& context)
    : common_(common),
      layout_(context.layout),
      ranks_(context.ranks),
      warmup_steps_(std::max<std::int64_t>(1, std::llround(options.warmup_fraction * static_cast<double>(context.total_steps)))),
      update_(update_kernels(context.device)),
      m_(layout_.size()),
      v_(layout_.size()),
      error_(layout_.size()),
      next_m_(layout_.size()),
      accepted_(1),
      squares_(1) {
  require(context.device.kind == DeviceKind::cpu, ErrorKind::usage, "optimizer 'onebit_adam' has kernels for the CPU only");
  std::int64_t total = 0;
  for (int r = 0; r < ranks_; ++r) {
    Shard shard{owned_range(layout_.size(), r, ranks_), {}, total, 0};
    for (const ParameterTensor& tensor : layout_.tensors()) {
      const Range part = intersect(tensor.range, shard.range);
      if (part.empty()) continue;
      shard.pieces.push_back({part, shard.bytes});
      shard.bytes += record_size(part.size());
    }
    total += shard.bytes;
    bytes_.push_back(shard.bytes);
    shards_.push_back(std::move(shard));
  }
  mine_ = shards_[static_cast<std::size_t>(context.rank)];
  shard_error_ = Buffer<float>(mine_.range.size());
  mean_ = Buffer<float>(mine_.range.size());
  records_ = Buffer<std::uint8_t>(total);
  received_ = Buffer<std::uint8_t>(ranks_ * mine_.bytes);
}

StepResult OneBitAdam::step(const StepContext& context) {
  const StepResult result = accepted_.host()[0] < warmup_steps_ ? dense_step(context) : compressed_step(context);
  if (result.applied) ++accepted_.host()[0];
  return result;
}

StepResult OneBitAdam::dense_step(const StepContext& context) {
  StepResult result;
  exchange(context, [&](const Stream& comm_stream) { context.comm.all_reduce(context.grads, ReduceOp::sum, comm_stream); });
  const Telemetry::Scope scope = context.telemetry.scope(Phase::update, context.stream);
  update_.divide(context.grads, static_cast<float>(ranks_), context.stream);
  update_.sum_of_squares(context.grads, squares_, context.stream);
  const double norm = std::sqrt(read(squares_.span(), context.stream));
  result.applied = std::isfinite(norm);
  if (!result.applied) return result;

  AdamStep step;
  step.beta1 = static_cast<float>(common_.beta1);
  step.beta2 = static_cast<float>(common_.beta2);
  step.epsilon = static_cast<float>(common_.epsilon);
  step.learning_rate = static_cast<float>(context.learning_rate);
  step.gradient_scale = static_cast<float>(clip_coefficient(norm, common_.clip_norm));
  step.m_scale = inverse_correction(common_.beta1, accepted_.host()[0] + 1);
  step.v_scale = inverse_correction(common_.beta2, accepted_.host()[0] + 1);
  for (const ParameterLayout::Run& run : layout_.runs()) {
    const auto part = [&](Span<float> all) { return all.subspan(run.range.begin, run.range.size()); };
    step.weight_decay = weight_decay_of(run.role, common_);
    update_.adamw(part(context.params), part(m_), part(v_), part(context.grads), step, context.stream);
  }
  result.gradient_norm = norm;
  result.density = 1;
  result.residual_norm = 0;
  return result;
}

// records ← C(values) of a shard; values ← what C lost. A value that is not finite makes the scale of its piece NaN.
void OneBitAdam::encode(const Shard& shard, float* values, std::uint8_t* records) const {
  for (const Piece& piece : shard.pieces) {
    std::uint8_t* record = records + piece.record;
    const float* v = v_.data() + piece.range.begin;
    float* x = values + (piece.range.begin - shard.range.begin);
    const std::int64_t n = piece.range.size();
    double squares = 0;
    bool finite = true;
    std::int64_t active = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const bool sent = v[i] != 0;
      finite &= std::isfinite(x[i]);
      squares += sent ? static_cast<double>(x[i]) * x[i] : 0.0;
      active += sent ? 1 : 0;
    }
    const float scale = !finite       ? std::numeric_limits<float>::quiet_NaN()
                        : active == 0 ? 0.0F
                                      : static_cast<float>(std::sqrt(squares / static_cast<double>(active)));
    std::memcpy(record, &scale, sizeof(scale));
    std::fill_n(record + scale_bytes, record_size(n) - scale_bytes, std::uint8_t{0});
    // Without branches on signs, which no processor predicts.
    for (std::int64_t i = 0; i < n; ++i) record[scale_bytes + i / 8] |= static_cast<std::uint8_t>((x[i] >= 0 ? 1U : 0U) << (i % 8));
    for (std::int64_t i = 0; i < n; ++i) {
      const float lost = x[i] - (x[i] >= 0 ? scale : -scale);
      x[i] = v[i] == 0 ? 0 : lost;
    }
  }
}

// values += C of a shard. values[0] is the shard's first.
void OneBitAdam::add_decoded(const Shard& shard, const std::uint8_t* records, float* values) const {
  for (const Piece& piece : shard.pieces) {
    const std::uint8_t* record = records + piece.record;
    const float* v = v_.data() + piece.range.begin;
    float* x = values + (piece.range.begin - shard.range.begin);
    float scale = 0;
    std::memcpy(&scale, record, sizeof(scale));
    for (std::int64_t i = 0; i < piece.range.size(); ++i) {
      const int bit = record[scale_bytes + i / 8] >> (i % 8) & 1;
      x[i] += static_cast<float>(v[i] == 0 ? 0 : 2 * bit - 1) * scale;
    }
  }
}

void OneBitAdam::mean_of_shard() {
  std::fill_n(mean_.data(), mean_.size(), 0.0F);
  for (int r = 0; r < ranks_; ++r) add_decoded(mine_, received_.data() + r * mine_.bytes, mean_.data());
  for (std::int64_t i = 0; i < mean_.size(); ++i)
    mean_.data()[i] = mean_.data()[i] / static_cast<float>(ranks_) + shard_error_.data()[i];
}

// m, θ and the errors, from next_m_, mean_ and what the gradients hold.
void OneBitAdam::update(const StepContext& context) {
  const auto rate = static_cast<float>(context.learning_rate);
  const auto epsilon = static_cast<float>(common_.epsilon);
  const float m_scale = inverse_correction(common_.beta1, accepted_.host()[0] + 1);
  const float v_scale = inverse_correction(common_.beta2, warmup_steps_);
  std::copy_n(next_m_.data(), m_.size(), m_.data());
  std::copy_n(context.grads.data(), error_.size(), error_.data());
  std::copy_n(mean_.data(), mean_.size(), shard_error_.data());
  for (const ParameterLayout::Run& run : layout_.runs()) {
    const float keep = 1 - rate * weight_decay_of(run.role, common_);
    float* theta = context.params.data();
    for (std::int64_t j = run.range.begin; j < run.range.end; ++j) {
      theta[j] = keep * theta[j] - rate * (m_scale * m_.data()[j] / (std::sqrt(v_scale * v_.data()[j]) + epsilon));
    }
  }
}

StepResult OneBitAdam::compressed_step(const StepContext& context) {
  StepResult result;
  const Stream& stream = context.stream;
  const Span<std::uint8_t> my_records = records_.span().subspan(mine_.first_record, mine_.bytes);
  double norm = 0;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    update_.sum_of_squares(context.grads, squares_, stream);
    norm = std::sqrt(read(squares_.span(), stream));
    const auto beta1 = static_cast<float>(common_.beta1);
    const auto clip = static_cast<float>(clip_coefficient(norm, common_.clip_norm));
    stream.enqueue([this, c = context.grads.data(), beta1, clip] {
      for (std::int64_t j = 0; j < m_.size(); ++j) c[j] = beta1 * m_.data()[j] + (1 - beta1) * (clip * c[j]) + error_.data()[j];
      for (const Shard& shard : shards_) encode(shard, c + shard.range.begin, records_.data() + shard.first_record);
    });
  }
  const std::vector<std::int64_t> receive_bytes(static_cast<std::size_t>(ranks_), mine_.bytes);
  exchange(context, [&](const Stream& comm_stream) {
    context.comm.all_to_all_v(records_.span(), bytes_, received_.span(), receive_bytes, comm_stream);
  });
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    stream.enqueue([this, my_records] {
      mean_of_shard();
      encode(mine_, mean_.data(), my_records.data());
    });
  }
  exchange(context,
           [&](const Stream& comm_stream) { context.comm.all_gather_v(my_records, records_.span(), bytes_, comm_stream); });

  const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
  stream.enqueue([this] {
    std::fill_n(next_m_.data(), next_m_.size(), 0.0F);
    for (const Shard& shard : shards_) add_decoded(shard, records_.data() + shard.first_record, next_m_.data() + shard.range.begin);
  });
  update_.sum_of_squares(next_m_, squares_, stream);
  result.applied = std::isfinite(read(squares_.span(), stream));
  if (!result.applied) return result;
  stream.enqueue([this, &context] { update(context); });
  update_.sum_of_squares(error_, squares_, stream);
  result.residual_norm = std::sqrt(read(squares_.span(), stream));  // waits: the context is no longer needed
  result.gradient_norm = norm;
  result.density = 1;
  return result;
}

std::vector<StateEntry> OneBitAdam::state() {
  return {state_entry("onebit_adam/m", StateScope::replicated, m_.span()),
          state_entry("onebit_adam/v", StateScope::replicated, v_.span()),
          state_entry("onebit_adam/residual", StateScope::per_rank, error_.span()),
          state_entry("onebit_adam/shard_residual", StateScope::shard, shard_error_.span()),
          state_entry("onebit_adam/steps", StateScope::replicated, accepted_.span())};
}

double OneBitAdam::expected_wire_bytes(std::int64_t step) const {
  if (step <= warmup_steps_) return wire_bytes(Collective::all_reduce, 4.0 * static_cast<double>(layout_.size()), ranks_);
  const auto bytes = static_cast<double>(records_.size());
  return wire_bytes(Collective::all_to_all, bytes, ranks_) + wire_bytes(Collective::all_gather, bytes, ranks_);
}

}  // namespace scape
