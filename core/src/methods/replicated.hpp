// SCAPE with θ and m on every rank (formulas in scape/scape.hpp). The order of work of one step:
//
//   compute stream         c, pack │ top-k of |c| for a later step │ wait payload │ recover ĝ, AdamS, new residual
//   communication stream           └ all-reduce of the payload ┘└ all-gather of the new mask … (next step) ┘
//
// With overlap = bucketed the mask, known since mask_delay ≥ 1 steps ago, lets a bucket's c be made and its part of the payload
// leave while the backward pass goes on; step() sends the rest. Every coordinate gets the same numbers in whatever bucket it lies.
// Only the all-reduce may add the ranks' values in another order in a message of another size: not on one or two ranks, where runs
// with and without buckets are equal bit for bit; on more, to rounding.
//
// With payload = bf16 or fp8 the flag and the values take the two phases of CodedMean instead, the middle of it too on the
// communication stream. A flag of ∞ makes its block NaN, and so the mean's on every rank.
//
// Nothing of the state changes before the payload has arrived and says that every rank's gradient was finite: c lives in the
// gradient buffer until then, so a refused step leaves θ, m, e and the masks as they were.
#pragma once

#include <optional>

#include "methods/extensions.hpp"
#include "methods/form.hpp"
#include "methods/mask_schedule.hpp"
#include "methods/offload.hpp"
#include "scape/buckets.hpp"
#include "scape/coded_mean.hpp"

namespace scape {

class ReplicatedScape final : public ScapeForm {
 public:
  ReplicatedScape(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context);
  void gradients_ready(const StepContext& context, Range range) override;
  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] StepView inspect(const StepContext& context) const override {
    return {.mask = masks_.last().words, .candidate = context.grads, .residual = e_.span()};
  }
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;
  [[nodiscard]] const MaskSchedule& masks() const override { return masks_; }

 private:
  void use_mask(const StepContext& context);
  [[nodiscard]] std::int64_t place_of(std::int64_t j) const;
  void make_candidate(const StepContext& context, Range range);
  void send(const StepContext& context, Range range, bool with_head);
  void send_rest(const StepContext& context);
  void exchange(const StepContext& context, Span<float> part);
  void receive_coded(const StepContext& context);
  void apply(const StepContext& context, const AdamStep& step, Span<const float> lost);
  [[nodiscard]] double squares_off_mask(const Stream& stream);

  // The payload: with normaliser = block the blocks' mean squares, the flag "a gradient is not finite", then the k values of c on
  // the mask, from a cache line on.
  [[nodiscard]] Span<float> means() const { return payload_.span().subspan(values_begin_ - head(), head() - 1); }
  [[nodiscard]] Span<float> flag() const { return payload_.span().subspan(values_begin_ - 1, 1); }
  [[nodiscard]] Span<float> flag_and_values() const { return payload_.span().subspan(values_begin_ - 1, mask_.count + 1); }
  [[nodiscard]] Span<float> values() const { return payload_.span().subspan(values_begin_, mask_.count); }
  [[nodiscard]] std::int64_t head() const { return extensions_.blocks() + 1; }
  [[nodiscard]] Staging::Vector residual(Staging::Use use) const { return {e_.span(), options_.offload != Offload::none, use}; }

  ScapeOptions options_;
  CommonOptions common_;
  int ranks_;
  MaskSchedule masks_;
  Extensions extensions_;
  Buckets buckets_;
  Buffer<float> m_;      // [W] first moment, 0 off the mask
  OffloadableVector e_;  // [W] residual of this rank
  Staging staging_;
  std::int64_t values_begin_;                  // a multiple of 16
  Buffer<float> payload_;                      // [values_begin_ + W]
  Buffer<double> squares_;                     // [blocks]
  Buffer<double> candidate_sums_, sent_sums_;  // Σ c², and that on the mask, of each bucket of this step
  Buffer<double> sum_;                         // [1]
  std::optional<CodedMean> coded_;             // unless the payload is fp32
  Buffer<float> lost_;                         // [W + 1] what the coding of flag and values lost
  Buffer<float> lost_of_shard_;                // and that of the mean, on this rank's shard
  Stream index_stream_;                        // for reading the mask's index
  Event indexed_;
  Event arrived_;
  MaskView mask_;          // of this step
  std::int64_t made_ = 0;  // buckets of this step whose c is made
  std::int64_t sent_ = 0;  // and whose values are on their way
};

}  // namespace scape
