// The methods that SCAPE is compared with, re-implemented from their publications over the core's interfaces. README.md of this
// folder lists their formulas, options and bytes.
#pragma once

#include "scape/registry.hpp"

namespace scape {

/// Adds every baseline. Call register_core() as well for `scape`, `dense` and the update rules.
void register_baselines(Registry& registry);

}  // namespace scape
