// Inputs for tests of kernels: deterministic vectors, and a step in which every number matters.
#pragma once

#include <vector>

#include "scape/kernels.hpp"
#include "scape/rng.hpp"

namespace scape::testing {

/// `size` normal numbers times `scale`; equal arguments give equal numbers on every rank.
inline std::vector<float> normal_vector(std::int64_t size, std::uint64_t seed, std::uint64_t stream = 0, float scale = 1) {
  Rng rng(seed, stream);
  std::vector<float> x(static_cast<std::size_t>(size));
  for (float& value : x) value = scale * rng.normal();
  return x;
}

/// No scale is 1 or a power of 2, so that a forgotten one and a product rounded differently both show.
constexpr AdamStep example_step{.beta1 = 0.9F,
                                .beta2 = 0.95F,
                                .epsilon = 1e-8F,
                                .learning_rate = 0.01F,
                                .weight_decay = 0.1F,
                                .gradient_scale = 0.7F,
                                .m_scale = 1.3F,
                                .v_scale = 1.7F,
                                .previous_scale = 1.1F,
                                .residual_scale = 0.9F};

}  // namespace scape::testing
