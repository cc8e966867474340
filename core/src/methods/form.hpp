// What the forms of SCAPE have in common, seen from outside.
#pragma once

#include "methods/mask_schedule.hpp"
#include "scape/optimizer.hpp"

namespace scape {

class ScapeForm : public Optimizer {
 public:
  [[nodiscard]] virtual const MaskSchedule& masks() const = 0;
};

}  // namespace scape
