// One step of SCAPE in sharded form.
#include "methods/sharded.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "methods/exchange.hpp"

namespace scape {

ShardedScape::ShardedScape(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context)
    : options_(options),
      common_(common),
      layout_(context.layout),
      rank_(context.rank),
      ranks_(context.ranks),
      shard_(owned_range(context.layout.size(), context.rank, context.ranks)),
      masks_(options, common, context),
      extensions_(options, common, context, shard_),
      e_(context.layout.size(), context.device, options.offload != Offload::none),
      staging_(context.device, options.offload_piece, options.offload == Offload::none ? 0 : 1),
      m_(shard_.size(), context.device),
      q_(shard_.size(), context.device),
      packed_(context.layout.size(), context.device),
      received_(shard_.size(), context.device),
      score_(shard_.size(), context.device),
      offsets_(mask_blocks(shard_.size()), context.device),
      sums_(4 + extensions_.blocks(), context.device),
      means_(extensions_.blocks(), context.device) {
  if (options.payload == PayloadType::fp32) return;
  coded_.emplace(format_of(options.payload), context.layout.size(), shard_.size(), rank_, ranks_, context.device);
  lost_ = Buffer<float>(context.layout.size(), context.device);
}

// The part of a mask that lies in this rank's shard, `count` coordinates.
MaskView ShardedScape::in_shard(const MaskView& mask, std::int64_t count, const Stream& stream) {
  const auto words = mask.words.subspan(shard_.begin / MaskView::word_bits, mask_words(shard_.size()));
  sparse_kernels(m_.device()).index_mask(words, offsets_, stream);
  return {words, offsets_, shard_.size(), count};
}

// What the shard's coordinates are chosen by; context.grads are p.
void ShardedScape::score(const StepContext& context) {
  const Stream& stream = context.stream;
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
  copy(score_.span(), context.grads.subspan(shard_.begin, shard_.size()), stream);
  update_kernels(m_.device()).add(score_, m_, static_cast<float>(common_.beta1), stream);
  update_kernels(m_.device()).add(score_, q_, 1, stream);
}

// θ, m and q of the shard; values [mask.count] ← the new θ on the mask. They may lie where the gradient does.
void ShardedScape::update_shard(const StepContext& context, const AdamStep& step, Span<const float> gradient, const MaskView& mask,
                                Span<float> values) {
  const Stream& stream = context.stream;
  update_kernels(m_.device()).add(q_, m_, step.beta1, stream);  // what the carry is off the mask
  extensions_.follow(means_, stream);
  const std::array parameters{parameters_of(context, options_.offload, Staging::Use::update)};
  staging_.for_each_part(shard_, parameters, stream, [&](Range part, Span<float> theta) {
    const Range range{part.begin - shard_.begin, part.end - shard_.begin};
    const Span<float> m = m_.span().subspan(range.begin, range.size());
    const Span<float> q = q_.span().subspan(range.begin, range.size());
    extensions_.apply(range, theta, m, q, q, gradient, mask, step, masks_.step(), stream);
    sparse_kernels(m_.device()).pack(range, theta, mask, values, stream);
  });
}

// e ← what of p stays off the mask, and on it what the codes lost or 0. Returns Σ of its squares there.
double ShardedScape::update_residual(const StepContext& context, const AdamStep& step, const MaskView& mask) {
  const UpdateKernels& update = update_kernels(m_.device());
  const Stream& stream = context.stream;
  const bool returns = coded_ && options_.residual != ResidualPolicy::none;
  const Span<float> lost = returns ? lost_.span().subspan(0, mask.count) : Span<float>();
  staging_.for_each_part({0, mask.size}, std::array{residual(Staging::Use::write)}, stream, [&](Range part, Span<float> e) {
    copy(e, context.grads.subspan(part.begin, part.size()), stream);
    if (step.residual_scale != 1) update.scale(e, step.residual_scale, stream);
    sparse_kernels(m_.device()).unpack(part, lost, mask, e, stream);
  });
  if (!returns) return 0;
  update.sum_of_squares(lost, sums_.span().subspan(0, 1), stream);
  return read(sums_.span().subspan(0, 1), stream);
}

// θ of `part`, where it is not this rank's.
void ShardedScape::decay_other_shards(Range part, Span<float> theta, const AdamStep& step, const Stream& stream) const {
  for (const ParameterLayout::Run& run : layout_.runs()) {
    const float keep = 1 - step.learning_rate * weight_decay_of(run.role, common_);
    if (keep == 1) continue;
    for (const Range others : {Range{0, shard_.begin}, Range{shard_.end, layout_.size()}}) {
      const Range range = intersect(intersect(run.range, others), part);
      if (range.empty()) continue;
      update_kernels(m_.device()).scale(theta.subspan(range.begin - part.begin, range.size()), keep, stream);
    }
  }
}

// θ on the mask ← the gathered values.
void ShardedScape::update_other_shards(const StepContext& context, const AdamStep& step, const MaskView& mask,
                                       Span<const float> values) {
  const std::array parameters{parameters_of(context, options_.offload, Staging::Use::update)};
  staging_.for_each_part({0, mask.size}, parameters, context.stream, [&](Range part, Span<float> theta) {
    if (options_.offload == Offload::replica) decay_other_shards(part, theta, step, context.stream);
    sparse_kernels(m_.device()).unpack(part, values, mask, theta, context.stream);
  });
}

StepResult ShardedScape::step(const StepContext& context) {
  const UpdateKernels& update = update_kernels(m_.device());
  const SparseKernels& sparse = sparse_kernels(m_.device());
  const Stream& stream = context.stream;
  const auto beta1 = static_cast<float>(common_.beta1);
  const Span<float> p = context.grads;
  const bool makes_mask_now = masks_.due() && options_.mask_delay == 0;
  const bool makes_mask_later = masks_.due() && options_.mask_delay > 0;
  const auto sum = [&](std::int64_t i) { return sums_.span().subspan(i, 1); };  // Σ over: 0 p, 1 p sent; all ranks: 2 p, 3 ĝ

  const bool local = options_.clip == ClipPolicy::local;
  const double local_norm = local ? clip_locally(context, common_.clip_norm, sum(0)) : 0;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    extensions_.measure(p, sums_.span().subspan(4, extensions_.blocks()), stream);
    masks_.observe(context, {0, layout_.size()});
    make_candidate_in(context, {0, layout_.size()}, {}, residual(Staging::Use::read), staging_, beta1, sum(0));
    copy(sum(2), sum(0), stream);
  }
  if (makes_mask_now) {
    score(context);
    masks_.make(context, score_, m_);
  }
  const MaskView mask = masks_.use(context);
  const std::vector<std::int64_t> counts = masks_.counts_by_owner(stream);
  const std::int64_t count = counts[static_cast<std::size_t>(rank_)];
  const Span<float> packed = packed_.span().subspan(0, mask.count);
  const Span<float> packed_shard = packed.subspan(std::accumulate(counts.begin(), counts.begin() + rank_, std::int64_t{0}), count);
  const bool scatter = options_.sharded_payload == ShardedPayload::reduce_scatter;
  const Span<float> gradient = scatter ? received_.span().subspan(0, count) : packed_shard;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    sparse.pack(p, mask, packed, stream);
    update.sum_of_squares(packed, sum(1), stream);
    if (coded_) coded_->code(packed, counts, {}, lost_.span().subspan(0, mask.count), stream);
  }
  const Event payload = communicate(context, [&] {
    if (coded_) {
      coded_->scatter(context.comm, context.comm_stream);
    } else if (scatter) {
      context.comm.reduce_scatter_v<float>(packed, gradient, counts, ReduceOp::sum, context.comm_stream);
    } else {
      context.comm.all_reduce(packed, ReduceOp::sum, context.comm_stream);
    }
  });
  if (makes_mask_later) score(context);
  const MaskView shard_mask = in_shard(mask, count, stream);
  wait(context, payload);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
    if (coded_) coded_->mean(gradient, stream);
    sparse.recover_gradient(gradient, q_, shard_mask, coded_ ? 1.0F : static_cast<float>(ranks_), 1, beta1, sum(3), stream);
  }
  const Span<double> of_all_ranks = sums_.span().subspan(2, 2 + extensions_.blocks());
  wait(context, communicate(context, [&] { context.comm.all_reduce(of_all_ranks, ReduceOp::sum, context.comm_stream); }));
  extensions_.average(of_all_ranks.subspan(2, extensions_.blocks()), means_, stream);
  std::array<double, 4> sums{};
  copy(Span<double>(std::span(sums)), sums_.span().subspan(0, 4), stream);
  stream.synchronize();
  StepResult result;
  if (!std::isfinite(sums[2]) || !std::isfinite(sums[3]) || !extensions_.finite(means_, stream)) {
    result.applied = false;
    refused_step_ = context.step;
    masks_.refuse(stream);
    return result;
  }
  const double norm = std::sqrt(sums[3]);
  AdamStep step = adams_step(common_, options_.bias_correction, masks_.step(), context.learning_rate);
  step.residual_scale = residual_scale(options_.residual, common_.beta1);
  if (!local) step.gradient_scale = static_cast<float>(clip_coefficient(norm, common_.clip_norm));

  if (makes_mask_later && masks_.reads_m()) masks_.make(context, score_, m_);  // m_{t−1}, so before the update
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
    update_shard(context, step, gradient, shard_mask, packed_shard);
  }
  const Event values =
      communicate(context, [&] { context.comm.all_gather_v<float>(packed_shard, packed, counts, context.comm_stream); });
  if (makes_mask_later && !masks_.reads_m()) masks_.make(context, score_, m_);
  double returned = 0;  // Σ of squares of what returns on the mask
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
    if (options_.offload != Offload::replica) decay_other_shards({0, layout_.size()}, context.params, step, stream);
    returned = update_residual(context, step, mask);
  }
  wait(context, values);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
    update_other_shards(context, step, mask, packed);
    result.mask_overlap = masks_.overlap(stream);
  }
  const double off_mask = mask.count == mask.size ? 0 : std::max(0.0, sums[0] - sums[1]);
  result.gradient_norm = local ? local_norm : norm;
  result.density = static_cast<double>(mask.count) / static_cast<double>(mask.size);
  result.residual_norm = std::sqrt(step.residual_scale * step.residual_scale * off_mask + returned);
  masks_.commit(context);
  return result;
}

