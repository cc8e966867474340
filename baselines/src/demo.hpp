// DeMo, decoupled momentum (Peng, Quesnelle, Kingma 2024, arXiv 2411.19870). Momenta stay on their ranks and differ; only their
// strongest frequencies are exchanged. With every tensor cut into chunks of at most C neighbours in its last dimension, T the
// orthonormal DCT-II of a chunk and top the k coefficients of largest magnitude:
//
//   m ← β m + g;   q = top(T m) in every chunk;   m ← m − Tᵀ q
//   θ ← θ − η ( sign( (1/N) Σ over the ranks of Tᵀ q ) + λ θ )
//
// sign(0) = 0, and no chunk reaches beyond a row, so that a row without gradient stays. g is clipped by the rank's own norm.
// All-gather of a float and a byte per coefficient: (N−1)·(4n + 4⌈n/4⌉) bytes for n coefficients. Runs on the CPU.
#pragma once

#include <map>
#include <vector>

#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"

namespace scape {

class Demo final : public Optimizer {
 public:
  struct Options {
    int chunk = 64;         // C
    std::int64_t topk = 1;  // k
    double decay = 0.999;   // β

    void declare(OptionTable& table);
  };

  Demo(const Options& options, const CommonOptions& common, const MethodContext& context);

  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;

 private:
  struct Chunk {
    Range range;
    const float* transform;  // [2][length][length]: row f is the basis vector of frequency f; then the transposed matrix
    std::int64_t first;      // of its coefficients among all
    std::int64_t count;      // of its coefficients
    float decays;            // 1 for a matrix, 0 for a vector
  };
  void extract(const float* momentum);
  void add_decoded(const Chunk& chunk, int rank, float factor, float* x) const;
  void update(const StepContext& context);
  [[nodiscard]] std::int64_t message_bytes() const { return 4 * coefficients_ + (coefficients_ + 3) / 4 * 4; }
  [[nodiscard]] Span<float> values_of(int rank) const;
  [[nodiscard]] std::uint8_t* frequencies_of(int rank) const;

  Options options_;
  CommonOptions common_;
  std::int64_t size_;
  int rank_;
  int ranks_;
  const UpdateKernels& update_;
  std::map<std::int64_t, std::vector<float>> transforms_;  // by length
  std::vector<Chunk> chunks_;
  std::int64_t coefficients_ = 0;

  Buffer<float> momentum_;         // m [W]
  Buffer<std::uint8_t> messages_;  // of every rank: values, then frequencies
  Buffer<double> squares_;         // [N]
};

}  // namespace scape
