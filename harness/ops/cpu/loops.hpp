// What the CPU operators' loops share: rows spread over OpenMP threads so that no result depends on how many there are, vector
// reductions, and an exponential that vectorises (std::exp does not).
#pragma once

#include <bit>
#include <cstdint>

namespace scape::ops {

/// body(row) for every row, on several threads when there is work for them.
template <class Body>
void for_rows(std::int64_t rows, std::int64_t width, const Body& body) {
  [[maybe_unused]] const bool worth_it = rows > 1 && rows * width > (1 << 14);
#pragma omp parallel for schedule(static) if (worth_it)
  for (std::int64_t row = 0; row < rows; ++row) body(row);
}

/// body(i) for every element, vectorised, in blocks that threads share out.
template <class Body>
void for_elements(std::int64_t count, const Body& body) {
  constexpr std::int64_t block = 4096;
  for_rows((count + block - 1) / block, block, [&](std::int64_t b) {
    const std::int64_t end = (b + 1) * block < count ? (b + 1) * block : count;
#pragma omp simd
    for (std::int64_t i = b * block; i < end; ++i) body(i);
  });
}

/// body(begin, end) for blocks of columns that cover [0, width). Sums down a column stay in one thread and in row order.
template <class Body>
void for_column_blocks(std::int64_t rows, std::int64_t width, const Body& body) {
  constexpr std::int64_t block = 128;
  for_rows((width + block - 1) / block, rows * block, [&](std::int64_t i) {
    const std::int64_t begin = i * block;
    body(begin, begin + block < width ? begin + block : width);
  });
}

[[nodiscard]] inline float sum(const float* x, std::int64_t n) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < n; ++i) total += x[i];
  return total;
}

[[nodiscard]] inline float dot(const float* x, const float* y, std::int64_t n) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < n; ++i) total += x[i] * y[i];
  return total;
}

[[nodiscard]] inline float maximum(const float* x, std::int64_t n) {
  float largest = x[0];
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/// eˣ within 2 units in the last place for x in [−87, 88]; beyond, the value at the nearer end. NaN stays NaN.
/// With n = round(x / ln 2) and r = x − n·ln 2 in ±0.35:  eˣ = 2ⁿ · eʳ, eʳ by its Taylor polynomial of degree 7 (error 5e-9).
[[nodiscard]] inline float exponential(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float shift = 0x1.8p23F;  // adding it leaves round(·) in the low mantissa bits
  const float shifted = x * 1.44269504F + shift;
  const float n = shifted - shift;
  const float r = (x - n * 0x1.62e4p-1F) - n * 0x1.7f7d1cp-20F;  // ln 2 in two parts: the first product is exact
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(shifted) << 23));
}

/// σ(x) = 1 / (1 + e⁻ˣ)
[[nodiscard]] inline float sigmoid(float x) {
  return 1.0F / (1.0F + exponential(-x));
}

}  // namespace scape::ops
