// Groups of eight neighbouring elements, on which the threads of kernels for coded blocks work.
#pragma once

#include <cstdint>

#include "cuda/elementwise.cuh"

namespace scape::cuda {

inline constexpr int group_size = 8;

struct Group {
  float at[group_size];
};

/// x[first …] of x [n]; zeros behind the end.
__device__ inline Group load_group(const float* x, std::int64_t first, std::int64_t n) {
  Group group;
  if (misalignment(x) == 0 && first + group_size <= n) {
    const Quad low = load(x + first);
    const Quad high = load(x + first + quad_size);
    for (int i = 0; i < group_size; ++i) group.at[i] = i < quad_size ? low.at[i] : high.at[i - quad_size];
  } else {
    for (int i = 0; i < group_size; ++i) group.at[i] = first + i < n ? x[first + i] : 0;
  }
  return group;
}
__device__ inline void store_group(float* x, std::int64_t first, std::int64_t n, const Group& group) {
  if (misalignment(x) == 0 && first + group_size <= n) {
    Quad low;
    Quad high;
    for (int i = 0; i < group_size; ++i) (i < quad_size ? low.at[i] : high.at[i - quad_size]) = group.at[i];
    store(x + first, low);
    store(x + first + quad_size, high);
  } else {
    for (int i = 0; i < group_size && first + i < n; ++i) x[first + i] = group.at[i];
  }
}

/// The largest magnitude (see there) of x[begin … end), the same in all threads of the warp.
template <class Thread>
__device__ std::uint32_t largest_magnitude(const Thread& t, const float* x, std::int64_t begin, std::int64_t end) {
  std::uint32_t largest = 0;
  for (std::int64_t first = begin + t.index() % warp_threads * group_size; first < end; first += warp_threads * group_size) {
    for (const float x_j : load_group(x, first, end).at) {
      const std::uint32_t bits = magnitude(t, x_j);
      if (bits > largest) largest = bits;
    }
  }
  for (int distance = warp_threads / 2; distance > 0; distance /= 2) {
    const std::uint32_t other = t.shuffle_xor(largest, distance);
    if (other > largest) largest = other;
  }
  return largest;
}

}  // namespace scape::cuda
