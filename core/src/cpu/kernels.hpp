// The CPU's kernels: plain loops that vectorise, and the oracle for every other device.
#pragma once

#include "scape/kernels.hpp"

namespace scape::detail {

[[nodiscard]] const UpdateKernels& cpu_update_kernels();
[[nodiscard]] const SparseKernels& cpu_sparse_kernels();
[[nodiscard]] const QuantKernels& cpu_quant_kernels();

/// Σ x² in double with a fixed order of additions: sixteen interleaved partial sums, then those in order.
[[nodiscard]] double sum_of_squares(const float* x, std::int64_t n);

/// AdamS for one coordinate (formula in scape/kernels.hpp). `keep` is 1 − ηλ, `g` the scaled gradient.
inline void adams_coordinate(float& theta, float& m, float g, const AdamStep& s, float keep) {
  const float previous = s.previous_scale * m;
  const float v = s.beta2 * (previous * previous) + (1 - s.beta2) * (g * g);
  m = s.beta1 * m + (1 - s.beta1) * g;
  theta = keep * theta - s.learning_rate * (s.m_scale * m / (__builtin_sqrtf(s.v_scale * v) + s.epsilon));
}

}  // namespace scape::detail
