// Device code of UpdateKernels (formulas in scape/kernels.hpp). `Launcher` says how a kernel gets to run: on a CUDA stream, or
// in the tests on the CPU. Sums are written by the last block to finish, which adds those of all blocks in order.
#pragma once

#include <cmath>

#include "cuda/elementwise.cuh"
#include "scape/error.hpp"
#include "scape/kernels.hpp"

namespace scape::cuda {

/// AdamS for one coordinate; g is the scaled gradient, keep = 1 − ηλ.
__device__ inline void adams_coordinate(float& theta, float& m, float g, const AdamStep& s, float keep) {
  const float previous = s.previous_scale * m;
  const float v = s.beta2 * (previous * previous) + (1 - s.beta2) * (g * g);
  m = s.beta1 * m + (1 - s.beta1) * g;
  theta = keep * theta - s.learning_rate * (s.m_scale * m / (std::sqrt(s.v_scale * v) + s.epsilon));
}

/// The same for a gradient that `steps` ≥ 1 steps have left, of which the coordinate moves `factor` (ApplyExtension).
__device__ inline void adams_backlog(float& theta, float& m, float g, AdamStep s, float keep, float steps, float factor) {
  const float previous = m;
  s.learning_rate *= factor;
  adams_coordinate(theta, m, g / steps, s, keep);
  m = s.beta1 * previous + (1 - s.beta1) * g;
}

/// And with the second moment v given.
__device__ inline void adams_with_v(float& theta, float& m, float g, float v, const AdamStep& s, float keep) {
  m = s.beta1 * m + (1 - s.beta1) * g;
  theta = keep * theta - s.learning_rate * (s.m_scale * m / (std::sqrt(s.v_scale * v) + s.epsilon));
}

// 28 bytes per element.
struct AdamW {
  float* theta;
  float* m;
  float* v;
  const float* g;
  std::int64_t n;
  AdamStep step;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    const AdamStep& s = step;
    const float keep = 1 - s.learning_rate * s.weight_decay;
    const auto formula = [&](float& theta_j, float& m_j, float& v_j, float g_j) {
      const float gradient = s.gradient_scale * g_j;
      m_j = s.beta1 * m_j + (1 - s.beta1) * gradient;
      v_j = s.beta2 * v_j + (1 - s.beta2) * (gradient * gradient);
      theta_j = keep * theta_j - s.learning_rate * (s.m_scale * m_j / (std::sqrt(s.v_scale * v_j) + s.epsilon));
    };
    elementwise(t, n, misalignment(theta), formula, theta, m, v, g);
  }
};

// 20 bytes per element.
struct AdamS {
  float* theta;
  float* m;
  const float* g;
  std::int64_t n;
  AdamStep step;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    const float keep = 1 - step.learning_rate * step.weight_decay;
    const auto formula = [&](float& theta_j, float& m_j, float g_j) {
      adams_coordinate(theta_j, m_j, step.gradient_scale * g_j, step, keep);
    };
    elementwise(t, n, misalignment(theta), formula, theta, m, g);
  }
};

// 16 bytes per element.
struct AdamSDirection {
  float* g;
  const float* c;
  const float* m;
  std::int64_t n;
  AdamStep step;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    const AdamStep& s = step;
    const auto formula = [&](float& g_j, float c_j, float m_j) {
      const float previous = s.previous_scale * m_j;
      const float v = s.beta2 * (previous * previous) + (1 - s.beta2) * (g_j * g_j);
      const float direction = s.m_scale * c_j / (std::sqrt(s.v_scale * v) + s.epsilon);
      g_j = direction == direction ? direction : 0;
    };
    elementwise(t, n, misalignment(g), formula, g, c, m);
  }
};

// 4 bytes per element.
struct SumOfSquares {
  const float* x;
  std::int64_t n;
  Scratch* scratch;
  double* result;

  using Shared = BlockShared<double>;
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared& shared) const {
    double sum = 0;
    elementwise(
        t, n, 0, [&](float x_j) { sum += static_cast<double>(x_j) * static_cast<double>(x_j); }, x);
    grid_sum(t, shared, sum, scratch->sums, &scratch->ticket, result);
  }
};

// 4 bytes per element. A block of threads for each block of elements.
struct BlockSquares {
  const float* x;
  std::int64_t block;
  double* squares;
  std::int64_t n;  // blocks

  using Shared = BlockShared<double>;
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared& shared) const {
    for (std::int64_t b = t.block(); b < n; b += t.blocks()) {
      double mine = 0;
      for (std::int64_t i = t.index(); i < block; i += block_threads) {
        const double x_i = x[b * block + i];
        mine += x_i * x_i;
      }
      const double sum = block_sum(t, shared, mine);
      if (t.index() == 0) squares[b] = sum;
      t.sync();  // the sum has been read
    }
  }
};

