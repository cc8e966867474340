// Learning rate over a run: linear warm-up to the peak, then a cosine down to a floor, or constant (Loshchilov & Hutter,
// "SGDR", ICLR 2017, without restarts).
#pragma once

#include <cstdint>

#include "scape/config.hpp"

namespace scape {

struct LearningRateSchedule {
  enum class Shape { cosine, constant };

  double learning_rate = 1e-3;  // peak
  Shape shape = Shape::cosine;
  double warmup_fraction = 0.05;  // of the run's steps
  double floor_ratio = 0.1;       // last over peak learning rate

  void declare(OptionTable& table);

  /// Learning rate of step t = 1 … total_steps. With Tw = ⌈warmup_fraction · total_steps⌉ and p = (t − Tw)/(total_steps − Tw):
  ///   t ≤ Tw: peak · t/Tw;    after: peak · (floor + (1 − floor) (1 + cos πp)/2), or the peak when constant
  [[nodiscard]] double at(std::int64_t step, std::int64_t total_steps) const;
};

}  // namespace scape
