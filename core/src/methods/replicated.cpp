// One step of SCAPE in replicated form.
#include "methods/replicated.hpp"

#include <algorithm>
#include <cmath>

namespace scape {

ReplicatedScape::ReplicatedScape(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context)
    : options_(options),
      common_(common),
      layout_(context.layout),
      ranks_(context.ranks),
      masks_(options, common, context),
      m_(context.layout.size(), context.device),
      e_(context.layout.size(), context.device),
      packed_(context.layout.size() + 1, context.device),
      sums_(2, context.device) {}

namespace {

float residual_scale(ResidualPolicy policy, const CommonOptions& common) {
  switch (policy) {
    case ResidualPolicy::keep:
      return 1;
    case ResidualPolicy::decay:
      return static_cast<float>(common.beta1);
    case ResidualPolicy::none:
      return 0;
  }
  return 1;
}

}  // namespace

// Clips this rank's gradient; returns its norm before that. A norm that is not finite leaves elements that are not.
double ReplicatedScape::clip_local(const StepContext& context) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  const UpdateKernels& update = update_kernels(m_.device());
  const Span<double> sum = sums_.span().subspan(0, 1);
  update.sum_of_squares(context.grads, sum, context.stream);
  const double norm = std::sqrt(read(sum, context.stream));
  const auto coefficient = static_cast<float>(clip_coefficient(norm, common_.clip_norm));
  if (coefficient < 1) update.scale(context.grads, coefficient, context.stream);
  return norm;
}

StepResult ReplicatedScape::step(const StepContext& context) {
  const UpdateKernels& update = update_kernels(m_.device());
  const SparseKernels& sparse = sparse_kernels(m_.device());
  const Stream& stream = context.stream;
  const auto beta1 = static_cast<float>(common_.beta1);
  const Span<double> sum = sums_.span().subspan(0, 1);
  const Span<double> sum_sent = sums_.span().subspan(1, 1);

  const bool local = options_.clip == ClipPolicy::local;
  const double local_norm = local ? clip_local(context) : 0;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    masks_.observe(context, {0, layout_.size()});
    sparse.candidate(context.grads, m_, e_, beta1, sum, stream);
  }
  if (masks_.due() && options_.mask_delay == 0) masks_.make(context, context.grads, m_);
  const MaskView mask = masks_.use(context);
  const Span<float> payload = packed_.span().subspan(0, mask.count + 1);
  const Span<float> packed = payload.subspan(0, mask.count);
  const Span<float> refusals = payload.subspan(mask.count, 1);
  double residual = 0;  // Σ c² off the mask
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    sparse.pack(context.grads, mask, packed, stream);
    update.flag_not_finite(sum, refusals, stream);
    update.sum_of_squares(packed, sum_sent, stream);
    if (mask.count < mask.size) residual = std::max(0.0, read(sum, stream) - read(sum_sent, stream));
  }
  Event arrived(m_.device());
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, stream);
    Event ready(m_.device());
    ready.record(stream);
    context.comm_stream.wait(ready);
    context.comm.all_reduce(payload, ReduceOp::sum, context.comm_stream);
    arrived.record(context.comm_stream);
  }
  if (masks_.due() && options_.mask_delay > 0) masks_.make(context, context.grads, m_);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, stream);
    stream.wait(arrived);
  }

  StepResult result;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
    sparse.recover_gradient(packed, m_, mask, static_cast<float>(ranks_), -beta1, beta1, sum, stream);
    const double norm = std::sqrt(read(sum, stream));
    if (read(refusals, stream) > 0 || !std::isfinite(norm)) {
      result.applied = false;
      masks_.refuse(stream);
      return result;
    }
    AdamStep step = adams_step(common_, options_.bias_correction, masks_.step(), context.learning_rate);
    step.residual_scale = residual_scale(options_.residual, common_);
    if (!local) step.gradient_scale = static_cast<float>(clip_coefficient(norm, common_.clip_norm));
    for (const ParameterLayout::Run& run : layout_.runs()) {
      step.weight_decay = weight_decay_of(run.role, common_);
      sparse.apply(run.range, context.params, m_, e_, context.grads, packed, mask, step, stream);
    }
    result.gradient_norm = local ? local_norm : norm;
    result.density = static_cast<double>(mask.count) / static_cast<double>(mask.size);
    result.residual_norm = step.residual_scale * std::sqrt(residual);
    result.mask_overlap = masks_.overlap(stream);
  }
  masks_.commit(context);
  return result;
}

std::vector<StateEntry> ReplicatedScape::state() {
  std::vector<StateEntry> entries{state_entry("scape/m", StateScope::replicated, m_.span()),
                                  state_entry("scape/residual", StateScope::per_rank, e_.span())};
  masks_.append_state(entries);
  return entries;
}

double ReplicatedScape::expected_wire_bytes(std::int64_t step) const {
  const auto values = static_cast<double>(masks_.expected_count(step) + 1);
  return wire_bytes(Collective::all_reduce, values * sizeof(float), ranks_) + masks_.expected_wire_bytes(step);
}

}  // namespace scape
