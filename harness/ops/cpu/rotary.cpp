// Rotary position embedding on the CPU.
#include "ops/rotary.hpp"

#include <cmath>

#include "ops/cpu/loops.hpp"

namespace scape::ops {

namespace {

// Turns every pair by ±angle.
void turn(float* x, const float* cosine, const float* sine, const RotaryShape& shape, float direction) {
  const std::int64_t half = shape.head_size / 2;
  for_rows(shape.sequences * shape.length, shape.heads * shape.head_size, [=](std::int64_t token) {
    const float* c = cosine + token % shape.length * half;
    const float* s = sine + token % shape.length * half;
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      float* first = x + token * shape.stride + head * shape.head_size;
      float* second = first + half;
#pragma omp simd
      for (std::int64_t i = 0; i < half; ++i) {
        const float a = first[i];
        const float b = second[i];
        first[i] = a * c[i] - b * (direction * s[i]);
        second[i] = b * c[i] + a * (direction * s[i]);
      }
    }
  });
}

}  // namespace

void rotary_table(Span<float> cosine, Span<float> sine, std::int64_t positions, std::int64_t head_size, double base) {
  float* c = cosine.host().data();
  float* s = sine.host().data();
  const std::int64_t half = head_size / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
    for (std::int64_t p = 0; p < positions; ++p) {
      c[p * half + i] = static_cast<float>(std::cos(static_cast<double>(p) * frequency));
      s[p * half + i] = static_cast<float>(std::sin(static_cast<double>(p) * frequency));
    }
  }
}

void rotary_forward(Span<float> x, Span<const float> cosine, Span<const float> sine, RotaryShape shape, const Stream& stream) {
  stream.enqueue([=, x = x.host().data(), c = cosine.host().data(), s = sine.host().data()] { turn(x, c, s, shape, 1); });
}

void rotary_backward(Span<float> dx, Span<const float> cosine, Span<const float> sine, RotaryShape shape, const Stream& stream) {
  stream.enqueue([=, dx = dx.host().data(), c = cosine.host().data(), s = sine.host().data()] { turn(dx, c, s, shape, -1); });
}

}  // namespace scape::ops
