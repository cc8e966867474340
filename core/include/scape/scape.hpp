// SCAPE (Zheng, Chen, Xie, Zhang; arXiv 2607.01678): a distributed optimizer that communicates only the top-k of AdamS's first
// moment. Replicated form: every rank holds θ and m; each rank keeps what it did not send in a residual e.
//
//   c = β1 m + (1−β1) g + e        on this rank
//   b = mean over the ranks of c on the mask M; e keeps c off the mask and is 0 on it
//   ĝ = (b − β1 m)/(1−β1) on M, clipped by its global norm;   m ← β1 m + (1−β1) ĝ on M, 0 off it
//   AdamS step with m and ĝ on M; off M only weight decay
//   the mask for step t + mask_delay is the top-k of |c| at step t, each coordinate chosen by the rank that owns it
//
// The payload is one all-reduce a step. The new mask is gathered on the communication stream while later steps compute.
#pragma once

#include <vector>

#include "scape/density.hpp"
#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"

namespace scape {

/// Conventions for the bias correction of AdamS.
enum class BiasCorrection {
  scape,     ///< m/(1−β1^t) and v/(1−β2^t)
  official,  ///< the AdamS authors' code: m_t and m_{t−1} both over (1−β1^t), v as it is
  none,
};
void declare_bias_correction(OptionTable& table, BiasCorrection& variable);

/// Coefficients of AdamS step t = 1, 2, … (kernels.hpp has the formula); weight_decay is left to the caller's runs.
[[nodiscard]] AdamStep adams_step(const CommonOptions& options, BiasCorrection correction, std::int64_t t, double learning_rate);

/// Coordinates that `rank` of `ranks` owns out of `size`: contiguous, disjoint, covering, balanced in multiples of 64 (a mask
/// word); possibly empty.
[[nodiscard]] Range owned_range(std::int64_t size, int rank, int ranks);

class Scape final : public Optimizer {
 public:
  struct Options {
    DensitySchedule density;
    std::int64_t mask_delay = 1;
    std::int64_t mask_refresh = 1;
    BiasCorrection bias_correction = BiasCorrection::scape;

    void declare(OptionTable& table);
  };

  Scape(const Options& options, const CommonOptions& common, const MethodContext& context);

  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;

  /// Number of coordinates on a mask made for density d: k = max(1, ⌊d·n⌋) of the n coordinates of each matrix that a rank owns,
  /// and all of every vector.
  [[nodiscard]] std::int64_t mask_count(double density) const;
  /// The mask that the last step used. For diagnostics and tests.
  [[nodiscard]] MaskView mask() const;

 private:
  // A mask from its making to its last use. Its number of coordinates is known before it is made.
  struct Mask {
    Buffer<std::uint64_t> words;
    Event gathered;
  };
  // What a checkpoint needs of the masks besides their bits; one row per slot behind the two counters.
  static constexpr std::int64_t unused = -1;
  [[nodiscard]] std::int64_t& applied_steps() { return book_.host()[0]; }
  [[nodiscard]] std::int64_t& masks_made() { return book_.host()[1]; }
  [[nodiscard]] std::int64_t& first_use(std::size_t slot) { return book_.host()[2 + 2 * slot]; }
  [[nodiscard]] std::int64_t& count(std::size_t slot) { return book_.host()[3 + 2 * slot]; }

  [[nodiscard]] std::size_t slot_in_use(std::int64_t t);
  std::size_t start_next_mask(const StepContext& context, std::int64_t t);
  void gather_next_mask(const StepContext& context, std::size_t slot);
  // Slots without a mask are all zero: so a refused step can leave the state as it found it, byte for byte.
  void clear(std::size_t slot, const Stream& stream);
  [[nodiscard]] MaskView view(std::size_t slot, const Stream& stream);

  Options options_;
  CommonOptions common_;
  ParameterLayout layout_;
  std::int64_t total_steps_;
  int rank_;
  int ranks_;
  Range owned_;                            // coordinates whose masks this rank chooses
  std::vector<std::int64_t> word_counts_;  // mask words owned by each rank

  Buffer<float> m_;                    // [W] first moment, 0 off the mask
  Buffer<float> e_;                    // [W] residual of this rank
  Buffer<float> packed_;               // [k + 1] payload and the flag "a gradient is not finite"
  std::vector<Mask> masks_;            // ring of mask_delay + 2: previous, current, and those under way
  Buffer<std::int64_t> offsets_;       // [blocks] index of the mask in use
  Buffer<std::int64_t> book_;          // host: applied steps, masks made, then first step of use and count of each slot
  Buffer<double> sums_;                // [2]
  Buffer<std::int64_t> common_count_;  // [1]
  MaskView last_mask_;
};

}  // namespace scape
