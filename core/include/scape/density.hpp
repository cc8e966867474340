// How many coordinates a sparse method keeps: the density d in step t, with an optional warm-up from 1, and the count for one
// tensor. Shared by SCAPE and the top-k baselines, so that a comparison at "d = 0.01" compares the same numbers.
#pragma once

#include <cstdint>

#include "scape/config.hpp"

namespace scape {

enum class DensityWarmup { none, geometric, linear, step };

struct DensitySchedule {
  double density = 0.01;
  DensityWarmup density_warmup = DensityWarmup::geometric;
  double density_warmup_fraction = 0.1;   // of the run's steps
  std::int64_t density_warmup_steps = 0;  // if above 0, in place of the fraction

  void declare(OptionTable& table);

  /// d(t) for t = 1, 2, …; with Tw = density_warmup_steps, or density_warmup_fraction · total_steps, and t < Tw:
  ///   geometric d^(t/Tw)      linear 1 + (d − 1) t/Tw      step 1      none d
  [[nodiscard]] double at(std::int64_t step, std::int64_t total_steps) const;
};

/// Coordinates kept of n: max(1, ⌊d·n⌋), and 0 of 0.
[[nodiscard]] std::int64_t kept_count(double density, std::int64_t n);

}  // namespace scape
