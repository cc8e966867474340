// GELU and SwiGLU on the CPU.
#include "ops/activation.hpp"

#include "ops/cpu/loops.hpp"

namespace scape::ops {

namespace {

constexpr float gelu_linear = 1.5957691216057308F;  // 2√(2/π)
constexpr float gelu_cubic = 0.07135481282713F;     // 0.044715 · 2√(2/π)

}  // namespace

void gelu_forward(Span<float> y, Span<const float> x, const Stream& stream) {
  stream.enqueue([y = y.host().data(), x = x.host().data(), count = x.size()] {
    for_elements(count, [=](std::int64_t i) {
      const float v = x[i];
      y[i] = v * sigmoid(v * (gelu_linear + gelu_cubic * v * v));
    });
  });
}

void gelu_backward(Span<float> dx, Span<const float> dy, Span<const float> x, const Stream& stream) {
  stream.enqueue([dx = dx.host().data(), dy = dy.host().data(), x = x.host().data(), count = x.size()] {
    for_elements(count, [=](std::int64_t i) {
      const float v = x[i];
      const float s = sigmoid(v * (gelu_linear + gelu_cubic * v * v));
      dx[i] = dy[i] * (s + v * s * (1.0F - s) * (gelu_linear + 3.0F * gelu_cubic * v * v));
    });
  });
}

void swiglu_forward(Span<float> y, Span<const float> x, std::int64_t rows, std::int64_t width, const Stream& stream) {
  stream.enqueue([=, y = y.host().data(), x = x.host().data()] {
    for_rows(rows, width, [=](std::int64_t row) {
      const float* gate = x + row * 2 * width;
      const float* up = gate + width;
      float* out = y + row * width;
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
    });
  });
}

void swiglu_backward(Span<float> dx, Span<const float> dy, Span<const float> x, std::int64_t rows, std::int64_t width,
                     const Stream& stream) {
  stream.enqueue([=, dx = dx.host().data(), dy = dy.host().data(), x = x.host().data()] {
    for_rows(rows, width, [=](std::int64_t row) {
      const float* gate = x + row * 2 * width;
      const float* up = gate + width;
      const float* d = dy + row * width;
      float* dgate = dx + row * 2 * width;
      float* dup = dgate + width;
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) {
        const float s = sigmoid(gate[i]);
        dgate[i] = d[i] * up[i] * s * (1.0F + gate[i] * (1.0F - s));
        dup[i] = d[i] * gate[i] * s;
      }
    });
  });
}

}  // namespace scape::ops
