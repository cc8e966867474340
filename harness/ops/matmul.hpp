// Linear layers: the matrix products of the model, by oneDNN on the CPU. Weights are stored [out, in], one row per output.
#pragma once

#include "scape/buffer.hpp"
#include "scape/stream.hpp"

namespace scape::ops {

/// y = x·w: rows × in → rows × out.
struct LinearShape {
  std::int64_t rows;
  std::int64_t in;
  std::int64_t out;
};

enum class Write { assign, add };

/// y = x wᵀ + bias, or y += x wᵀ + bias.   y [rows, out], x [rows, in], w [out, in], bias [out] or empty
void linear_forward(Span<float> y, Span<const float> x, Span<const float> w, Span<const float> bias, LinearShape shape, Write write,
                    const Stream& stream);

/// dx = dy w.   dx [rows, in], dy [rows, out], w [out, in]
void linear_backward_input(Span<float> dx, Span<const float> dy, Span<const float> w, LinearShape shape, const Stream& stream);

/// dw += dyᵀ x and, unless empty, dbias[o] += Σ_rows dy.   dw [out, in], dbias [out] or empty, dy [rows, out], x [rows, in]
void linear_backward_weight(Span<float> dw, Span<float> dbias, Span<const float> dy, Span<const float> x, LinearShape shape,
                            const Stream& stream);

}  // namespace scape::ops
