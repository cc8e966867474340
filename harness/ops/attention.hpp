// Causal attention with grouped queries (Vaswani et al., 2017; Ainslie et al., 2023). Query head h uses key and value head
// h / (heads / kv_heads). For each sequence and head, T = length, s = head size:
//   P = softmax(q kᵀ / √s) over the positions j ≤ i,   out = P v
#pragma once

#include "scape/buffer.hpp"
#include "scape/stream.hpp"

namespace scape::ops {

struct AttentionShape {
  std::int64_t sequences;
  std::int64_t length;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_size;
  /// Elements of one token's row of qkv: its query heads, key heads, value heads.
  [[nodiscard]] std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  [[nodiscard]] std::int64_t width() const { return heads * head_size; }
};

/// out [sequences, length, heads, s] and, for the backward pass, P [sequences, heads, length, length] from
/// qkv [sequences, length, heads + 2·kv_heads, s].
void attention_forward(Span<float> out, Span<float> probabilities, Span<const float> qkv, AttentionShape shape,
                       const Stream& stream);

/// dv = Pᵀ dout,  dP = dout vᵀ,  dS = P · (dP − Σ_j dP·P) / √s,  dq = dS k,  dk = dSᵀ q; dk and dv summed over the query heads
/// that share them. Writes dqkv (as qkv); scratch [heads, length, length].
void attention_backward(Span<float> dqkv, Span<const float> dout, Span<const float> qkv, Span<const float> probabilities,
                        Span<float> scratch, AttentionShape shape, const Stream& stream);

}  // namespace scape::ops
