// Dense training with the moments of each coordinate on one rank (ZeRO-1, Rajbhandari et al. 2020): the sharded dense reference.
//
//   reduce-scatter of g → the owner's mean gradient │ its norm, one scalar │ AdamW or AdamS on the shard │ all-gather of θ
// The gradients leave at once or, bucket by bucket, while the backward pass still runs.
//
// Memory of a rank of N beside θ and g, in bytes: 4 · 3 W/N with AdamW, 4 · 2 W/N with AdamS.
#pragma once

#include <vector>

#include "scape/buckets.hpp"
#include "scape/optimizer.hpp"
#include "scape/scape.hpp"

namespace scape {

class Zero1 final : public Optimizer {
 public:
  enum class Rule { adamw, adams };
  struct Options {
    Rule rule = Rule::adamw;
    BiasCorrection bias_correction = BiasCorrection::scape;  // of AdamS
    BucketOptions buckets;
    void declare(OptionTable& table);
  };
  Zero1(const Options& options, const CommonOptions& common, const MethodContext& context);
  void gradients_ready(const StepContext& context, Range range) override;
  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  /// With F = (N−1)/N: gradients F·4W, parameters F·4W, and a sum of 8 bytes 2F·8.
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;

 private:
  void send(const StepContext& context, Range range);
  void update_shard(const StepContext& context, double norm);

  Options options_;
  CommonOptions common_;
  ParameterLayout layout_;
  int ranks_;
  Range shard_;                       // coordinates whose moments this rank holds
  std::vector<std::int64_t> counts_;  // of the ranks' shards
  Buckets buckets_;
  Buffer<float> mean_;          // [shard] mean gradient
  Buffer<float> m_;             // [shard]
  Buffer<float> v_;             // [shard], empty with AdamS
  Buffer<double> sum_;          // [1]
  Buffer<std::int64_t> steps_;  // [1] on the host
};

}  // namespace scape
