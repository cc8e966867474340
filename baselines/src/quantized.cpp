// Two-phase quantized mean. Formulas in the header.
//
// A block that is not finite is coded by a NaN scale and stays one in the sum, in the second coding and on every rank, so that all
// refuse the step by looking at the result; residuals are written after that.
#include "quantized.hpp"

#include <algorithm>
#include <cmath>

#include "exchange.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

// Blocks are dealt out evenly; the first ranks have one more when they do not divide. Coordinates of `rank`.
Range shard_of(std::int64_t size, int rank, int ranks, const QuantFormat& format) {
  const std::int64_t blocks = quant_blocks(size, format);
  const auto boundary = [&](int r) {
    return std::min(size, (blocks / ranks * r + std::min<std::int64_t>(r, blocks % ranks)) * format.block);
  };
  return {boundary(rank), boundary(rank + 1)};
}

}  // namespace

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
      format_{.bits = options.bits, .block = options.block, .stochastic = options.rounding == Rounding::stochastic},
      rank_(context.rank),
      ranks_(context.ranks),
      seed_(context.seed),
      size_(context.layout.size()),
      shard_(shard_of(size_, rank_, ranks_, format_)),
      update_(update_kernels(context.device)),
      quant_(quant_kernels(context.device)),
      squares_(1, context.device) {
  if (options_.bits == 32) return;
  for (int r = 0; r < ranks_; ++r) shard_bytes_.push_back(quant_bytes(shard_of(size_, r, ranks_, format_).size(), format_));
  receive_bytes_.assign(static_cast<std::size_t>(ranks_), quant_bytes(shard_.size(), format_));
  records_ = Buffer<std::uint8_t>(quant_bytes(size_, format_), context.device);
  received_ = Buffer<std::uint8_t>(ranks_ * receive_bytes_[0], context.device);
  mean_ = Buffer<float>(shard_.size(), context.device);
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
  const std::int64_t my_bytes = quant_bytes(shard_.size(), format_);
  const std::int64_t my_begin = quant_bytes(shard_.begin, format_);  // shards begin at whole blocks
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    if (options_.error_feedback) update_.add(grads, residual_, 1, stream);
    quant_.quantize(grads, format_, random(context.step, 0, 0), records_, next_residual_, stream);
  }
  exchange(context, [&](const Stream& comm_stream) {
    context.comm.all_to_all_v(records_.span(), shard_bytes_, received_.span(), receive_bytes_, comm_stream);
  });
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    zero(mean_.span(), stream);
    for (int r = 0; r < ranks_; ++r)
      quant_.dequantize_add(received_.span().subspan(r * my_bytes, my_bytes), format_, mean_, stream);
    update_.divide(mean_, static_cast<float>(ranks_), stream);
    if (options_.error_feedback) update_.add(mean_, shard_residual_, 1, stream);
    quant_.quantize(mean_, format_, random(context.step, 1, shard_.begin), records_.span().subspan(my_begin, my_bytes),
                    next_shard_residual_, stream);
  }
  exchange(context, [&](const Stream& comm_stream) {
    context.comm.all_gather_v(records_.span().subspan(my_begin, my_bytes), records_.span(), shard_bytes_, comm_stream);
  });
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
  quant_.dequantize(records_, format_, grads, stream);
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
  const auto bytes = static_cast<double>(quant_bytes(size_, format_));
  return wire_bytes(Collective::all_to_all, bytes, ranks_) + wire_bytes(Collective::all_gather, bytes, ranks_);
}

double Quantized::residual_norm() const {
  if (options_.bits == 32 || !options_.error_feedback) return not_available;
  update_.sum_of_squares(residual_, squares_, stream_);
  return std::sqrt(read(squares_.span(), stream_));
}

}  // namespace scape
