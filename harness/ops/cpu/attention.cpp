// Causal attention on the CPU: for each sequence and each pair of a block of queries and a block of keys (a tile), batched matrix
// products over the heads and a softmax in between. The heads that share one key and value head are taken one after the other
// (`member`), each batch has one head per group.
#include "ops/attention.hpp"

#include <array>
#include <cmath>

#include "ops/cpu/gemm.hpp"
#include "ops/cpu/loops.hpp"

namespace scape::ops {

namespace {

// Where the operands of some rows of one sequence lie; `member` selects one query head of each group.
template <class T>
struct Heads {
  T* row0;  // the first token's
  AttentionShape shape;
  [[nodiscard]] std::int64_t group() const { return shape.heads / shape.kv_heads; }
  [[nodiscard]] Strided<T> query(std::int64_t member) const {
    return {row0 + member * shape.head_size, shape.qkv_width(), 1, group() * shape.head_size};
  }
  [[nodiscard]] Strided<T> key() const { return {row0 + shape.width(), shape.qkv_width(), 1, shape.head_size}; }
  [[nodiscard]] Strided<T> value() const {
    return {row0 + shape.width() + shape.kv_heads * shape.head_size, shape.qkv_width(), 1, shape.head_size};
  }
  [[nodiscard]] Heads from(std::int64_t token) const { return {row0 + token * shape.qkv_width(), shape}; }
};

template <class T>
Strided<const T> transposed(Strided<T> x) {
  return {x.data, x.column, x.row, x.batch};
}
template <class T>
Strided<const T> constant(Strided<T> x) {
  return {x.data, x.row, x.column, x.batch};
}

// Queries [query, query + rows) against keys [key, key + columns) of one sequence, key ≤ query.
struct Tile {
  std::int64_t query, rows;
  std::int64_t key, columns;
  AttentionShape shape;

