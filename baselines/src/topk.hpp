// Top-k sparsification with error feedback (Stich et al. 2018, "Sparsified SGD with memory"; Lin et al. 2018, "Deep Gradient
// Compression"). With N ranks, g the rank's gradient and r its residual:
//
//   a = g + r;   S = the k coordinates of largest |a|, by tensor or over all;   r ← a off S, 0 on S
//   g ← (1/N) Σ over the ranks of (a on S, 0 off it)
//
// Momentum correction with factor masking (Lin et al., section 3): u ← μ u + g, a = u + r, and u ← 0 on S as well.
// Indices (32 bits) and values (32 bits) are all-gathered: (N−1)·8k bytes. When N·k exceeds the number of coordinates, as in a
// density warm-up, an all-reduce of the vector with zeros off S carries the same sum in fewer bytes and is used instead.
#pragma once

#include <vector>

#include "scape/density.hpp"
#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"

namespace scape {

class TopK final : public GradientSync {
 public:
  enum class Scope { tensor, global };
  struct Options {
    DensitySchedule schedule;
    Scope scope = Scope::tensor;
    bool error_feedback = true;
    bool dense_vectors = true;
    double momentum_correction = 0;  // μ; 0 = off

    void declare(OptionTable& table);
  };

  TopK(const Options& options, const CommonOptions& common, const MethodContext& context);

  [[nodiscard]] bool reduce(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;
  [[nodiscard]] double density() const override { return density_; }
  [[nodiscard]] double residual_norm() const override;
  [[nodiscard]] StepView inspect(const StepContext& /*context*/) const override { return {.residual = residual_}; }

 private:
  [[nodiscard]] std::int64_t selected(std::int64_t step) const;  // k
  [[nodiscard]] bool gathers(std::int64_t k) const { return ranks_ * k <= sparse_size_ || ranks_ == 1; }
  [[nodiscard]] Span<float> accumulate(const StepContext& context);
  [[nodiscard]] MaskView select(Span<const float> a, const StepContext& context);
  [[nodiscard]] bool gather(Span<float> a, const MaskView& mask, const StepContext& context);
  [[nodiscard]] bool all_reduce(Span<const float> a, const MaskView& mask, const StepContext& context);
  void commit(Span<const float> a, const MaskView& mask, const StepContext& context);
  void remember(Span<float> memory, Span<const float> values, const MaskView& mask, const Stream& stream);

  Options options_;
  const ParameterLayout& layout_;
  int rank_;
  int ranks_;
  std::int64_t total_steps_;
  const UpdateKernels& update_;
  const SparseKernels& masks_;
  std::vector<Range> sparse_;  // what top-k chooses from: neighbouring tensors are one range
  std::vector<Range> dense_;   // what is always sent
  std::int64_t sparse_size_ = 0;
  Buffer<float> residual_;          // r [W] with error feedback, 0 in the dense ranges
  Buffer<float> velocity_;          // u [W] with momentum correction
  Buffer<float> sum_;               // u + r [W] with momentum correction
  Buffer<std::uint64_t> words_;     // S
  Buffer<std::int64_t> offsets_;    // of S
  Buffer<float> values_;            // [k] a on S
  Buffer<std::uint32_t> messages_;  // [N][2k] of every rank: indices, then the bits of the values
  Buffer<float> sent_;              // [W] what is all-reduced instead, while N·k is large
  Buffer<double> squares_;          // sums of squares that show what is not finite
  double density_ = not_available;  // of the last step
  Stream stream_;                   // of the last step
};

}  // namespace scape
