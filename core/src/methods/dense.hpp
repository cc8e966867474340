// Dense mean of the gradients, at once or bucket by bucket while the backward pass still runs.
//
//   payload = fp32   all-reduce
//   payload = bf16   two-phase mean of CodedMean: codes to the owner of a shard, its sum in fp32, the mean's codes to all. Every
//                    coordinate gets the same numbers in whatever bucket it lies.
#pragma once

#include <optional>

#include "scape/buckets.hpp"
#include "scape/coded_mean.hpp"
#include "scape/optimizer.hpp"
#include "scape/scape.hpp"

namespace scape {

class Dense final : public GradientSync {
 public:
  struct Options {
    BucketOptions buckets;
    PayloadType payload = PayloadType::fp32;  // or bf16
    void declare(OptionTable& table);
  };
  Dense(const Options& options, const CommonOptions& common, const MethodContext& context);
  void gradients_ready(const StepContext& context, Range range) override;
  [[nodiscard]] bool reduce(const StepContext& context) override;
  /// 2 (N−1)/N · 4 W, or with bf16 2 (N−1)/N · 512 ⌈n/256⌉, summed over the buckets n of the last step.
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;

 private:
  void send(const StepContext& context, Range range);
  void exchange_codes(const StepContext& context, Span<float> bucket);

  Options options_;
  std::int64_t size_;
  int ranks_;
  Buckets buckets_;
  std::optional<CodedMean> coded_;  // unless the payload is fp32; on the communication stream only, where buckets take turns
  double coded_bytes_ = 0;          // expected of the last step
  double coded_bytes_so_far_ = 0;
  Event ready_;  // gradients of a bucket are final
  Event done_;   // the last bucket has arrived
};

}  // namespace scape
