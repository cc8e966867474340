// Top-k on a mask that all ranks share: the mask first, then an all-reduce of the values on it. Shows what sharing costs. With
// a = g + r of each rank:
//
//   union   M = ∪ over the ranks of each one's own top-k of |a|: up to N·k coordinates, the "fill-in" of sparse all-reduce
//           (Renggli et al. 2019, "SparCML"; Li & Hoefler 2022)
//   owner   M = ∪ over the ranks of the top-k of |a| among the coordinates that the rank owns: k in all, as in SCAPE
//   g ← (1/N) Σ over the ranks of a on M, 0 off it;   r ← a off M, 0 on M
//
// The masks are gathered as bitmaps of 8·⌈W/64⌉ bytes: N of them for the union, N parts of one for the owners. The recorded
// density is |M|/W, so the fill-in |M|/k shows beside the density asked for.
#pragma once

#include "shared_mask.hpp"

namespace scape {

class TopKShared final : public GradientSync {
 public:
  enum class Chooser { every_rank, owner };
  struct Options {
    DensitySchedule schedule;
    Chooser chooser = Chooser::every_rank;

    void declare(OptionTable& table);
  };

  TopKShared(const Options& options, const CommonOptions& common, const MethodContext& context);

  [[nodiscard]] bool reduce(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override { return {mean_.state("topk_shared")}; }
  /// The size of a union is known afterwards: for `union`, the bytes if the mask is the last step's.
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;
  [[nodiscard]] double density() const override { return static_cast<double>(mask_count_) / static_cast<double>(layout_.size()); }
  [[nodiscard]] double residual_norm() const override { return mean_.residual_norm(); }
  [[nodiscard]] StepView inspect(const StepContext& /*context*/) const override {
    return {.mask = options_.chooser == Chooser::every_rank ? words_ : gathered_, .residual = mean_.residual()};
  }

 private:
  [[nodiscard]] MaskView shared_mask(bool finite, const StepContext& context);

  Options options_;
  const ParameterLayout& layout_;
  int rank_;
  int ranks_;
  std::int64_t total_steps_;
  std::vector<std::int64_t> word_counts_;  // mask words that each rank contributes
  SharedMaskMean mean_;
  Buffer<std::uint64_t> gathered_;  // every rank's words in rank order
  Buffer<std::uint64_t> words_;     // M, for a union
  Buffer<std::int64_t> offsets_;
  Buffer<std::int64_t> count_;  // [1]
  std::int64_t mask_count_ = 0;
};

}  // namespace scape
