// SCAPE with m on one rank for each coordinate ("dist-opt" of arXiv 2607.01678: ZeRO-1, Rajbhandari et al. 2020). Every rank holds
// θ and a residual e; m lies with the coordinate's owner, so the others cannot add β1 m to what they send:
//
//   p = (1−β1) g + e          every rank sends p on the mask M, e ← p off it, 0 on it
//   ĝ = (mean p + q)/(1−β1)   the owner, on M, with its carry q: momentum whose coordinate left the mask; clipped by its norm
//   m ← β1 m + (1−β1) ĝ, q ← 0, AdamS step on M;   q ← β1 m + q, m ← 0 off it;   mask score |β1 m + q + p of the owner|
//
// In exact arithmetic θ, m and the masks are those of the replicated form, whose mean residual is here mean e + q. One step:
//
//   compute stream         p, pack │ score, wait │ ĝ │ wait │ AdamS, pack θ │ top-k, e, decay │ wait │ unpack θ
//   communication stream           └ reduce-scatter ┘   └ norm┘             └ all-gather of θ on M ┘└ all-gather of the new mask …
//
// The mask's gather is queued behind the parameters, so nothing of this step waits for it (but with mask_delay 0). Other ranks'
// coordinates decay by (1−ηλ) from this rank's own copy of θ: no dense vector is ever gathered. Nothing of the state changes
// before the norm has arrived and says that every rank's gradient was finite. With offload = replica these coordinates come to the
// device once, for decay and new values, when the latter are there.
//
// With payload = bf16 or fp8 an all-to-all of codes takes the place of the reduce-scatter (CodedScatter): owners add them in fp32,
// e gets back on the mask what they lose, and the new values of θ travel in fp32. A number that is not finite shows in Σ p².
//
// Memory of a rank of N beside θ and g, in bytes: 4 (2 W + 4 W/N) and the masks; replicated form: 12 W and the masks. More: codes
// 4 W and their records, ages 2 W/N (replicated: 2 W), blocks 4 each. Offloading moves 4 W of e, and of θ, to the host.
#pragma once

#include <optional>

#include "methods/extensions.hpp"
#include "methods/form.hpp"
#include "methods/mask_schedule.hpp"
#include "scape/coded_mean.hpp"

namespace scape {

class ShardedScape final : public ScapeForm {
 public:
  ShardedScape(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context);
  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  /// The candidates are p, of which those on the mask were sent.
  [[nodiscard]] StepView inspect(const StepContext& context) const override {
    return {.mask = masks_.last().words, .candidate = context.grads, .residual = e_.span()};
  }
  /// With k coordinates on the mask and F = (N−1)/N: payload F·4k (reduce-scatter; in codes F·R, R the records of every owner's
  /// part) or 2F·4k (all-reduce), parameters F·4k, the two sums behind the norm and those of the blocks 2F·8 (2 + blocks), and the
  /// mask made in this step. A refused step sends no parameters, and no mask that could wait.
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;
  [[nodiscard]] const MaskSchedule& masks() const override { return masks_; }

 private:
  [[nodiscard]] MaskView in_shard(const MaskView& mask, std::int64_t count, const Stream& stream);
  void score(const StepContext& context);
  void update_shard(const StepContext& context, const AdamStep& step, Span<const float> gradient, const MaskView& mask,
                    Span<float> values);
  double update_residual(const StepContext& context, const AdamStep& step, const MaskView& mask);
  void decay_other_shards(Range part, Span<float> theta, const AdamStep& step, const Stream& stream) const;
  void update_other_shards(const StepContext& context, const AdamStep& step, const MaskView& mask, Span<const float> values);
  [[nodiscard]] Staging::Vector residual(Staging::Use use) const { return {e_.span(), options_.offload != Offload::none, use}; }

  ScapeOptions options_;
  CommonOptions common_;
  ParameterLayout layout_;
  int rank_;
  int ranks_;
  Range shard_;  // coordinates whose m this rank holds, and whose part of a mask it chooses
  MaskSchedule masks_;
  Extensions extensions_;
  OffloadableVector e_;  // [W] residual of this rank
  Staging staging_;
  Buffer<float> m_;                    // [shard] first moment, 0 off the mask
  Buffer<float> q_;                    // [shard] carry, 0 on the mask
  Buffer<float> packed_;               // [W] on the mask: p of this rank, then θ of all
  Buffer<float> received_;             // [shard] on the mask: Σ p, then ĝ
  Buffer<float> score_;                // [shard] β1 m + q + p
  Buffer<std::int64_t> offsets_;       // [blocks of the shard] index of the mask in use
  Buffer<double> sums_;                // [4 + blocks]
  Buffer<float> means_;                // [blocks]
  std::int64_t refused_step_ = 0;      // the caller's number of the last step that was refused: it sent no parameters
  std::optional<CodedScatter> coded_;  // unless the payload is fp32
  Buffer<float> lost_;                 // [W] on the mask: what the codes lost
};

}  // namespace scape
