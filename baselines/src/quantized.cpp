// Two-phase quantized mean. Formulas in the header.
//
// A block that is not finite is coded by a NaN scale and stays one in the sum, in the second coding and on every rank, so that all
// refuse the step by looking at the result; residuals are written after that.
#include "quantized.hpp"

#include <cmath>

#include "exchange.hpp"

namespace scape {

void Quantized::Options::declare(OptionTable& table) {
  table.add("quant_bits", bits, "bits of an integer; 32 = dense fp32", {{"32", 32}, {"8", 8}, {"4", 4}});
  table.add("quant_block", block, "elements that share a scale",
            {{"32", 32}, {"64", 64}, {"128", 128}, {"256", 256}, {"512", 512}, {"1024", 1024}, {"2048", 2048}});
  table.add("quant_rounding", rounding, "rounding to integers",
            {{"nearest", Rounding::nearest}, {"stochastic", Rounding::stochastic}});
  table.add("error_feedback", error_feedback, "add what rounding lost to the next step, on both ends of the exchange");
}

Quantized::Quantized(const Options& options, const CommonOptions&, const MethodContext& context)
    : options_(options),
      rank_(context.rank),
      ranks_(context.ranks),
      seed_(context.seed),
      size_(context.layout.size()),
      update_(update_kernels(context.device)),
      squares_(1, context.device) {
  if (options_.bits == 32) return;
  const QuantFormat format{.bits = options.bits, .block = options.block, .stochastic = options.rounding == Rounding::stochastic};
  mean_.emplace(format, size_, rank_, ranks_, context.device);
  shard_ = mean_->shard(size_);
  if (!options_.error_feedback) return;
  residual_ = Buffer<float>(size_, context.device);
  next_residual_ = Buffer<float>(size_, context.device);
  shard_residual_ = Buffer<float>(shard_.size(), context.device);
  next_shard_residual_ = Buffer<float>(shard_.size(), context.device);
}

// Numbers that no other rank, step or phase uses. `first` is the coordinate of the first element, a multiple of 4.
RandomWords Quantized::random(std::int64_t step, std::uint64_t phase, std::int64_t first) const {
  const auto counter = static_cast<std::uint64_t>(step) << 32 | static_cast<std::uint64_t>(first / 4);
  return {seed_, static_cast<std::uint64_t>(rank_) * 2 + phase, counter};
}

bool Quantized::finite(Span<const float> values, const StepContext& context) {
  update_.sum_of_squares(values, squares_, context.stream);
  return std::isfinite(read(squares_.span(), context.stream));
}

bool Quantized::reduce(const StepContext& context) {
  if (options_.bits == 32) return reduce_dense(context);
  const Stream& stream = context.stream;
  stream_ = stream;
  const Span<float> grads = context.grads;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    if (options_.error_feedback) update_.add(grads, residual_, 1, stream);
    mean_->code(grads, random(context.step, 0, 0), next_residual_, stream);
  }
  exchange(context, [&](const Stream& comm_stream) { mean_->scatter(context.comm, comm_stream); });
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    mean_->reduce(shard_residual_, random(context.step, 1, shard_.begin), next_shard_residual_, stream);
  }
  exchange(context, [&](const Stream& comm_stream) { mean_->gather(context.comm, comm_stream); });
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
  mean_->decode(grads, stream);
  if (!finite(grads, context)) return false;
  if (options_.error_feedback) {
    copy(residual_.span(), next_residual_, stream);
    copy(shard_residual_.span(), next_shard_residual_, stream);
  }
  return true;
}

bool Quantized::reduce_dense(const StepContext& context) {
  exchange(context, [&](const Stream& comm_stream) { context.comm.all_reduce(context.grads, ReduceOp::sum, comm_stream); });
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  update_.divide(context.grads, static_cast<float>(ranks_), context.stream);
  return finite(context.grads, context);
}

std::vector<StateEntry> Quantized::state() {
  if (options_.bits == 32 || !options_.error_feedback) return {};
  return {state_entry("quantized/residual", StateScope::per_rank, residual_.span()),
          state_entry("quantized/shard_residual", StateScope::shard, shard_residual_.span())};
}

double Quantized::expected_wire_bytes(std::int64_t) const {
  if (options_.bits == 32) return wire_bytes(Collective::all_reduce, 4.0 * static_cast<double>(size_), ranks_);
  return mean_->expected_wire_bytes(size_);
}

double Quantized::residual_norm() const {
  if (options_.bits == 32 || !options_.error_feedback) return not_available;
  update_.sum_of_squares(residual_, squares_, stream_);
  return std::sqrt(read(squares_.span(), stream_));
}

}  // namespace scape
