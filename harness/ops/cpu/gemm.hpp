// Batched matrix products on the CPU: oneDNN's matmul primitive behind one function over strided operands.
#pragma once

#include <cstdint>

#include "ops/bf16.hpp"

namespace scape::ops {

/// Element (b, i, j) of a batch of matrices is data[b·batch + i·row + j·column]; row or column is 1.
template <class T>
struct Strided {
  T* data;
  std::int64_t row;
  std::int64_t column;
  std::int64_t batch = 0;
};

struct GemmShape {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  std::int64_t batch = 1;
};

/// c = a b + bias, or c += a b + bias, for each matrix of the batch.   a [m, k], b [k, n], c [m, n], bias [n] or null; T is float
/// or Bf16, sums are fp32.
template <class T>
void gemm(Strided<float> c, Strided<const T> a, Strided<const T> b, const float* bias, GemmShape shape, bool add);

/// False if oneDNN has no such products for this processor.
template <class T>
[[nodiscard]] bool gemm_is_available();

}  // namespace scape::ops
