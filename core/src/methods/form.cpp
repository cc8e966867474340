// Ablations of the paper's choices that every form has.
#include "methods/form.hpp"

namespace scape {

float residual_scale(ResidualPolicy policy, double beta1) {
  switch (policy) {
    case ResidualPolicy::keep:
      return 1;
    case ResidualPolicy::decay:
      return static_cast<float>(beta1);
    case ResidualPolicy::none:
      return 0;
  }
  return 1;
}

QuantFormat format_of(PayloadType payload) {
  return {.code = payload == PayloadType::bf16 ? QuantCode::bf16 : QuantCode::e5m2};
}

double clip_locally(const StepContext& context, double clip_norm, Span<double> sum) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  const UpdateKernels& update = update_kernels(context.grads.device());
  update.sum_of_squares(context.grads, sum, context.stream);
  const double norm = std::sqrt(read(sum, context.stream));
  const auto coefficient = static_cast<float>(clip_coefficient(norm, clip_norm));
  if (coefficient < 1) update.scale(context.grads, coefficient, context.stream);
  return norm;
}

}  // namespace scape
