// Ok-Topk (Li & Hoefler, PPoPP 2022, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", arXiv 2201.07598), written from
// the paper's description alone. Of N ranks each owns a region of the coordinates. With g a rank's gradient, r its residual:
//
//   a = g + r;   L = { j : |a_j| ≥ λ },  λ the rank's own: the k-th largest |a| when it was last estimated
//   split and reduce:     the entries (j, a_j) of L to the owners of their regions, who add them in rank order: s = Σ a
//   balance and gather:   G = { j : |s_j| ≥ Λ },  Λ the k-th largest |s| when it was last estimated; its entries to all ranks
//   g ← s/N on G, 0 off it;   r ← a off L ∩ G, 0 on it
//
// Both thresholds are estimated every τ' steps, when the density has changed, and while they are 0 (fewer than k were not; a rank
// has joined). Every τ steps the boundaries between regions become the mean of those that would deal out each rank's own L evenly.
// When one owner holds much more of G than the others, an all-to-all deals G out evenly before it is gathered.
//
// Bytes, with F = (N−1)/N, entries of 8 bytes and V vector coordinates, which are all-reduced in full as SCAPE does:
//   F·8(|L| + |G|) for the entries, F·8(own part of G) when they are balanced, F·16N for counts, 2F·4V; 3F·8k or less if |L| = |G|
//   = k when Λ is estimated, F·(8N + 4·coordinates in any L);   when regions are made, 2F·8(N−1)
// The paper's bound, 6k words of 4 bytes a rank, is that of a step that estimates nothing and of thresholds that still select k.
#pragma once

#include <vector>

#include "scape/density.hpp"
#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"

namespace scape {

class OkTopK final : public GradientSync {
 public:
  struct Options {
    DensitySchedule schedule;
    std::int64_t threshold_period = 32;  // τ'
    std::int64_t region_period = 64;     // τ
    double balance = 4;                  // of the largest part of G to the mean one, from which on G is balanced

    void declare(OptionTable& table);
  };

  OkTopK(const Options& options, const CommonOptions& common, const MethodContext& context);

  [[nodiscard]] bool reduce(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  /// Of the last step, with the sizes of L and G that it had.
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;
  /// Of G and the vectors.
  [[nodiscard]] double density() const override { return density_; }
  [[nodiscard]] double residual_norm() const override;
  [[nodiscard]] StepView inspect(const StepContext& /*context*/) const override { return {.residual = residual_}; }
  /// [N + 1] where the ranks' regions begin and the last one ends, once a step has made them. For tests.
  [[nodiscard]] const std::vector<std::int64_t>& regions() const { return regions_; }

 private:
  using Entry = std::uint64_t;  // coordinate in the upper half, the bits of its value in the lower
  using Entries = std::vector<Entry>;

  [[nodiscard]] std::int64_t selected(std::int64_t step) const;  // k
  [[nodiscard]] bool accumulate(const StepContext& context);
  [[nodiscard]] float local_threshold(const StepContext& context) const;
  [[nodiscard]] Entries select(const StepContext& context, float threshold) const;
  void make_regions(const Entries& local, const StepContext& context);
  [[nodiscard]] bool split_and_reduce(const Entries& local, bool finite, Entries& sums, const StepContext& context);
  [[nodiscard]] float global_threshold(const Entries& sums, const StepContext& context);
  [[nodiscard]] bool balance_and_gather(Entries chosen, Entries& all, const StepContext& context);
  void balance(Entries& chosen, std::vector<std::int64_t>& counts, const StepContext& context);
  void commit(const Entries& all, float local_threshold, const StepContext& context);

  // What a step had on its way.
  struct Sizes {
    std::int64_t local = 0;     // |L| of this rank
    std::int64_t summed = 0;    // coordinates in any L, when Λ was estimated
    std::int64_t chosen = 0;    // |G|
    std::int64_t balanced = 0;  // this rank's part of G, when it was balanced
    bool estimated = false;     // Λ
    bool made_regions = false;
  };

  Options options_;
  const ParameterLayout& layout_;
  int rank_;
  int ranks_;
  std::int64_t total_steps_;
  const UpdateKernels& update_;
  std::vector<Range> sparse_, dense_;  // matrices, vectors
  std::int64_t sparse_size_ = 0;
  // Not a part of the state: regions decide who adds, not what comes out. A fresh instance makes them in its first step.
  std::vector<std::int64_t> regions_;
  Buffer<float> residual_;          // r [W], 0 for vectors
  Buffer<float> local_threshold_;   // λ [1]
  Buffer<float> global_threshold_;  // Λ [1]
  Buffer<std::int64_t> counters_;   // [2] accepted steps, k when the thresholds were estimated
  Buffer<double> squares_;          // [1]
  Sizes sizes_;                     // of the last step
  double density_ = not_available;  // of the last step
  Stream stream_;                   // of the last step
};

}  // namespace scape
