// SCAPE with θ and m on every rank (formulas in scape/scape.hpp). The order of work of one step:
//
//   compute stream         c, pack │ top-k of |c| for a later step │ wait payload │ recover ĝ, AdamS, new residual
//   communication stream           └ all-reduce of the payload ┘└ all-gather of the new mask … (next step) ┘
//
// Nothing of the state changes before the payload has arrived and says that every rank's gradient was finite: c lives in the
// gradient buffer until then, so a refused step leaves θ, m, e and the masks as they were.
#pragma once

#include "methods/form.hpp"
#include "methods/mask_schedule.hpp"

namespace scape {

class ReplicatedScape final : public ScapeForm {
 public:
  ReplicatedScape(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context);
  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] StepView inspect(const StepContext& context) const override {
    return {.mask = masks_.last().words, .candidate = context.grads, .residual = e_};
  }
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;
  [[nodiscard]] const MaskSchedule& masks() const override { return masks_; }

 private:
  double clip_local(const StepContext& context);

  ScapeOptions options_;
  CommonOptions common_;
  ParameterLayout layout_;
  int ranks_;
  MaskSchedule masks_;
  Buffer<float> m_;       // [W] first moment, 0 off the mask
  Buffer<float> e_;       // [W] residual of this rank
  Buffer<float> packed_;  // [k + 1] payload and the flag "a gradient is not finite"
  Buffer<double> sums_;   // [2]
};

}  // namespace scape
