// Ablations of the paper's choices that every form has.
#include "methods/form.hpp"

#include "scape/error.hpp"

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

int offloaded_vectors(Offload offload) {
  return offload == Offload::none ? 0 : offload == Offload::residual ? 1 : 2;
}

Staging::Vector parameters_of(const StepContext& context, Offload offload, Staging::Use use) {
  const bool away = offload == Offload::replica;
  require(
      context.params.device() == (away ? cpu_device : context.grads.device()), ErrorKind::usage,
      away ? "offload = replica: the parameters must lie in the host's memory, and they lie on a GPU"
           : "the parameters lie on another device than the gradients; only offload = replica takes them from the host's memory");
  return {context.params, away, use};
}

void make_candidate_in(const StepContext& context, Range range, Span<const float> m, const Staging::Vector& residual,
                       Staging& staging, float beta1, Span<double> sum) {
  const Device device = context.grads.device();
  staging.for_each_part(range, std::array{residual}, context.stream, [&](Range part, Span<const float> e) {
    const auto of = [&](auto x) { return x.empty() ? x : x.subspan(part.begin, part.size()); };
    sparse_kernels(device).candidate(of(context.grads), of(m), e, beta1, sum, context.stream);
  });
  if (residual.offloaded)
    update_kernels(device).sum_of_squares(context.grads.subspan(range.begin, range.size()), sum, context.stream);
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
