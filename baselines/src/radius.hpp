// Radius (Zheng & Zhang, MLSys 2025, "Range-based gradient sparsity for large foundation model pre-training"): the largest
// coordinates of a gradient stay the largest for many steps, so a mask may serve T steps. With a = g + r of each rank:
//
//   every T-th step:   g ← mean of a, dense;   r ← 0;   M ← per-tensor top-k of |g|, the same on all ranks without communication
//   between:           g ← mean of a on M, 0 off it;   r ← a off M, 0 on M
//
// Bytes: 2F·4W in a dense step, 2F·4(|M| + 1) in the others, F = (N−1)/N; norm and bias tensors are always on M. What the residual
// gathers off M is the raw gradient, which the next dense step delivers.
#pragma once

#include "shared_mask.hpp"

namespace scape {

class Radius final : public GradientSync {
 public:
  struct Options {
    double density = 0.01;
    std::int64_t period = 20;  // T

    void declare(OptionTable& table);
  };

  Radius(const Options& options, const CommonOptions& common, const MethodContext& context);

  [[nodiscard]] bool reduce(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;
  [[nodiscard]] double density() const override { return density_; }
  [[nodiscard]] double residual_norm() const override { return mean_.residual_norm(); }
  [[nodiscard]] StepView inspect(const StepContext& /*context*/) const override { return {.residual = mean_.residual()}; }

 private:
  Options options_;
  const ParameterLayout& layout_;
  int ranks_;
  std::int64_t mask_count_;
  SharedMaskMean mean_;
  Buffer<std::uint64_t> words_;    // M
  Buffer<std::int64_t> offsets_;   // of M
  Buffer<std::int64_t> accepted_;  // [1], on the host: steps so far
  double density_ = not_available;
};

}  // namespace scape