struct Narrow {
  const double* x;
  std::int64_t n;
  double factor;
  float* result;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    for (std::int64_t i = global_index(t); i < n; i += global_threads(t)) result[i] = static_cast<float>(factor * x[i]);
  }
};

struct FlagNotFinite {
  const double* values;
  std::int64_t n;  // few
  float* flag;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    if (t.index() != 0) return;
    bool finite = true;
    for (std::int64_t i = 0; i < n; ++i) finite = finite && values[i] - values[i] == 0;  // ∞ − ∞ is no number
    *flag = finite ? 0 : t.from_bits(0x7f800000U);
  }
};

// 8 bytes per element.
struct Scale {
  float* x;
  std::int64_t n;
  float factor;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    elementwise(
        t, n, misalignment(x), [&](float& x_j) { x_j *= factor; }, x);
  }
};

// 8 bytes per element.
struct Divide {
  float* x;
  std::int64_t n;
  float divisor;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    elementwise(
        t, n, misalignment(x), [&](float& x_j) { x_j /= divisor; }, x);
  }
};

// 12 bytes per element.
struct Add {
  float* y;
  const float* x;
  std::int64_t n;
  float factor;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    elementwise(
        t, n, misalignment(y), [&](float& y_j, float x_j) { y_j += factor * x_j; }, y, x);
  }
};

template <class Launcher>
class DeviceUpdateKernels final : public UpdateKernels {
 public:
  void adamw(Span<float> theta, Span<float> m, Span<float> v, Span<const float> g, const AdamStep& step,
             const Stream& stream) const override {
    const std::int64_t n = theta.size();
    require(m.size() == n && v.size() == n && g.size() == n, ErrorKind::internal, "adamw: spans differ in size");
    Launcher::launch(AdamW{theta.data(), m.data(), v.data(), g.data(), n, step}, element_blocks(n), stream);
  }
  void adams(Span<float> theta, Span<float> m, Span<const float> g, const AdamStep& step, const Stream& stream) const override {
    const std::int64_t n = theta.size();
    require(m.size() == n && g.size() == n, ErrorKind::internal, "adams: spans differ in size");
    Launcher::launch(AdamS{theta.data(), m.data(), g.data(), n, step}, element_blocks(n), stream);
  }
  void adams_direction(Span<float> g, Span<const float> c, Span<const float> m, const AdamStep& step,
                       const Stream& stream) const override {
    const std::int64_t n = g.size();
    require(c.size() == n && m.size() == n, ErrorKind::internal, "adams_direction: spans differ in size");
    Launcher::launch(AdamSDirection{g.data(), c.data(), m.data(), n, step}, element_blocks(n), stream);
  }
  void sum_of_squares(Span<const float> x, Span<double> result, const Stream& stream) const override {
    Launcher::launch_joint(SumOfSquares{x.data(), x.size(), Launcher::scratch(stream), result.data()}, element_blocks(x.size()),
                           stream);
  }
  void block_squares(Span<const float> x, std::int64_t block, Span<double> squares, const Stream& stream) const override {
    require(block >= 1 && squares.size() * block == x.size(), ErrorKind::internal, "block_squares: spans differ in size");
    Launcher::launch(BlockSquares{x.data(), block, squares.data(), squares.size()}, squares.size(), stream);
  }
  void narrow(Span<const double> x, double factor, Span<float> result, const Stream& stream) const override {
    require(x.size() == result.size(), ErrorKind::internal, "narrow: spans differ in size");
    Launcher::launch(Narrow{x.data(), x.size(), factor, result.data()}, pieces(x.size(), block_threads), stream);
  }
  void flag_not_finite(Span<const double> values, Span<float> flag, const Stream& stream) const override {
    Launcher::launch(FlagNotFinite{values.data(), values.size(), flag.data()}, 1, stream);
  }
  void scale(Span<float> x, float factor, const Stream& stream) const override {
    Launcher::launch(Scale{x.data(), x.size(), factor}, element_blocks(x.size()), stream);
  }
  void divide(Span<float> x, float divisor, const Stream& stream) const override {
    Launcher::launch(Divide{x.data(), x.size(), divisor}, element_blocks(x.size()), stream);
  }
  void add(Span<float> y, Span<const float> x, float factor, const Stream& stream) const override {
    require(x.size() == y.size(), ErrorKind::internal, "add: spans differ in size");
    Launcher::launch(Add{y.data(), x.data(), y.size(), factor}, element_blocks(y.size()), stream);
  }
};

}  // namespace scape::cuda
