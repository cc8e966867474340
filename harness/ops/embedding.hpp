// Token embedding and learned position embedding.
#pragma once

#include "scape/buffer.hpp"
#include "scape/stream.hpp"

namespace scape::ops {

struct EmbeddingShape {
  std::int64_t sequences;
  std::int64_t length;
  std::int64_t width;
  std::int64_t vocab;
};

/// x[b, t] = tokens[ids[b, t]] + positions[t].   x [sequences, length, width], tokens [vocab, width], positions
/// [≥ length, width] or empty. Throws Error(input) for an id outside [0, vocab).
void embedding_forward(Span<float> x, Span<const std::int32_t> ids, Span<const float> tokens, Span<const float> positions,
                       EmbeddingShape shape, const Stream& stream);

/// dtokens[ids[b, t]] += dx[b, t] and, unless empty, dpositions[t] += Σ_b dx[b, t].
void embedding_backward(Span<float> dtokens, Span<float> dpositions, Span<const float> dx, Span<const std::int32_t> ids,
                        EmbeddingShape shape, const Stream& stream);

}  // namespace scape::ops
