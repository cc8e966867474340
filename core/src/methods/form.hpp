// What the forms of SCAPE have in common, seen from outside.
#pragma once

#include "methods/mask_schedule.hpp"
#include "scape/optimizer.hpp"

namespace scape {

class ScapeForm : public Optimizer {
 public:
  [[nodiscard]] virtual const MaskSchedule& masks() const = 0;
  /// Of what a form lets be seen, the mask is certain to be there.
  [[nodiscard]] StepView inspect(const StepContext& /*context*/) const override { return {.mask = masks().last().words}; }
};

}  // namespace scape
