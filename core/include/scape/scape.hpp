// SCAPE (Zheng, Chen, Xie, Zhang; arXiv 2607.01678): a distributed optimizer that communicates only the top-k of AdamS's first
// moment. Replicated form: every rank holds θ and m; each rank keeps what it did not send in a residual e.
//
//   c = β1 m + (1−β1) g + e        on this rank
//   b = mean over the ranks of c on the mask M; e keeps c off the mask and is 0 on it
//   ĝ = (b − β1 m)/(1−β1) on M, clipped by its global norm;   m ← β1 m + (1−β1) ĝ on M, 0 off it
//   AdamS step with m and ĝ on M; off M only weight decay
//   the mask for step t + mask_delay is the top-k of |c| at step t, each coordinate chosen by the rank that owns it
//
// The payload is one all-reduce a step, or one for each bucket of gradients while the backward pass still runs. The new mask is
// gathered on the communication stream while later steps compute.
//
// Sharded form (form = sharded): m lies with the coordinate's owner only, and ranks send p = (1−β1) g + e; methods/sharded.hpp has
// the formulas. The masks are those of the replicated form, θ and m but for rounding.
#pragma once

#include <memory>
#include <vector>

#include "scape/buckets.hpp"
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

/// By which of its owner's numbers a coordinate is chosen for a mask (paper: candidate).
enum class MaskStatistic {
  candidate,  ///< |c|
  gradient,   ///< |g| as it enters c
  update,     ///< |m̂/(√v̂ + ε)| with m = c and v = β2 m_{t−1}² + (1−β2) g², whatever the normaliser
  momentum,   ///< |m_{t−1}|
  random,     ///< a control: uniform, from the seed and the step
};
/// What competes for a place on a mask of density d, k = max(1, ⌊d·n⌋) places for n coordinates (paper: tensor).
enum class MaskScope {
  tensor,  ///< what a rank owns of one matrix
  shard,   ///< all matrix coordinates that a rank owns
  global,  ///< all matrix coordinates; the lower coordinate wins ties
};
/// Who owns what: which rank chooses which coordinates (paper: ranges).
enum class MaskOwner {
  ranges,   ///< owned_range(): a tensor may have several owners
  tensors,  ///< whole tensors, the largest first, each to the rank that has least
};
/// How a mask travels (paper: bitmap). Sizes and formats in src/methods/mask_coding.hpp.
enum class MaskCoding { bitmap, index32, index16, elias_fano, automatic };
/// Until when a mask that is on its way is left alone (paper: before_use).
enum class MaskWait {
  before_use,      ///< the step that uses it
  before_forward,  ///< the end of the step that made it
};

/// What becomes of c off the mask.
enum class ResidualPolicy {
  keep,  ///< e ← c: error feedback, nothing is lost
  decay,  ///< e ← β1 c. m is 0 there, so e_t = β1 (e_{t−1} + (1−β1) g): β1 times the first moment of the rank's own gradient since
          ///< the coordinate was last sent, and β1 times c when it leaves the mask
  none,  ///< e ← 0: what is not sent is lost
};

/// Which gradient clip_norm limits.
enum class ClipPolicy {
  recovered,  ///< ĝ before it enters m, by its global norm over the mask
  local,      ///< each rank's own g before it enters c, by its own norm, which StepResult::gradient_norm then is; ĝ is not clipped
};

/// Where m lies.
enum class ScapeFormKind {
  replicated,  ///< on every rank
  sharded,     ///< each coordinate's m on its owner (ZeRO-1; the paper's "dist-opt")
};

/// How payloads reach the owners in the sharded form (paper: all_reduce, of which an owner needs but its own part).
enum class ShardedPayload { reduce_scatter, all_reduce };

/// How the values of the payload travel. fp32: all-reduce or reduce-scatter. The others: codes of 256 values (QuantCode in
/// kernels.hpp), of which every rank returns x − Q(x) to its residual on the mask; in the two-phase mean of coded_mean.hpp, where
/// the owner of a shard of the payload adds N times what the second coding lost, or in the sharded form in its first phase alone.
/// ResidualPolicy::decay leaves these as they are, none drops them. (bf16, fp8: ours.)
enum class PayloadType { fp32, bf16, fp8 };

