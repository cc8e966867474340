// Dense training with sharded moments.
#include "methods/zero1.hpp"

#include <cmath>

#include "methods/exchange.hpp"
#include "methods/rules.hpp"
#include "scape/error.hpp"

namespace scape {

void Zero1::Options::declare(OptionTable& table) {
  table.add("rule", rule, "update rule of the owner", {{"adamw", Rule::adamw}, {"adams", Rule::adams}});
  declare_bias_correction(table, bias_correction);
  buckets.declare(table);
}

Zero1::Zero1(const Options& options, const CommonOptions& common, const MethodContext& context)
    : options_(options),
      common_(common),
      layout_(context.layout),
      ranks_(context.ranks),
      shard_(owned_range(context.layout.size(), context.rank, context.ranks)),
      buckets_(options.buckets, context.layout.size()),
      mean_(shard_.size(), context.device),
      m_(shard_.size(), context.device),
      v_(options.rule == Rule::adamw ? shard_.size() : 0, context.device),
      sum_(1, context.device),
      steps_(1) {
  require(options.rule == Rule::adams || options.bias_correction == BiasCorrection::scape, ErrorKind::usage,
          "bias_correction is a choice of rule = adams; rule = adamw has but one");
  for (int r = 0; r < ranks_; ++r) counts_.push_back(owned_range(layout_.size(), r, ranks_).size());
}

void Zero1::gradients_ready(const StepContext& context, Range range) {
  if (options_.buckets.overlap == Overlap::bucketed) send(context, buckets_.add(range));
}

// Each rank's part of the range to that rank.
void Zero1::send(const StepContext& context, Range range) {
  if (range.empty()) return;
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks_; ++r) counts.push_back(intersect(range, owned_range(layout_.size(), r, ranks_)).size());
  const Range part = intersect(range, shard_);
  const Span<float> mine = part.empty() ? Span<float>() : mean_.span().subspan(part.begin - shard_.begin, part.size());
  static_cast<void>(communicate(context, [&] {
    context.comm.reduce_scatter_v<float>(context.grads.subspan(range.begin, range.size()), mine, counts, ReduceOp::sum,
                                         context.comm_stream);
  }));
}

void Zero1::update_shard(const StepContext& context, double norm) {
  const UpdateKernels& kernels = update_kernels(m_.device());
  const std::int64_t t = ++steps_.host()[0];
  const bool adamw = options_.rule == Rule::adamw;
  AdamStep step = adamw ? adamw_step(common_, t, context.learning_rate)
                        : adams_step(common_, options_.bias_correction, t, context.learning_rate);
  step.gradient_scale = static_cast<float>(clip_coefficient(norm, common_.clip_norm));
  for (const ParameterLayout::Run& run : layout_.runs()) {
    const Range part = intersect(run.range, shard_);
    if (part.empty()) continue;
    step.weight_decay = weight_decay_of(run.role, common_);
    const Span<float> theta = context.params.subspan(part.begin, part.size());
    const auto mine = [&](const Buffer<float>& values) { return values.span().subspan(part.begin - shard_.begin, part.size()); };
    if (adamw) {
      kernels.adamw(theta, mine(m_), mine(v_), mine(mean_), step, context.stream);
    } else {
      kernels.adams(theta, mine(m_), mine(mean_), step, context.stream);
    }
  }
}

StepResult Zero1::step(const StepContext& context) {
  const UpdateKernels& kernels = update_kernels(m_.device());
  const Stream& stream = context.stream;
  for (const Range bucket : buckets_.rest()) send(context, bucket);
  Event arrived(m_.device());
  arrived.record(context.comm_stream);
  wait(context, arrived);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
    kernels.divide(mean_, static_cast<float>(ranks_), stream);
    kernels.sum_of_squares(mean_, sum_, stream);
  }
  wait(context, communicate(context, [&] { context.comm.all_reduce(sum_.span(), ReduceOp::sum, context.comm_stream); }));
  StepResult result;
  const double norm = std::sqrt(read(sum_.span(), stream));
  result.applied = std::isfinite(norm);  // a value that is not finite reaches its owner with the sum, and every rank with the norm
  if (!result.applied) return result;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
    update_shard(context, norm);
  }
  wait(context, communicate(context, [&] {
         context.comm.all_gather_v<float>(context.params.subspan(shard_.begin, shard_.size()), context.params, counts_,
                                          context.comm_stream);
       }));
  result.gradient_norm = norm;
  result.density = 1;
  return result;
}

std::vector<StateEntry> Zero1::state() {
  std::vector<StateEntry> entries{state_entry("zero1/m", StateScope::shard, m_.span()),
                                  state_entry("zero1/steps", StateScope::replicated, steps_.span())};
  if (options_.rule == Rule::adamw) entries.push_back(state_entry("zero1/v", StateScope::shard, v_.span()));
  return entries;
}

double Zero1::expected_wire_bytes(std::int64_t) const {
  const double values = static_cast<double>(layout_.size()) * sizeof(float);
  return wire_bytes(Collective::reduce_scatter, values, ranks_) + wire_bytes(Collective::all_gather, values, ranks_) +
         wire_bytes(Collective::all_reduce, sizeof(double), ranks_);
}

}  // namespace scape
