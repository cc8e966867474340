// Block-wise quantized gradient mean in two phases (ZeRO++ "qgZ": Wang et al. 2023, arXiv 2306.10209; the integer format and its
// rounding are described in scape/kernels.hpp). Shard s of the coordinates, in whole blocks, belongs to rank s of N:
//
//   all-to-all:  rank i sends Q(a_i) of shard s to rank s;         a_i = g_i + r_i,   r_i ← a_i − Q(a_i)
//   rank s:      b = (1/N) Σ_i Q(a_i) in rank order, in fp32, + p;                    p ← b − Q(b)
//   all-gather:  Q(b) of every shard;   g ← Q(b)
//
// The residuals r and p are zero and not kept unless error_feedback is on (both ends, as in Tang et al. 2019, "DoubleSqueeze").
// Each phase moves (N−1)/N · R bytes, R = ⌈W / block⌉ · (4 + block · bits / 8). With 32 bits: the dense all-reduce.
#pragma once

#include <optional>
#include <vector>

#include "scape/coded_mean.hpp"
#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"

namespace scape {

class Quantized final : public GradientSync {
 public:
  enum class Rounding { nearest, stochastic };
  struct Options {
    int bits = 8;  // 32, 8 or 4
    int block = 256;
    Rounding rounding = Rounding::nearest;
    bool error_feedback = false;

    void declare(OptionTable& table);
  };

  Quantized(const Options& options, const CommonOptions& common, const MethodContext& context);

  [[nodiscard]] bool reduce(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;
  [[nodiscard]] double residual_norm() const override;
  [[nodiscard]] StepView inspect(const StepContext& /*context*/) const override { return {.residual = residual_}; }

 private:
  [[nodiscard]] RandomWords random(std::int64_t step, std::uint64_t phase, std::int64_t first) const;
  [[nodiscard]] bool finite(Span<const float> values, const StepContext& context);
  [[nodiscard]] bool reduce_dense(const StepContext& context);

  Options options_;
  int rank_;
  int ranks_;
  std::uint64_t seed_;
  std::int64_t size_;
  Range shard_;  // coordinates whose mean this rank computes
  const UpdateKernels& update_;
  std::optional<CodedMean> mean_;  // unless dense
  Buffer<float> residual_;         // r [W] with error feedback
  Buffer<float> next_residual_;    // r [W] if the step is accepted
  Buffer<float> shard_residual_;   // p of this rank's shard
  Buffer<float> next_shard_residual_;
  Buffer<double> squares_;  // [1]
  Stream stream_;           // of the last step
};

}  // namespace scape
