// PowerSGD (Vogels, Karimireddy, Jaggi 2019, arXiv 1905.13727): one power iteration per step gives each gradient matrix a factor
// pair of rank r. For a matrix of n × m coordinates, with A = G + E of each rank and the last step's Q [m × r]:
//
//   P = mean of A Q;   P ← orthonormal columns (Gram-Schmidt);   Q ← mean of Aᵀ P;   Ĝ = P Qᵀ;   E ← A − Ĝ
//
// Vectors, and matrices that r (n + m) numbers would not shorten, are sent in full with P. A tensor of more dimensions is a matrix
// of its first one. Two all-reduces: 2F·4(Σ r (n + m) + D) bytes, F = (N−1)/N, D the coordinates sent in full. Runs on the CPU.
#pragma once

#include <vector>

#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"

namespace scape {

class PowerSgd final : public GradientSync {
 public:
  struct Options {
    std::int64_t rank = 4;
    bool warm_start = true;
    bool error_feedback = true;

    void declare(OptionTable& table);
  };

  PowerSgd(const Options& options, const CommonOptions& common, const MethodContext& context);

  [[nodiscard]] bool reduce(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override;
  [[nodiscard]] double density() const override;
  [[nodiscard]] double residual_norm() const override;
  [[nodiscard]] StepView inspect(const StepContext& /*context*/) const override { return {.residual = residual_}; }

 private:
  // A matrix in the flat vector and its factors, stored column after column.
  struct Factors {
    Range range;
    std::int64_t rows, columns, rank;
    std::int64_t p, q;  // first elements in payload_ and q_
  };
  void draw_q(std::int64_t step);
  void project(const float* a);       // P = A Q, and what is sent in full
  void orthonormalise();              // of P
  void project_back(const float* a);  // next Q = Aᵀ P
  void reconstruct(float* a);         // a: A to Ĝ; E
  [[nodiscard]] bool mean(Span<float> data, const StepContext& context);

  Options options_;
  int ranks_;
  std::uint64_t seed_;
  std::int64_t size_;
  std::vector<Factors> factors_;
  std::vector<Range> dense_;
  const UpdateKernels& update_;
  Buffer<float> residual_;  // E [W] with error feedback
  Buffer<float> payload_;   // every P, then the dense ranges
  Buffer<float> q_;         // every Q
  Buffer<float> next_q_;
  Buffer<double> squares_;  // [1]
  Stream stream_;           // of the last step
};

}  // namespace scape
