// 1-bit Adam (Tang et al. 2021, arXiv 2102.02888): Adam with dense gradients for a warm-up of Tw steps; then the second moment v is
// frozen and only the signs of the first moment are sent, with error feedback on both ends of a two-phase mean:
//
//   rank i:  c = β1 m + (1−β1) g_i + e_i;          sends C(c), keeps e_i ← c − C(c)
//   owner:   b = (1/N) Σ_i C(c) + s on its shard;  sends C(b), keeps s ← b − C(b)
//   all:     m ← C(b);   θ ← θ − η ( m̂ / (√v̂ + ε) + λ θ ),  v̂ = v/(1−β2^Tw),  m̂ = m/(1−β1^t)
//   C(x) = sign(x) · ‖x‖₂/√n on each piece of n coordinates, a piece being a tensor's part in one owner's shard
//
// A sign cannot say zero. A coordinate whose gradient was zero throughout the warm-up has v = 0 and no scale of its own: it is
// left out of C and does not move any more. Clipping is by the norm of the mean gradient in the warm-up, later by each rank's own.
// Bytes: 2F·4W in the warm-up, then 2F·R with R = Σ over pieces (4 + ⌈n/8⌉), F = (N−1)/N. Runs on the CPU.
#pragma once

#include <vector>

#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"

namespace scape {

class OneBitAdam final : public Optimizer {
 public:
  struct Options {
    double warmup_fraction = 0.2;  // Tw as a fraction of the run

    void declare(OptionTable& table);
  };

  OneBitAdam(const Options& options, const CommonOptions& common, const MethodContext& context);

  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;

 private:
  // A tensor's part in a shard, and where its record is: a scale, then a bit per coordinate.
  struct Piece {
    Range range;
    std::int64_t record;  // in bytes, from the shard's first
  };
  struct Shard {
    Range range;
    std::vector<Piece> pieces;
    std::int64_t first_record = 0;  // in bytes, in the records of all shards
    std::int64_t bytes = 0;
  };
  [[nodiscard]] StepResult dense_step(const StepContext& context);
  [[nodiscard]] StepResult compressed_step(const StepContext& context);
  void encode(const Shard& shard, float* values, std::uint8_t* records) const;
  void add_decoded(const Shard& shard, const std::uint8_t* records, float* values) const;
  void mean_of_shard();
  void update(const StepContext& context);

  CommonOptions common_;
  const ParameterLayout& layout_;
  int ranks_;
  std::int64_t warmup_steps_;
  const UpdateKernels& update_;
  std::vector<Shard> shards_;        // of all ranks
  Shard mine_;                       // what this rank averages
  std::vector<std::int64_t> bytes_;  // of every shard's records

  Buffer<float> m_;                // [W]
  Buffer<float> v_;                // [W]
  Buffer<float> error_;            // e [W]
  Buffer<float> shard_error_;      // s [shard]
  Buffer<float> mean_;             // b, then the next s [shard]
  Buffer<float> next_m_;           // [W]
  Buffer<std::uint8_t> records_;   // of all coordinates
  Buffer<std::uint8_t> received_;  // [N] of this rank's shard
  Buffer<std::int64_t> accepted_;  // [1] steps so far
  Buffer<double> squares_;         // [1]
};

}  // namespace scape
