// Embeddings on the CPU.
#include "ops/embedding.hpp"

#include <string>

#include "ops/cpu/loops.hpp"

namespace scape::ops {

namespace {

void check_ids(const std::int32_t* ids, std::int64_t count, std::int64_t vocab) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    throw Error(ErrorKind::input, "token id " + std::to_string(ids[i]) + " at position " + std::to_string(i) +
                                      " of the batch is outside the vocabulary of " + std::to_string(vocab));
  }
}

}  // namespace

void embedding_forward(Span<float> x, Span<const std::int32_t> ids, Span<const float> tokens, Span<const float> positions,
                       EmbeddingShape shape, const Stream& stream) {
  stream.enqueue(
      [=, x = x.host().data(), ids = ids.host().data(), tokens = tokens.host().data(), positions = positions.host().data()] {
        const auto [sequences, length, width, vocab] = shape;
        check_ids(ids, sequences * length, vocab);
        for_rows(sequences * length, width, [&, width = width, length = length](std::int64_t token) {
          float* out = x + token * width;
          const float* embedding = tokens + ids[token] * width;
          if (positions == nullptr) {
            for (std::int64_t i = 0; i < width; ++i) out[i] = embedding[i];
            return;
          }
          const float* position = positions + token % length * width;
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) out[i] = embedding[i] + position[i];
        });
      });
}

void embedding_backward(Span<float> dtokens, Span<float> dpositions, Span<const float> dx, Span<const std::int32_t> ids,
                        EmbeddingShape shape, const Stream& stream) {
  stream.enqueue(
      [=, dtokens = dtokens.host().data(), dpositions = dpositions.host().data(), dx = dx.host().data(), ids = ids.host().data()] {
        const std::int64_t count = shape.sequences * shape.length;
        for_column_blocks(count, shape.width, [=](std::int64_t begin, std::int64_t end) {
          for (std::int64_t token = 0; token < count; ++token) {
            const float* d = dx + token * shape.width;
            float* embedding = dtokens + ids[token] * shape.width;
#pragma omp simd
            for (std::int64_t i = begin; i < end; ++i) embedding[i] += d[i];
            if (dpositions == nullptr) continue;
            float* position = dpositions + token % shape.length * shape.width;
#pragma omp simd
            for (std::int64_t i = begin; i < end; ++i) position[i] += d[i];
          }
        });
      });
}

}  // namespace scape::ops
