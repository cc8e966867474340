// Learning-rate schedule.
#include "train/schedule.hpp"

#include <cmath>
#include <numbers>

namespace scape {

void LearningRateSchedule::declare(OptionTable& table) {
  table.add("learning_rate", learning_rate, "peak learning rate", {.min = 0});
  table.add("schedule", shape, "learning rate after the warm-up", {{"cosine", Shape::cosine}, {"constant", Shape::constant}});
  table.add("warmup_fraction", warmup_fraction, "linear warm-up of the learning rate as a fraction of the run",
            {.min = 0, .max = 1});
  table.add("floor_ratio", floor_ratio, "last over peak learning rate of the cosine", {.min = 0, .max = 1});
}

double LearningRateSchedule::at(std::int64_t step, std::int64_t total_steps) const {
  const double warmup = std::ceil(warmup_fraction * static_cast<double>(total_steps));
  const auto t = static_cast<double>(step);
  if (t <= warmup) return learning_rate * t / warmup;
  if (shape == Shape::constant) return learning_rate;
  const double progress = (t - warmup) / (static_cast<double>(total_steps) - warmup);
  return learning_rate * (floor_ratio + (1 - floor_ratio) * (1 + std::cos(std::numbers::pi * progress)) / 2);
}

}  // namespace scape
