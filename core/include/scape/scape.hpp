// SCAPE (Zheng, Chen, Xie, Zhang; arXiv 2607.01678): a distributed optimizer that communicates only the top-k of AdamS's first
// moment. Replicated form: every rank holds θ and m; each rank keeps what it did not send in a residual e.
//
//   c = β1 m + (1−β1) g + e        on this rank
//   b = mean over the ranks of c on the mask M; e keeps c off the mask
//   ĝ = (b − β1 m)/(1−β1) on M, clipped by its global norm;   m ← β1 m + (1−β1) ĝ on M, 0 off it
//   AdamS step with m and ĝ on M; off M only weight decay
//   the mask for step t + mask_delay is the top-k of |c| at step t, each coordinate chosen by the rank that owns it
//
// The new mask is gathered on the communication stream while the next steps compute.
#pragma once

#include <deque>
#include <memory>

#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"

namespace scape {

enum class DensityWarmup { none, geometric, linear };
enum class BiasCorrection { scape, official, none };

/// Coefficients of an AdamS step number t (1, 2, …) under a bias-correction convention.
[[nodiscard]] AdamStep adams_step(const CommonOptions& options, BiasCorrection correction, std::int64_t t, double learning_rate);

class Scape final : public Optimizer {
 public:
  struct Options {
    double density = 0.01;
    DensityWarmup density_warmup = DensityWarmup::geometric;
    double density_warmup_fraction = 0.1;  // of the run's steps
    std::int64_t mask_delay = 1;
    std::int64_t mask_refresh = 1;
    BiasCorrection bias_correction = BiasCorrection::scape;

    void declare(OptionTable& table);
  };

  Scape(const Options& options, const CommonOptions& common, const MethodContext& context);
  ~Scape() override;

  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;

  /// Target density of the mask used in step t.
  [[nodiscard]] double density(std::int64_t step) const;

 private:
  struct Mask;
  Options options_;
};

/// Coordinates that `rank` of `ranks` owns out of `size`: contiguous, disjoint, balanced in multiples of 64 (a mask word), possibly
/// empty.
[[nodiscard]] Range owned_range(std::int64_t size, int rank, int ranks);

}  // namespace scape