/// Ours, not the paper's: how far a coordinate moves that was not on the last used mask, so that ĝ is the sum of about a gradients.
/// With a = steps since it was last on a used mask (1: on the last one; refused steps do not count) and b = min(a, backlog_cap):
///   u = AdamS's m̂/(√v̂ + ε) for the gradient ĝ/b, in m and in v        θ ← θ − η (f u + λ θ),  f = b (linear) or √b (sqrt)
/// and m keeps (1−β1) ĝ. m_{t−1} is 0 wherever a > 1, so |u| = (1−β1)/√(1−β2) before bias correction, and the coordinate moves f
/// times as far as without scaling. b is 1 where a is 1, and everywhere with backlog_cap = 1: plain AdamS, bit for bit.
enum class BacklogScaling { none, linear, sqrt };

/// What m̂ is divided by.
enum class Normaliser {
  coordinate,  ///< √v̂ + ε with AdamS's v of each coordinate
  /// Ours, not the paper's: √V̂_B + 1e-12, the same in a block B (a row of a matrix in its last dimension, or a whole vector), so
  /// that a backlog keeps its size:  V_B ← β2 V_B + (1−β2) s_B,  s_B = (1/N) · mean over the ranks of the mean of g² in B, with g
  /// as it enters c. Clipping ĝ does not reach V, so that with norms far above clip_norm steps are small; clip = local clips both.
  /// V̂_B = V_B/(1−β2^t), or V_B with bias_correction = none. The mean squares travel with the flag before the payload, a float a
  /// block, or in the sharded form with the sums behind the norm, a double a block.
  block,
};

/// Where vectors lie between steps that are read and written once a step. In host memory they are page-locked, and come to the
/// device through two staging buffers of offload_piece coordinates (for a device that is the CPU: no gain, the same bits).
enum class Offload {
  none,      ///< on the device
  residual,  ///< e in host memory
  replica,   ///< e and the fp32 parameters: StepContext::params must be host memory then, best a PinnedBuffer
};

struct ScapeOptions {
  ScapeFormKind form = ScapeFormKind::replicated;
  ShardedPayload sharded_payload = ShardedPayload::reduce_scatter;
  DensitySchedule density;
  std::int64_t mask_delay = 1;    // steps between making a mask and using it
  std::int64_t mask_refresh = 1;  // steps between new masks
  MaskStatistic mask_statistic = MaskStatistic::candidate;
  MaskScope mask_scope = MaskScope::tensor;
  MaskOwner mask_owner = MaskOwner::ranges;
  MaskCoding mask_coding = MaskCoding::bitmap;
  MaskWait mask_wait = MaskWait::before_use;
  BiasCorrection bias_correction = BiasCorrection::scape;
  ResidualPolicy residual = ResidualPolicy::keep;
  ClipPolicy clip = ClipPolicy::recovered;
  BucketOptions buckets;
  PayloadType payload = PayloadType::fp32;
  BacklogScaling backlog_scaling = BacklogScaling::none;
  double backlog_cap = 20;
  Normaliser normaliser = Normaliser::coordinate;
  Offload offload = Offload::none;
  std::int64_t offload_piece = 4 << 20;  // coordinates, 16 MiB

  void declare(OptionTable& table);
};

class Scape final : public Optimizer {
 public:
  using Options = ScapeOptions;

  Scape(const Options& options, const CommonOptions& common, const MethodContext& context);
  ~Scape() override;

  void gradients_ready(const StepContext& context, Range range) override;
  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] StepView inspect(const StepContext& context) const override;
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;

  /// Number of coordinates on a mask made for density d: as MaskScope says of the matrices, and all of every vector.
  [[nodiscard]] std::int64_t mask_count(double density) const;
  /// The mask that the last step used. For diagnostics and tests.
  [[nodiscard]] MaskView mask() const;

 private:
  std::unique_ptr<class ScapeForm> form_;
};

}  // namespace scape
