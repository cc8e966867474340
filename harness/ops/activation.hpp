// Activations of the feed-forward block.
//   GELU, the tanh form GPT-2 uses (Hendrycks & Gimpel, 2016):
//     gelu(x) = x/2 · (1 + tanh(√(2/π)·(x + 0.044715 x³))) = x · σ(2√(2/π)·(x + 0.044715 x³))
//   SwiGLU (Shazeer, 2020): silu(gate) · up with silu(x) = x · σ(x)
#pragma once

#include "scape/buffer.hpp"
#include "scape/stream.hpp"

namespace scape::ops {

/// y = gelu(x), elementwise.
void gelu_forward(Span<float> y, Span<const float> x, const Stream& stream);
/// dx = dy · gelu'(x), elementwise; dx may be dy.
void gelu_backward(Span<float> dx, Span<const float> dy, Span<const float> x, const Stream& stream);

/// y [rows, width] = silu(gate) · up, where each row of x [rows, 2·width] is gate, then up.
void swiglu_forward(Span<float> y, Span<const float> x, std::int64_t rows, std::int64_t width, const Stream& stream);
/// dx [rows, 2·width] from dy [rows, width] and x [rows, 2·width].
void swiglu_backward(Span<float> dx, Span<const float> dy, Span<const float> x, std::int64_t rows, std::int64_t width,
                     const Stream& stream);

}  // namespace scape::ops
