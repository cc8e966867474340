// Linear layers: the matrix products of the model, by oneDNN on the CPU. Weights are stored [out, in], one row per output. The
// factors of a product are both fp32 or both bfloat16; results, biases and gradients are fp32.
#pragma once

#include "ops/bf16.hpp"
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
void linear_forward(Span<float> y, Span<const Bf16> x, Span<const Bf16> w, Span<const float> bias, LinearShape shape, Write write,
                    const Stream& stream);

/// dx = dy w.   dx [rows, in], dy [rows, out], w [out, in]
void linear_backward_input(Span<float> dx, Span<const float> dy, Span<const float> w, LinearShape shape, const Stream& stream);
void linear_backward_input(Span<float> dx, Span<const Bf16> dy, Span<const Bf16> w, LinearShape shape, const Stream& stream);

/// dw += dyᵀ x.   dw [out, in], dy [rows, out], x [rows, in]
void linear_backward_weight(Span<float> dw, Span<const float> dy, Span<const float> x, LinearShape shape, const Stream& stream);
void linear_backward_weight(Span<float> dw, Span<const Bf16> dy, Span<const Bf16> x, LinearShape shape, const Stream& stream);

/// dbias[o] += Σ_rows dy.   dbias [out], dy [rows, out]
void linear_backward_bias(Span<float> dbias, Span<const float> dy, LinearShape shape, const Stream& stream);

}  // namespace scape::ops
