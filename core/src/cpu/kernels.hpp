// The CPU's kernels: plain loops that vectorise, and the oracle for every other device.
#pragma once

#include <array>

#include "scape/kernels.hpp"

namespace scape::detail {

[[nodiscard]] const UpdateKernels& cpu_update_kernels();
[[nodiscard]] const SparseKernels& cpu_sparse_kernels();
[[nodiscard]] const QuantKernels& cpu_quant_kernels();

/// Σ f(i)² over 0 ≤ i < n in double with a fixed order of additions: sixteen interleaved partial sums, then those in order. `f`
/// may write its value to memory that it does not read for other i.
template <class F>
double sum_of_squares(std::int64_t n, F f) {
  constexpr std::int64_t lanes = 16;
  std::array<double, lanes> sums{};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
#pragma GCC ivdep
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const double value = f(i + lane);
      sums[static_cast<std::size_t>(lane)] += value * value;
    }
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (; i < n; ++i) {
    const double value = f(i);
    total += value * value;
  }
  return total;
}

/// AdamS for one coordinate (formula in scape/kernels.hpp). `keep` is 1 − ηλ, `g` the scaled gradient.
inline void adams_coordinate(float& theta, float& m, float g, const AdamStep& s, float keep) {
  const float previous = s.previous_scale * m;
  const float v = s.beta2 * (previous * previous) + (1 - s.beta2) * (g * g);
  m = s.beta1 * m + (1 - s.beta1) * g;
  theta = keep * theta - s.learning_rate * (s.m_scale * m / (__builtin_sqrtf(s.v_scale * v) + s.epsilon));
}

/// The same for a gradient that `steps` ≥ 1 steps have left, of which the coordinate moves `factor` (ApplyExtension).
inline void adams_backlog(float& theta, float& m, float g, AdamStep s, float keep, float steps, float factor) {
  const float previous = m;
  s.learning_rate *= factor;
  adams_coordinate(theta, m, g / steps, s, keep);
  m = s.beta1 * previous + (1 - s.beta1) * g;
}

/// And with the second moment v given.
inline void adams_with_v(float& theta, float& m, float g, float v, const AdamStep& s, float keep) {
  m = s.beta1 * m + (1 - s.beta1) * g;
  theta = keep * theta - s.learning_rate * (s.m_scale * m / (__builtin_sqrtf(s.v_scale * v) + s.epsilon));
}

}  // namespace scape::detail
