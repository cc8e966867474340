// What the forms of SCAPE have in common.
#pragma once

#include "methods/mask_schedule.hpp"
#include "methods/offload.hpp"
#include "scape/optimizer.hpp"

namespace scape {

class ScapeForm : public Optimizer {
 public:
  [[nodiscard]] virtual const MaskSchedule& masks() const = 0;
  /// Of what a form lets be seen, the mask is certain to be there.
  [[nodiscard]] StepView inspect(const StepContext& /*context*/) const override { return {.mask = masks().last().words}; }
};

/// Part of what a rank does not send that stays with it.
[[nodiscard]] float residual_scale(ResidualPolicy policy, double beta1);

/// What `offload` moves to the host's memory: how many vectors at a time, and the parameters of a step, which must be there then.
[[nodiscard]] int offloaded_vectors(Offload offload);
[[nodiscard]] Staging::Vector parameters_of(const StepContext& context, Offload offload, Staging::Use use);

/// context.grads in `range` ← c (kernels.hpp, SCAPE step 1) with m [W] or empty; sum [1] ← Σ c².
void make_candidate_in(const StepContext& context, Range range, Span<const float> m, const Staging::Vector& residual,
                       Staging& staging, float beta1, Span<double> sum);

/// How values travel that are not fp32.
[[nodiscard]] QuantFormat format_of(PayloadType payload);

/// clip = local: context.grads ← the gradient clipped to clip_norm by its own norm, which is returned. A norm that is not finite
/// leaves elements that are not. sum [1] is scratch.
double clip_locally(const StepContext& context, double clip_norm, Span<double> sum);

}  // namespace scape
