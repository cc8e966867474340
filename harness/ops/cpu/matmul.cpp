// Linear layers on the CPU.
#include "ops/matmul.hpp"

#include "ops/cpu/gemm.hpp"
#include "ops/cpu/loops.hpp"

namespace scape::ops {

namespace {

template <class T>
void forward(Span<float> y, Span<const T> x, Span<const T> w, Span<const float> bias, LinearShape shape, Write write,
             const Stream& stream) {
  const auto [rows, in, out] = shape;
  stream.enqueue([=, y = y.host().data(), x = x.host().data(), w = w.host().data(), bias = bias.host().data()] {
    gemm<T>({y, out, 1}, {x, in, 1}, {w, 1, in}, bias, {rows, out, in}, write == Write::add);
  });
}

template <class T>
void backward_input(Span<float> dx, Span<const T> dy, Span<const T> w, LinearShape shape, const Stream& stream) {
  const auto [rows, in, out] = shape;
  stream.enqueue([=, dx = dx.host().data(), dy = dy.host().data(), w = w.host().data()] {
    gemm<T>({dx, in, 1}, {dy, out, 1}, {w, in, 1}, nullptr, {rows, in, out}, false);
  });
}

template <class T>
void backward_weight(Span<float> dw, Span<const T> dy, Span<const T> x, LinearShape shape, const Stream& stream) {
  const auto [rows, in, out] = shape;
  stream.enqueue([=, dw = dw.host().data(), dy = dy.host().data(), x = x.host().data()] {
    gemm<T>({dw, in, 1}, {dy, 1, out}, {x, in, 1}, nullptr, {out, in, rows}, true);
  });
}

}  // namespace

void linear_forward(Span<float> y, Span<const float> x, Span<const float> w, Span<const float> bias, LinearShape shape, Write write,
                    const Stream& stream) {
  forward(y, x, w, bias, shape, write, stream);
}
void linear_forward(Span<float> y, Span<const Bf16> x, Span<const Bf16> w, Span<const float> bias, LinearShape shape, Write write,
                    const Stream& stream) {
  forward(y, x, w, bias, shape, write, stream);
}

void linear_backward_input(Span<float> dx, Span<const float> dy, Span<const float> w, LinearShape shape, const Stream& stream) {
  backward_input(dx, dy, w, shape, stream);
}
void linear_backward_input(Span<float> dx, Span<const Bf16> dy, Span<const Bf16> w, LinearShape shape, const Stream& stream) {
  backward_input(dx, dy, w, shape, stream);
}

void linear_backward_weight(Span<float> dw, Span<const float> dy, Span<const float> x, LinearShape shape, const Stream& stream) {
  backward_weight(dw, dy, x, shape, stream);
}
void linear_backward_weight(Span<float> dw, Span<const Bf16> dy, Span<const Bf16> x, LinearShape shape, const Stream& stream) {
  backward_weight(dw, dy, x, shape, stream);
}

void linear_backward_bias(Span<float> dbias, Span<const float> dy, LinearShape shape, const Stream& stream) {
  const auto [rows, in, out] = shape;
  stream.enqueue([=, rows = rows, out = out, dbias = dbias.host().data(), dy = dy.host().data()] {
    for_column_blocks(rows, out, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = 0; row < rows; ++row) {
        const float* d = dy + row * out;
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) dbias[i] += d[i];
      }
    });
  });
}

}  // namespace scape::ops
