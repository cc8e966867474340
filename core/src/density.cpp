// Density schedules.
#include "scape/density.hpp"

#include <algorithm>
#include <cmath>

namespace scape {

void DensitySchedule::declare(OptionTable& table) {
  table.add("density", density, "kept fraction d of every tensor", {.max = 1, .above = 0});
  table.add("density_warmup", density_warmup, "how the density falls from 1 to d",
            {{"none", DensityWarmup::none},
             {"geometric", DensityWarmup::geometric},
             {"linear", DensityWarmup::linear},
             {"step", DensityWarmup::step}});
  table.add("density_warmup_fraction", density_warmup_fraction, "length of the density warm-up as a fraction of the run",
            {.min = 0, .max = 1});
  table.add("density_warmup_steps", density_warmup_steps, "length of the density warm-up in steps; 0: by the fraction", {.min = 0});
}

double DensitySchedule::at(std::int64_t step, std::int64_t total_steps) const {
  const double warmup_steps = density_warmup_steps > 0 ? static_cast<double>(density_warmup_steps)
                                                       : density_warmup_fraction * static_cast<double>(total_steps);
  const auto t = static_cast<double>(step);
  if (t >= warmup_steps) return density;
  switch (density_warmup) {
    case DensityWarmup::geometric:
      return std::pow(density, t / warmup_steps);
    case DensityWarmup::linear:
      return 1 + (density - 1) * (t / warmup_steps);
    case DensityWarmup::step:
      return 1;
    case DensityWarmup::none:
      break;
  }
  return density;
}

std::int64_t kept_count(double density, std::int64_t n) {
  if (n == 0) return 0;
  return std::clamp(static_cast<std::int64_t>(std::floor(density * static_cast<double>(n))), std::int64_t{1}, n);
}

}  // namespace scape