  [[nodiscard]] std::int64_t group() const { return shape.heads / shape.kv_heads; }
  // The scores of the query heads that `member` selects, in memory for all heads' [rows, columns].
  template <class T>
  [[nodiscard]] Strided<T> scores(T* memory, std::int64_t member) const {
    return {memory + member * rows * columns, columns, 1, group() * rows * columns};
  }
  // The same heads' rows in a sequence of `width()` elements per token.
  template <class T>
  [[nodiscard]] Strided<T> output(T* sequence, std::int64_t member) const {
    return {sequence + query * shape.width() + member * shape.head_size, shape.width(), 1, group() * shape.head_size};
  }
  // body(head, token, row, visible) for every row of every head: a token sees the first `visible` columns.
  template <class Body>
  void for_scores(float* memory, const Body& body) const {
    for_rows(shape.heads * rows, columns, [&, this](std::int64_t i) {
      const std::int64_t head = i / rows;
      const std::int64_t token = query + i - head * rows;
      body(head, token, memory + i * columns, std::min(columns, token - key + 1));
    });
  }
};

// body(tile) for all tiles that hold a score that is seen: the keys of a block of queries in order, queries in order.
template <class Body>
void for_tiles(const AttentionShape& shape, const Body& body) {
  constexpr std::int64_t block = AttentionShape::block;
  for (std::int64_t query = 0; query < shape.length; query += block) {
    const std::int64_t rows = std::min(block, shape.length - query);
    for (std::int64_t key = 0; key <= query; key += block) body(Tile{query, rows, key, std::min(block, shape.length - key), shape});
  }
}

void scores(float* s, const Tile& tile, const Heads<const float>& in) {
  for (std::int64_t member = 0; member < in.group(); ++member) {
    gemm<float>(tile.scores(s, member), in.from(tile.query).query(member), transposed(in.from(tile.key).key()), nullptr,
                {tile.rows, tile.columns, tile.shape.head_size, tile.shape.kv_heads}, false);
  }
}

// One more block of keys in the running softmax: scores become probabilities, zero where nothing is seen; `out` of the earlier
// blocks and L [heads, length] (null when there is only one block) follow.
void running_softmax(float* s, float* log_sums, float* out, const Tile& tile, float factor) {
  const bool first = tile.key == 0;
  tile.for_scores(s, [=, &tile](std::int64_t head, std::int64_t token, float* row, std::int64_t visible) {
    float* log_sum = log_sums == nullptr ? nullptr : log_sums + head * tile.shape.length + token;
    float largest = factor * maximum(row, visible);
    if (!first) largest = std::max(largest, *log_sum);
    const float before = first ? 0.0F : exponential(*log_sum - largest);
    float total = before;
#pragma omp simd reduction(+ : total)
    for (std::int64_t j = 0; j < visible; ++j) {
      row[j] = exponential(factor * row[j] - largest);
      total += row[j];
    }
    const float inverse = 1.0F / total;
#pragma omp simd
    for (std::int64_t j = 0; j < visible; ++j) row[j] *= inverse;
    std::fill(row + visible, row + tile.columns, 0.0F);
    if (log_sum != nullptr) *log_sum = largest + std::log(total);
    if (first) return;
    float* o = out + token * tile.shape.width() + head * tile.shape.head_size;
#pragma omp simd
    for (std::int64_t d = 0; d < tile.shape.head_size; ++d) o[d] *= before * inverse;
  });
}

// The probabilities again, from the scores and the last L.
void probabilities(float* s, const float* log_sums, const Tile& tile, float factor) {
  tile.for_scores(s, [=, &tile](std::int64_t head, std::int64_t token, float* row, std::int64_t visible) {
    const float log_sum = log_sums[head * tile.shape.length + token];
#pragma omp simd
    for (std::int64_t j = 0; j < visible; ++j) row[j] = exponential(factor * row[j] - log_sum);
    std::fill(row + visible, row + tile.columns, 0.0F);
  });
}

// dout·out [heads, rows] of the tile's queries.
void products(float* to, const float* dout, const float* out, const Tile& tile) {
  const std::int64_t size = tile.shape.head_size;
  for_rows(tile.rows, tile.shape.width(), [=, &tile](std::int64_t row) {
    for (std::int64_t head = 0; head < tile.shape.heads; ++head) {
      const std::int64_t at = (tile.query + row) * tile.shape.width() + head * size;
      to[head * tile.rows + row] = dot(dout + at, out + at, size);
    }
  });
}

// dP becomes factor · P · (dP − dout·out).
void softmax_backward(float* d, const float* p, const float* means, const Tile& tile, float factor) {
  tile.for_scores(d, [=, &tile](std::int64_t head, std::int64_t token, float* row, std::int64_t visible) {
    const float* probability = p + (row - d);
    const float mean = means[head * tile.rows + token - tile.query];
#pragma omp simd
    for (std::int64_t j = 0; j < visible; ++j) row[j] = factor * probability[j] * (row[j] - mean);
    std::fill(row + visible, row + tile.columns, 0.0F);
  });
}

float inverse_root(std::int64_t head_size) {
  return 1.0F / std::sqrt(static_cast<float>(head_size));
}

}  // namespace

void attention_forward(Span<float> out, Span<float> kept, Span<float> scratch, Span<const float> qkv, AttentionShape shape,
                       const Stream& stream) {
  stream.enqueue([=, out = out.host().data(), kept = kept.host().data(), scratch = scratch.host().data(), qkv = qkv.host().data()] {
    const std::int64_t kept_of_one = shape.kept() / shape.sequences;
    for (std::int64_t b = 0; b < shape.sequences; ++b) {
      const Heads<const float> in{qkv + b * shape.length * shape.qkv_width(), shape};
      float* o = out + b * shape.length * shape.width();
      float* k = kept + b * kept_of_one;
      float* p = shape.one_block() ? k : scratch;
      float* log_sums = shape.one_block() ? nullptr : k;
      for_tiles(shape, [&](const Tile& tile) {
        scores(p, tile, in);
        running_softmax(p, log_sums, o, tile, inverse_root(shape.head_size));
        for (std::int64_t member = 0; member < in.group(); ++member) {
          gemm<float>(tile.output(o, member), constant(tile.scores(p, member)), in.from(tile.key).value(), nullptr,
                      {tile.rows, shape.head_size, tile.columns, shape.kv_heads}, tile.key > 0);
        }
      });
    }
  });
}

void attention_backward(Span<float> dqkv, Span<const float> dout, Span<const float> out, Span<const float> qkv,
                        Span<const float> kept, Span<float> scratch, AttentionShape shape, const Stream& stream) {
  stream.enqueue([=, dqkv = dqkv.host().data(), dout = dout.host().data(), out = out.host().data(), qkv = qkv.host().data(),
                  kept = kept.host().data(), scratch = scratch.host().data()] {
    const float factor = inverse_root(shape.head_size);
    const std::int64_t kept_of_one = shape.kept() / shape.sequences;
    for (std::int64_t b = 0; b < shape.sequences; ++b) {
      const Heads<const float> in{qkv + b * shape.length * shape.qkv_width(), shape};
      const Heads<float> to{dqkv + b * shape.length * shape.qkv_width(), shape};
      const float* o = out + b * shape.length * shape.width();
      const float* d = dout + b * shape.length * shape.width();
      const float* k = kept + b * kept_of_one;
      float* ds = scratch;
      float* again = ds + shape.largest_tile();
      float* means = again + shape.largest_tile();
      const float* p = shape.one_block() ? k : again;
      for_tiles(shape, [&](const Tile& tile) {
        const auto [rows, columns, size] = std::array{tile.rows, tile.columns, shape.head_size};
        const Heads<const float> queries = in.from(tile.query);
        const Heads<const float> keys = in.from(tile.key);
        const auto shared = [&](std::int64_t member) { return member > 0 || tile.query > tile.key; };  // adds to what is there
        if (!shape.one_block()) {
          scores(again, tile, in);
          probabilities(again, k, tile, factor);
        }
        for (std::int64_t member = 0; member < in.group(); ++member) {
          gemm<float>(to.from(tile.key).value(), transposed(tile.scores(p, member)), tile.output(d, member), nullptr,
                      {columns, size, rows, shape.kv_heads}, shared(member));
          gemm<float>(tile.scores(ds, member), tile.output(d, member), transposed(keys.value()), nullptr,
                      {rows, columns, size, shape.kv_heads}, false);
        }
        if (tile.key == 0) products(means, d, o, tile);
        softmax_backward(ds, p, means, tile, factor);
        for (std::int64_t member = 0; member < in.group(); ++member) {
          const Strided<const float> s = constant(tile.scores(ds, member));
          gemm<float>(to.from(tile.query).query(member), s, keys.key(), nullptr, {rows, size, columns, shape.kv_heads},
                      tile.key > 0);
          gemm<float>(to.from(tile.key).key(), transposed(s), queries.query(member), nullptr, {columns, size, rows, shape.kv_heads},
                      shared(member));
        }
      });
    }
  });
}

}  // namespace scape::ops
