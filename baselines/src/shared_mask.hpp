// What syncs with a mask that all ranks share have in common: the choice of coordinates by tensor, and the mean over the ranks on
// the mask with error feedback. With M the mask and a = g + r of this rank:
//
//   g ← (1/N) Σ over the ranks of a on M, 0 off it;   r ← a off M, 0 on M
//
// One all-reduce of |M| + 1 floats: the last is the number of ranks whose gradient was not finite.
#pragma once

#include "scape/density.hpp"
#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"

namespace scape {

/// Coordinates of `range` that are chosen at density d: max(1, ⌊d·n⌋) of each matrix's part n, every one of a vector.
[[nodiscard]] std::int64_t chosen_count(const ParameterLayout& layout, Range range, double density);

/// Sets their bits: of matrices the largest |a|. Other bits stay.
void choose(const ParameterLayout& layout, Range range, double density, Span<const float> a, Span<std::uint64_t> words,
            const Stream& stream);

class SharedMaskMean {
 public:
  explicit SharedMaskMean(const MethodContext& context);

  /// Leaves a = g + r in the gradients. Blocks the caller; returns whether every element is finite.
  [[nodiscard]] bool accumulate(const StepContext& context);
  /// From what accumulate() has left to the mean as above. False when a rank's a or the sum was not finite; r is unchanged then.
  [[nodiscard]] bool reduce(const MaskView& mask, const StepContext& context);
  /// The same with all coordinates on the mask, and no flag: an all-reduce of W floats.
  [[nodiscard]] bool reduce_all(const StepContext& context);

  [[nodiscard]] static double wire_bytes(std::int64_t mask_count, int ranks);

  [[nodiscard]] StateEntry state(const std::string& method) {
    return state_entry(method + "/residual", StateScope::per_rank, residual_.span());
  }
  [[nodiscard]] double residual_norm() const;
  [[nodiscard]] Span<const float> residual() const { return residual_; }

 private:
  int ranks_;
  const UpdateKernels& update_;
  const SparseKernels& masks_;
  Buffer<float> residual_;  // r [W]
  Buffer<float> payload_;   // [W + 1], |M| + 1 of it in use
  Buffer<double> squares_;  // [1] of a, then of the payload
  Stream stream_;           // of the last step
};

}  // namespace scape
