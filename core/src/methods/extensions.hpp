// SCAPE's extensions beyond the paper (ours; formulas in scape/scape.hpp), and the update of θ and m that they change: ages of
// coordinates for backlog_scaling, running mean squares of blocks for normaliser = block.
#pragma once

#include <vector>

#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"
#include "scape/scape.hpp"

namespace scape {

class Extensions {
 public:
  /// For θ and m of the coordinates of `shard`.
  Extensions(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context, Range shard);

  /// Blocks of normaliser = block: rows of matrices (in the last dimension) and whole vectors; 0 without it.
  [[nodiscard]] std::int64_t blocks() const { return v_.size(); }
  /// squares [blocks] ← Σ g² of this rank's gradient [W].
  void measure(Span<const float> gradient, Span<double> squares, const Stream& stream) const;
  /// means [blocks] ← squares, or sums of them over ranks, over the size of the block.
  void average(Span<const double> squares, Span<float> means, const Stream& stream) const;
  /// Σ over the blocks of means², not finite exactly when one is not. Waits for the stream.
  [[nodiscard]] bool finite(Span<const float> means, const Stream& stream) const;
  /// V ← β2 V + (1−β2) s, with means [blocks] summed over the ranks.
  void follow(Span<const float> means, const Stream& stream) const;

  /// SparseKernels::apply() in step t, with weight decay, for coordinates `range` of the shard, counted from its first one, which
  /// theta, m, e and c [range.size()] are of.
  void apply(Range range, Span<float> theta, Span<float> m, Span<float> e, Span<const float> c, Span<const float> packed,
             const MaskView& mask, AdamStep step, std::int64_t t, const Stream& stream) const;
  void append_state(std::vector<StateEntry>& entries) const;

 private:
  struct Part {  // coordinates that one call serves
    Range range;
    TensorRole role = TensorRole::matrix;
    std::int64_t block_size = 1;
    std::int64_t first_block = 0;
    [[nodiscard]] std::int64_t blocks() const { return range.size() / block_size; }
  };

  ScapeOptions options_;
  CommonOptions common_;
  int ranks_;
  Range shard_;
  std::vector<Part> parts_;     // of all W coordinates: tensors with normaliser = block, otherwise runs of one role
  Buffer<std::uint16_t> ages_;  // [shard] steps since a coordinate was on a used mask; 1: it was on the last one
  Buffer<float> v_;             // [blocks]
  Buffer<double> squares_;      // [1]
};

}  // namespace scape
