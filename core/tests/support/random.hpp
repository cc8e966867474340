// Deterministic vectors for tests.
#pragma once

#include <vector>

#include "scape/rng.hpp"

namespace scape::testing {

/// `size` normal numbers times `scale`; equal arguments give equal numbers on every rank.
inline std::vector<float> normal_vector(std::int64_t size, std::uint64_t seed, std::uint64_t stream = 0, float scale = 1) {
  Rng rng(seed, stream);
  std::vector<float> x(static_cast<std::size_t>(size));
  for (float& value : x) value = scale * rng.normal();
  return x;
}

}  // namespace scape::testing
