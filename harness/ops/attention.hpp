// Causal attention with grouped queries (Vaswani et al., 2017; Ainslie et al., 2023). Query head h uses key and value head
// h / (heads / kv_heads). For each sequence and head, T = length, s = head size:
//   P = softmax(q kᵀ / √s) over the positions j ≤ i,   out = P v
// Computed block by block of queries and keys (FlashAttention: Dao et al., arXiv 2205.14135): memory grows with T, not T². The
// softmax runs along the blocks of keys (Milakov & Gimelshein, arXiv 1805.02867) and is normalised all the time: with L the
// logarithm of the sum of exponentials so far and S the scores of the next block,
//   L' = log(e^L + Σ e^S),   out' = e^(L − L') out + e^(S − L') v
// The backward pass makes P = e^(S − L) again from the last L; sequences of one block keep P instead.
#pragma once

#include <algorithm>

#include "scape/buffer.hpp"
#include "scape/stream.hpp"

namespace scape::ops {

struct AttentionShape {
  static constexpr std::int64_t block = 128;  // tokens

  std::int64_t sequences;
  std::int64_t length;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_size;
  /// Elements of one token's row of qkv: its query heads, key heads, value heads.
  [[nodiscard]] std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  [[nodiscard]] std::int64_t width() const { return heads * head_size; }
  [[nodiscard]] bool one_block() const { return length <= block; }
  /// Elements kept for the backward pass: P [sequences, heads, length, length] of one block, else L [sequences, heads, length].
  [[nodiscard]] std::int64_t kept() const { return sequences * heads * length * (one_block() ? length : 1); }
  /// Scores of all heads in a pair of blocks.
  [[nodiscard]] std::int64_t largest_tile() const { return heads * std::min(length, block) * std::min(length, block); }
  /// Elements of scratch, for forward or backward.
  [[nodiscard]] std::int64_t scratch() const { return 2 * largest_tile() + heads * std::min(length, block); }
};

/// out [sequences, length, heads, s] and what is kept from qkv [sequences, length, heads + 2·kv_heads, s].
void attention_forward(Span<float> out, Span<float> kept, Span<float> scratch, Span<const float> qkv, AttentionShape shape,
                       const Stream& stream);

/// dv = Pᵀ dout,  dP = dout vᵀ,  dS = P · (dP − dout·out) / √s,  dq = dS k,  dk = dSᵀ q; dk and dv summed over the query heads
/// that share them. Writes dqkv (as qkv).
void attention_backward(Span<float> dqkv, Span<const float> dout, Span<const float> out, Span<const float> qkv,
                        Span<const float> kept, Span<float> scratch, AttentionShape shape, const Stream& stream);

}  // namespace scape::ops