std::vector<StateEntry> ShardedScape::state() {
  std::vector<StateEntry> entries{state_entry("scape/m", StateScope::shard, m_.span()),
                                  state_entry("scape/carry", StateScope::shard, q_.span()),
                                  state_entry("scape/residual", StateScope::per_rank, e_.span())};
  extensions_.append_state(entries);
  masks_.append_state(entries);
  return entries;
}

double ShardedScape::expected_wire_bytes(std::int64_t step) const {
  const double values = static_cast<double>(masks_.expected_count(step)) * sizeof(float);
  const Collective collective =
      options_.sharded_payload == ShardedPayload::all_reduce ? Collective::all_reduce : Collective::reduce_scatter;
  const double payload =
      coded_ ? coded_->expected_wire_bytes(masks_.expected_counts_by_owner(step)) : wire_bytes(collective, values, ranks_);
  const double sums = static_cast<double>(2 + extensions_.blocks()) * sizeof(double);
  double total = payload + wire_bytes(Collective::all_reduce, sums, ranks_);
  const bool refused = step == refused_step_;
  if (!refused) total += wire_bytes(Collective::all_gather, values, ranks_);
  if (!refused || options_.mask_delay == 0) total += masks_.expected_wire_bytes(step);
  return total;
}

}  // namespace scape
