// Layer and root-mean-square normalisation on the CPU.
#include "ops/norm.hpp"

#include <cmath>

#include "ops/cpu/loops.hpp"

namespace scape::ops {

void norm_forward(Span<float> y, Span<float> normalised, Span<float> inverse, Span<const float> x, Span<const float> scale,
                  Span<const float> shift, NormShape shape, const Stream& stream) {
  stream.enqueue([=, y = y.host().data(), normalised = normalised.host().data(), inverse = inverse.host().data(),
                  x = x.host().data(), w = scale.host().data(), b = shift.host().data()] {
    const std::int64_t width = shape.width;
    const float mean_of = 1.0F / static_cast<float>(width);
    for_rows(shape.rows, width, [=](std::int64_t row) {
      const float* in = x + row * width;
      float* hat = normalised + row * width;
      float* out = y + row * width;
      const float mean = shape.centred ? sum(in, width) * mean_of : 0.0F;
      float squares = 0;
#pragma omp simd reduction(+ : squares)
      for (std::int64_t i = 0; i < width; ++i) {
        hat[i] = in[i] - mean;
        squares += hat[i] * hat[i];
      }
      const float factor = 1.0F / std::sqrt(squares * mean_of + shape.epsilon);
      inverse[row] = factor;
      if (b == nullptr) {
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) {
          hat[i] *= factor;
          out[i] = hat[i] * w[i];
        }
      } else {
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) {
          hat[i] *= factor;
          out[i] = hat[i] * w[i] + b[i];
        }
      }
    });
  });
}

void norm_backward(Span<float> dx, Span<float> dscale, Span<float> dshift, Span<const float> dy, Span<const float> normalised,
                   Span<const float> inverse, Span<const float> scale, NormShape shape, const Stream& stream) {
  stream.enqueue([=, dx = dx.host().data(), dw = dscale.host().data(), db = dshift.host().data(), dy = dy.host().data(),
                  normalised = normalised.host().data(), inverse = inverse.host().data(), w = scale.host().data()] {
    const std::int64_t width = shape.width;
    const float mean_of = 1.0F / static_cast<float>(width);
    for_rows(shape.rows, width, [=](std::int64_t row) {
      const float* d = dy + row * width;
      const float* hat = normalised + row * width;
      float* out = dx + row * width;
      float total = 0;
      float along = 0;
#pragma omp simd reduction(+ : total, along)
      for (std::int64_t i = 0; i < width; ++i) {
        total += d[i] * w[i];
        along += d[i] * w[i] * hat[i];
      }
      const float mean = shape.centred ? total * mean_of : 0.0F;
      const float projection = along * mean_of;
      const float factor = inverse[row];
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) out[i] += factor * (d[i] * w[i] - mean - hat[i] * projection);
    });
    for_column_blocks(shape.rows, width, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        const float* d = dy + row * width;
        const float* hat = normalised + row * width;
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) dw[i] += d[i] * hat[i];
        if (db == nullptr) continue;
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) db[i] += d[i];
      }
    });
  });
}

}  // namespace scape::ops
