// Dense training with the moments of each coordinate on one rank (ZeRO-1, Rajbhandari et al. 2020): the sharded dense reference.
//
//   reduce-scatter of g → the owner's mean gradient │ its norm, one scalar │ AdamW or AdamS on the shard │ all-gather of θ
//
// The gradients leave at once or, bucket by bucket, while the backward pass still runs. Both ways can be coded (bf16, or integers
// of 8 or 4 bits with a scale for 256 values: QuantFormat in kernels.hpp). With Q(x) the code of x read back:
//
//   payload             all-to-all of Q(g), added in fp32 by the owner: the first phase of qgZ in ZeRO++ (arXiv 2306.10209)
//   parameter_payload   the owner updates a copy θ* in fp32 that it alone has; all ranks compute with the same θ:
//     values            all-gather of Q(θ*);      θ ← Q(θ*)            qwZ of ZeRO++
//     differences       all-gather of Q(θ* − θ);  θ ← θ + Q(θ* − θ)    as in SDP4Bit (Jia et al. 2024, arXiv 2410.15526)
//
// Of differences, what rounding loses stays in θ* − θ for the next step. Of integer values, a coordinate whose θ* rests may still
// move: its block's scale does.
//
// Memory of a rank of N beside θ and g, in bytes: 4 · 3 W/N with AdamW, 4 · 2 W/N with AdamS; 4 W/N for θ*, and codes.
#pragma once

#include <optional>
#include <vector>

#include "scape/buckets.hpp"
#include "scape/coded_mean.hpp"
#include "scape/optimizer.hpp"
#include "scape/scape.hpp"

namespace scape {

class Zero1 final : public Optimizer {
 public:
  enum class Rule { adamw, adams };
  enum class Payload { fp32, bf16, int8, int4 };
  enum class Coded { values, differences };
  struct Options {
    Rule rule = Rule::adamw;
    BiasCorrection bias_correction = BiasCorrection::scape;  // of AdamS
    BucketOptions buckets;
    Payload payload = Payload::fp32;  // of gradients
    Payload parameter_payload = Payload::fp32;
    Coded parameter_coding = Coded::values;
    void declare(OptionTable& table);
  };
  Zero1(const Options& options, const CommonOptions& common, const MethodContext& context);
  void gradients_ready(const StepContext& context, Range range) override;
  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  /// With F = (N−1)/N: F·(gradients + parameters) and a sum of 8 bytes 2F·8. Gradients and parameters are 4W each, or, coded, the
  /// sum of quant_bytes(n) over the shards n; for gradients over the shards' parts of the last step's buckets.
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;

 private:
  [[nodiscard]] Range owned(int rank) const { return owned_range(layout_.size(), rank, ranks_); }
  void send(const StepContext& context, Range range);
  void gather_parameters(const StepContext& context);
  void gather_codes(const StepContext& context);
  void update_shard(const StepContext& context, double norm);

  Options options_;
  CommonOptions common_;
  ParameterLayout layout_;
  int rank_;
  int ranks_;
  Range shard_;                       // coordinates whose moments this rank holds
  std::vector<std::int64_t> counts_;  // of the ranks' shards
  Buckets buckets_;
  std::optional<CodedScatter> coded_;            // of gradients, unless they travel in fp32
  double sent_bytes_ = 0, sending_bytes_ = 0;    // expected of its last step, and so far in this one
  std::optional<QuantFormat> parameter_format_;  // unless parameters travel in fp32
  std::vector<std::int64_t> parameter_bytes_;    // of the codes of the ranks' shards
  Buffer<std::uint8_t> parameters_;              // these codes
  Buffer<float> master_;                         // θ* [shard] if parameters are coded
  Buffer<float> mean_;                           // [shard] mean gradient, then what parameters are coded from
  Buffer<float> m_;                              // [shard]
  Buffer<float> v_;                              // [shard], empty with AdamS
  Buffer<double> sum_;                           // [1]
  Buffer<std::int64_t> steps_;                   // [1] on the host
};

}  // namespace scape
