// Rotary position embedding (Su et al., RoFormer, 2021) in the half-split layout of Hugging Face's Llama: at position p the pair
// (x[i], x[i + size/2]) of a head turns by the angle p · base^(−2i/size). Weights need no permutation between there and here.
#pragma once

#include "scape/buffer.hpp"
#include "scape/stream.hpp"

namespace scape::ops {

struct RotaryShape {
  std::int64_t sequences;
  std::int64_t length;
  std::int64_t heads;      // neighbouring heads that turn
  std::int64_t head_size;  // even
  std::int64_t stride;     // elements from one token's row to the next
};

/// Cosines and sines of every angle, each [positions, head_size/2], in host memory; computed in double.
void rotary_table(Span<float> cosine, Span<float> sine, std::int64_t positions, std::int64_t head_size, double base);

/// Turns x [sequences, length, heads, head_size] in place.
void rotary_forward(Span<float> x, Span<const float> cosine, Span<const float> sine, RotaryShape shape, const Stream& stream);
/// The transpose, which turns back: the gradient through rotary_forward.
void rotary_backward(Span<float> dx, Span<const float> cosine, Span<const float> sine, RotaryShape shape, const Stream& stream);

}  // namespace scape::ops
