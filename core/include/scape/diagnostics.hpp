// What goes on inside a sparse method, tensor by tensor: how fast its mask moves, how much of the best mask's energy it catches,
// how large and how old the backlog is, and how large gradients are. Diagnostics watches any Optimizer through
// Optimizer::inspect() and computes on the host from copies; it changes nothing that training depends on.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scape/optimizer.hpp"

namespace scape {

/// Bins of |g|: bin 0 counts exact zeros, bin 1 + i counts 10^(−12 + i/4) ≤ |g| < 10^(−12 + (i+1)/4), i < 64. The first and the
/// last of these also count what lies beyond.
struct GradientBins {
  static constexpr std::int64_t count = 65;
  [[nodiscard]] static std::int64_t of(float gradient);
  [[nodiscard]] static double lower_edge(std::int64_t bin);  // 0 for bin 0
};

/// Bins of ages in steps: bin 0 counts age 0, bin i counts 2^(i−1) ≤ age < 2^i.
struct AgeBins {
  static constexpr std::int64_t count = 32;
  [[nodiscard]] static std::int64_t of(std::int64_t age);
  [[nodiscard]] static double lower_edge(std::int64_t bin);
};

/// One tensor after step t. Sums and sets are restricted to the tensor's coordinates. M_t is the mask that step t used, M_{t−1} the
/// one before it, M_f the first mask made of as many coordinates (over all tensors) as M_t has, so that a density warm-up
/// starts it anew; the mask of everything that a run begins with is not a made one. c and e are rank 0's candidate and residual
/// (StepView), g its gradient. NaN, in histograms all 0, stands for what the method does not have; 0/0 is NaN, too.
struct TensorDiagnostics {
  double jaccard_previous = not_available;                             // |M_t ∩ M_{t−1}| / |M_t ∪ M_{t−1}|
  double share_previous = not_available;                               // |M_t ∩ M_{t−1}| / |M_t|
  double jaccard_first = not_available;                                // |M_t ∩ M_f| / |M_t ∪ M_f|
  double share_first = not_available;                                  // |M_t ∩ M_f| / |M_t|
  double energy_overlap = not_available;                               // Σ c² on M_t / sum of the |M_t| largest c²
  double topk_norm = not_available;                                    // √(Σ c² on M_t)
  double residual_norm = not_available;                                // √(Σ e²)
  std::array<std::int64_t, GradientBins::count> gradient_histogram{};  // of |g|, as the backward pass left it
  std::array<std::int64_t, AgeBins::count> age_histogram{};  // steps since a coordinate was last on a used mask; 0: on M_t
};

class Diagnostics {
 public:
  /// `every`: steps between records; 0: none, and nothing is kept.
  Diagnostics(const ParameterLayout& layout, std::int64_t every);

  /// True if there is to be a record of step t on this rank: rank 0 records.
  [[nodiscard]] bool due(const StepContext& context) const;
  /// Copies the gradients of `range`, ordered on the compute stream. In a step that is due, called for ranges that cover all
  /// coordinates, each before the method learns that it is ready: the method may overwrite it.
  void keep_gradients(const StepContext& context, Range range);
  /// Called on all ranks after every step that was applied, with that step's context and gradient buffer as the method left it.
  /// Returns one element per tensor when due(), otherwise none.
  [[nodiscard]] std::vector<TensorDiagnostics> after_step(const StepContext& context, const Optimizer& method);

  /// What later records depend on; belongs into a checkpoint beside the method's state. Empty when `every` is 0.
  [[nodiscard]] std::vector<StateEntry> state();

 private:
  void follow_mask(const StepContext& context, Span<const std::uint64_t> mask);
  void compare_masks(const ParameterTensor& tensor, std::int64_t step, TensorDiagnostics& result) const;
  void measure_candidate(const ParameterTensor& tensor, TensorDiagnostics& result) const;

  ParameterLayout layout_;
  std::int64_t every_;
  std::vector<float> values_;        // [W] on the host: gradients, then candidate, then residual
  std::vector<std::uint64_t> mask_;  // M_t
  Buffer<std::uint64_t> previous_;   // M_{t−1}; all 0: none yet
  Buffer<std::uint64_t> first_;      // M_f; all 0: none yet
  Buffer<std::int32_t> last_used_;   // [W] step in which a coordinate was last on a used mask
};

}  // namespace scape
