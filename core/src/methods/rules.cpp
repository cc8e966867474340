// AdamW and AdamS: coefficients per step, then one kernel per run of tensors with equal weight decay.
#include "methods/rules.hpp"

#include <cmath>

namespace scape {

namespace {

float inverse_correction(double beta, std::int64_t t) {
  return static_cast<float>(1 / (1 - std::pow(beta, static_cast<double>(t))));
}

AdamStep uncorrected_step(const CommonOptions& options, double learning_rate) {
  AdamStep step;
  step.beta1 = static_cast<float>(options.beta1);
  step.beta2 = static_cast<float>(options.beta2);
  step.epsilon = static_cast<float>(options.epsilon);
  step.learning_rate = static_cast<float>(learning_rate);
  return step;
}

// Calls kernel(range, step) for each run of the layout, with the run's weight decay.
template <class Kernel>
void for_each_run(const ParameterLayout& layout, AdamStep step, const CommonOptions& options, Kernel kernel) {
  for (const ParameterLayout::Run& run : layout.runs()) {
    step.weight_decay = weight_decay_of(run.role, options);
    kernel(run.range, step);
  }
}

}  // namespace

float weight_decay_of(TensorRole role, const CommonOptions& options) {
  return role == TensorRole::matrix ? static_cast<float>(options.weight_decay) : 0.0F;
}

void declare_bias_correction(OptionTable& table, BiasCorrection& variable) {
  table.add("bias_correction", variable, "convention for AdamS's bias correction",
            {{"scape", BiasCorrection::scape}, {"official", BiasCorrection::official}, {"none", BiasCorrection::none}});
}

AdamStep adamw_step(const CommonOptions& options, std::int64_t t, double learning_rate) {
  AdamStep step = uncorrected_step(options, learning_rate);
  step.m_scale = inverse_correction(options.beta1, t);
  step.v_scale = inverse_correction(options.beta2, t);
  return step;
}

AdamStep adams_step(const CommonOptions& options, BiasCorrection correction, std::int64_t t, double learning_rate) {
  AdamStep step = uncorrected_step(options, learning_rate);
  if (correction == BiasCorrection::none) return step;
  step.m_scale = inverse_correction(options.beta1, t);
  if (correction == BiasCorrection::scape) {
    step.v_scale = inverse_correction(options.beta2, t);
  } else {
    step.previous_scale = step.m_scale;
  }
  return step;
}

AdamW::AdamW(const Options&, const CommonOptions& common, const MethodContext& context)
    : common_(common), m_(context.layout.size(), context.device), v_(context.layout.size(), context.device), steps_(1) {}

void AdamW::apply(const StepContext& context, float gradient_scale) {
  AdamStep step = adamw_step(common_, ++steps_.host()[0], context.learning_rate);
  step.gradient_scale = gradient_scale;
  for_each_run(context.layout, step, common_, [&](Range r, const AdamStep& s) {
    update_kernels(m_.device())
        .adamw(context.params.subspan(r.begin, r.size()), m_.span().subspan(r.begin, r.size()),
               v_.span().subspan(r.begin, r.size()), context.grads.subspan(r.begin, r.size()), s, context.stream);
  });
}

std::vector<StateEntry> AdamW::state() {
  return {state_entry("adamw/m", StateScope::replicated, m_.span()), state_entry("adamw/v", StateScope::replicated, v_.span()),
          state_entry("adamw/steps", StateScope::replicated, steps_.span())};
}

AdamS::AdamS(const Options& options, const CommonOptions& common, const MethodContext& context)
    : options_(options), common_(common), m_(context.layout.size(), context.device), steps_(1) {}

void AdamS::apply(const StepContext& context, float gradient_scale) {
  AdamStep step = adams_step(common_, options_.bias_correction, ++steps_.host()[0], context.learning_rate);
  step.gradient_scale = gradient_scale;
  for_each_run(context.layout, step, common_, [&](Range r, const AdamStep& s) {
    update_kernels(m_.device())
        .adams(context.params.subspan(r.begin, r.size()), m_.span().subspan(r.begin, r.size()),
               context.grads.subspan(r.begin, r.size()), s, context.stream);
  });
}

std::vector<StateEntry> AdamS::state() {
  return {state_entry("adams/m", StateScope::replicated, m_.span()),
          state_entry("adams/steps", StateScope::replicated, steps_.span())};
}

}  // namespace scape
