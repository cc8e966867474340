// One formula for all elements of some vectors, four neighbours per thread at a time: 16-byte accesses where the vectors allow
// it, which all of these kernels live on, for they do little but move memory.
#pragma once

#include <cstdint>

#include "cuda/block.cuh"

namespace scape::cuda {

inline constexpr std::int64_t quad_size = 4;

struct alignas(16) Quad {
  float at[quad_size];
};

__device__ inline Quad load(const float* from) {
  return *reinterpret_cast<const Quad*>(from);
}
__device__ inline void store(float* to, const Quad& quad) {
  *reinterpret_cast<Quad*>(to) = quad;
}
__device__ inline void store(const float*, const Quad&) {}  // vectors that are only read

/// Floats from the last 16-byte boundary to `data`.
__device__ inline std::int64_t misalignment(const float* data) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data) / sizeof(float) % quad_size);
}

/// formula(a[j], b[j], …) for j in [0, n), references to float or const float. A thread takes the elements that lie in
/// [4q − lead, 4q − lead + 4). With lead = misalignment(a) vectors that are equally misaligned move by quads; with lead = 0
/// the thread of an element does not depend on where the vectors lie, which sums need for their fixed order.
template <class Thread, class Formula, class... Float>
__device__ void elementwise(const Thread& t, std::int64_t n, std::int64_t lead, const Formula& formula, Float*... vector) {
  const bool wide = ((misalignment(vector) == lead) && ...);
  for (std::int64_t first = global_index(t) * quad_size - lead; first < n; first += global_threads(t) * quad_size) {
    if (wide && first >= 0 && first + quad_size <= n) {
      [&](auto... quad) {
        for (std::int64_t i = 0; i < quad_size; ++i) formula(quad.at[i]...);
        (store(vector + first, quad), ...);
      }(load(vector + first)...);
    } else {
      for (std::int64_t j = first < 0 ? 0 : first; j < first + quad_size && j < n; ++j) formula(vector[j]...);
    }
  }
}

/// Blocks for elementwise() with any lead, one quad a thread.
[[nodiscard]] constexpr std::int64_t element_blocks(std::int64_t n) {
  return n == 0 ? 0 : pieces(n + quad_size - 1, quad_size * block_threads);
}

}  // namespace scape::cuda
