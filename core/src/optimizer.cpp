// Options of every method, clipping, and methods composed of a sync and a rule.
#include "scape/optimizer.hpp"

#include "scape/kernels.hpp"

namespace scape {

void CommonOptions::declare(OptionTable& table) {
  table.add("beta1", beta1, "decay of the first moment", {.min = 0, .below = 1});
  table.add("beta2", beta2, "decay of the second moment", {.min = 0, .below = 1});
  table.add("epsilon", epsilon, "added to the root of the second moment", {.min = 0});
  table.add("weight_decay", weight_decay, "decoupled decay of matrices; vectors never decay", {.min = 0});
  table.add("clip_norm", clip_norm, "global gradient norm to clip to; 0 switches clipping off", {.min = 0});
}

double clip_coefficient(double norm, double clip_norm) {
  return clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1.0;
}

Composed::Composed(std::unique_ptr<GradientSync> sync, std::unique_ptr<UpdateRule> rule, const CommonOptions& options,
                   const MethodContext& context)
    : sync_(std::move(sync)), rule_(std::move(rule)), clip_norm_(options.clip_norm), sum_of_squares_(1, context.device) {}

StepResult Composed::step(const StepContext& context) {
  StepResult result;
  result.applied = sync_->reduce(context);
  if (!result.applied) return result;

  const Telemetry::Scope scope = context.telemetry.scope(Phase::update, context.stream);
  update_kernels(sum_of_squares_.device()).sum_of_squares(context.grads, sum_of_squares_, context.stream);
  const double norm = std::sqrt(read(sum_of_squares_.span(), context.stream));
  result.applied = std::isfinite(norm);
  if (!result.applied) return result;

  rule_->apply(context, static_cast<float>(clip_coefficient(norm, clip_norm_)));
  result.gradient_norm = norm;
  result.density = sync_->density();
  result.residual_norm = sync_->residual_norm();
  return result;
}

std::vector<StateEntry> Composed::state() {
  std::vector<StateEntry> entries = sync_->state();
  for (StateEntry& entry : rule_->state()) entries.push_back(std::move(entry));
  return entries;
}

}  // namespace scape
