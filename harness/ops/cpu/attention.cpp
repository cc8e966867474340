// Causal attention on the CPU: for each sequence, batched matrix products over the heads and a softmax in between. The
// heads that share one key and value head are taken one after the other (`member`), each batch has one head per group.
#include "ops/attention.hpp"

#include <algorithm>
#include <cmath>

#include "ops/cpu/gemm.hpp"
#include "ops/cpu/loops.hpp"

namespace scape::ops {

namespace {

// Where the operands of one sequence lie; `member` selects one query head of each group.
template <class T>
struct Heads {
  T* row0;  // the sequence's first token
  AttentionShape shape;
  [[nodiscard]] std::int64_t group() const { return shape.heads / shape.kv_heads; }
  [[nodiscard]] Strided<T> query(std::int64_t member) const {
    return {row0 + member * shape.head_size, shape.qkv_width(), 1, group() * shape.head_size};
  }
  [[nodiscard]] Strided<T> key() const { return {row0 + shape.width(), shape.qkv_width(), 1, shape.head_size}; }
  [[nodiscard]] Strided<T> value() const {
    return {row0 + shape.width() + shape.kv_heads * shape.head_size, shape.qkv_width(), 1, shape.head_size};
  }
  // The same query heads in a row of `width()` elements, and their length × length matrices.
  [[nodiscard]] Strided<T> output(T* out, std::int64_t member) const {
    return {out + member * shape.head_size, shape.width(), 1, group() * shape.head_size};
  }
  [[nodiscard]] Strided<T> square(T* matrices, std::int64_t member) const {
    const std::int64_t size = shape.length * shape.length;
    return {matrices + member * size, shape.length, 1, group() * size};
  }
};

template <class T>
Strided<const T> transposed(Strided<T> x) {
  return {x.data, x.column, x.row, x.batch};
}
template <class T>
Strided<const T> constant(Strided<T> x) {
  return {x.data, x.row, x.column, x.batch};
}

// Row i of each matrix: softmax of factor·row over columns 0…i, zero beyond.
void causal_softmax(float* matrices, std::int64_t count, std::int64_t length, float factor) {
  for_rows(count * length, length, [=](std::int64_t r) {
    const std::int64_t columns = r % length + 1;
    float* row = matrices + r * length;
    const float largest = maximum(row, columns);
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (std::int64_t j = 0; j < columns; ++j) {
      row[j] = exponential(factor * (row[j] - largest));
      total += row[j];
    }
    const float inverse = 1.0F / total;
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) row[j] *= inverse;
    std::fill(row + columns, row + length, 0.0F);
  });
}

// dP becomes factor · P · (dP − Σ_j dP·P); zero wherever P is.
void softmax_backward(float* d, const float* p, std::int64_t count, std::int64_t length, float factor) {
  for_rows(count * length, length, [=](std::int64_t r) {
    const std::int64_t columns = r % length + 1;
    float* row = d + r * length;
    const float* probability = p + r * length;
    const float mean = dot(row, probability, columns);
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) row[j] = factor * probability[j] * (row[j] - mean);
    std::fill(row + columns, row + length, 0.0F);
  });
}

float inverse_root(std::int64_t head_size) {
  return 1.0F / std::sqrt(static_cast<float>(head_size));
}

}  // namespace

void attention_forward(Span<float> out, Span<float> probabilities, Span<const float> qkv, AttentionShape shape,
                       const Stream& stream) {
  stream.enqueue([=, out = out.host().data(), probabilities = probabilities.host().data(), qkv = qkv.host().data()] {
    const auto [sequences, length, heads, kv_heads, size] = shape;
    for (std::int64_t b = 0; b < sequences; ++b) {
      const Heads<const float> in{qkv + b * length * shape.qkv_width(), shape};
      const Heads<float> to{nullptr, shape};
      float* p = probabilities + b * heads * length * length;
      float* o = out + b * length * shape.width();
      for (std::int64_t member = 0; member < in.group(); ++member) {
        gemm(to.square(p, member), in.query(member), transposed(in.key()), nullptr, {length, length, size, kv_heads}, false);
      }
      causal_softmax(p, heads, length, inverse_root(size));
      for (std::int64_t member = 0; member < in.group(); ++member) {
        gemm(to.output(o, member), in.square(p, member), in.value(), nullptr, {length, size, length, kv_heads}, false);
      }
    }
  });
}

void attention_backward(Span<float> dqkv, Span<const float> dout, Span<const float> qkv, Span<const float> probabilities,
                        Span<float> scratch, AttentionShape shape, const Stream& stream) {
  stream.enqueue([=, dqkv = dqkv.host().data(), dout = dout.host().data(), qkv = qkv.host().data(),
                  probabilities = probabilities.host().data(), ds = scratch.host().data()] {
    const auto [sequences, length, heads, kv_heads, size] = shape;
    for (std::int64_t b = 0; b < sequences; ++b) {
      const Heads<const float> in{qkv + b * length * shape.qkv_width(), shape};
      const Heads<float> to{dqkv + b * length * shape.qkv_width(), shape};
      const float* p = probabilities + b * heads * length * length;
      const float* d = dout + b * length * shape.width();
      for (std::int64_t member = 0; member < in.group(); ++member) {
        const bool add = member > 0;  // shared by the group
        gemm(to.value(), transposed(in.square(p, member)), in.output(d, member), nullptr, {length, size, length, kv_heads}, add);
        gemm(to.square(ds, member), in.output(d, member), transposed(in.value()), nullptr, {length, length, size, kv_heads}, false);
      }
      softmax_backward(ds, p, heads, length, inverse_root(size));
      for (std::int64_t member = 0; member < in.group(); ++member) {
        const bool add = member > 0;
        const Strided<const float> s = constant(to.square(ds, member));
        gemm(to.query(member), s, in.key(), nullptr, {length, size, length, kv_heads}, false);
        gemm(to.key(), transposed(s), in.query(member), nullptr, {length, size, length, kv_heads}, add);
      }
    }
  });
}

}  // namespace scape::ops
