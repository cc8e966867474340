// Dense mean of the gradients: one all-reduce of all coordinates, or one per bucket while the backward pass still runs.
#pragma once

#include "scape/buckets.hpp"
#include "scape/optimizer.hpp"

namespace scape {

class Dense final : public GradientSync {
 public:
  using Options = BucketOptions;
  Dense(const Options& options, const CommonOptions& common, const MethodContext& context);
  void gradients_ready(const StepContext& context, Range range) override;
  [[nodiscard]] bool reduce(const StepContext& context) override;
  /// All-reduce of W floats: 2 (N−1)/N · 4 W.
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;

 private:
  void send(const StepContext& context, Range range);

  Options options_;
  std::int64_t size_;
  int ranks_;
  Buckets buckets_;
  Event ready_;  // gradients of a bucket are final
  Event done_;   // the last bucket has arrived
};

}  // namespace scape
