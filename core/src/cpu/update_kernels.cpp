// CPU update rules and sums.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/kernels.hpp"
#include "scape/error.hpp"

namespace scape::detail {

namespace {

class CpuUpdateKernels final : public UpdateKernels {
 public:
  void adamw(Span<float> theta, Span<float> m, Span<float> v, Span<const float> g, const AdamStep& s,
             const Stream& stream) const override {
    const std::int64_t n = theta.size();
    require(m.size() == n && v.size() == n && g.size() == n, ErrorKind::internal, "adamw: spans differ in size");
    stream.enqueue([=, t = theta.data(), pm = m.data(), pv = v.data(), pg = g.data()] {
      const float keep = 1 - s.learning_rate * s.weight_decay;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) {
        const float gradient = s.gradient_scale * pg[i];
        pm[i] = s.beta1 * pm[i] + (1 - s.beta1) * gradient;
        pv[i] = s.beta2 * pv[i] + (1 - s.beta2) * (gradient * gradient);
        t[i] = keep * t[i] - s.learning_rate * (s.m_scale * pm[i] / (std::sqrt(s.v_scale * pv[i]) + s.epsilon));
      }
    });
  }

  void adams(Span<float> theta, Span<float> m, Span<const float> g, const AdamStep& s, const Stream& stream) const override {
    const std::int64_t n = theta.size();
    require(m.size() == n && g.size() == n, ErrorKind::internal, "adams: spans differ in size");
    stream.enqueue([=, t = theta.data(), pm = m.data(), pg = g.data()] {
      const float keep = 1 - s.learning_rate * s.weight_decay;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) adams_coordinate(t[i], pm[i], s.gradient_scale * pg[i], s, keep);
    });
  }

  void adams_direction(Span<float> g, Span<const float> c, Span<const float> m, const AdamStep& s,
                       const Stream& stream) const override {
    const std::int64_t n = g.size();
    require(c.size() == n && m.size() == n, ErrorKind::internal, "adams_direction: spans differ in size");
    stream.enqueue([=, pg = g.data(), pc = c.data(), pm = m.data()] {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) {
        const float previous = s.previous_scale * pm[i];
        const float v = s.beta2 * (previous * previous) + (1 - s.beta2) * (pg[i] * pg[i]);
        const float direction = s.m_scale * pc[i] / (std::sqrt(s.v_scale * v) + s.epsilon);
        pg[i] = direction == direction ? direction : 0;
      }
    });
  }

  void sum_of_squares(Span<const float> x, Span<double> result, const Stream& stream) const override {
    stream.enqueue([=] { *result.data() = detail::sum_of_squares(x.size(), [&](std::int64_t i) { return x.data()[i]; }); });
  }

  void block_squares(Span<const float> x, std::int64_t block, Span<double> squares, const Stream& stream) const override {
    require(block >= 1 && squares.size() * block == x.size(), ErrorKind::internal, "block_squares: spans differ in size");
    stream.enqueue([=] {
      for (std::int64_t b = 0; b < squares.size(); ++b) {
        squares.data()[b] = detail::sum_of_squares(block, [&](std::int64_t i) { return x.data()[b * block + i]; });
      }
    });
  }

  void narrow(Span<const double> x, double factor, Span<float> result, const Stream& stream) const override {
    require(x.size() == result.size(), ErrorKind::internal, "narrow: spans differ in size");
    stream.enqueue([=] {
      for (std::int64_t i = 0; i < x.size(); ++i) result.data()[i] = static_cast<float>(factor * x.data()[i]);
    });
  }

  void flag_not_finite(Span<const double> values, Span<float> flag, const Stream& stream) const override {
    stream.enqueue([=] {
      const bool finite = std::all_of(values.data(), values.data() + values.size(), [](double x) { return std::isfinite(x); });
      *flag.data() = finite ? 0 : std::numeric_limits<float>::infinity();
    });
  }

  void scale(Span<float> x, float factor, const Stream& stream) const override {
    stream.enqueue([n = x.size(), p = x.data(), factor] {
      for (std::int64_t i = 0; i < n; ++i) p[i] *= factor;
    });
  }

  void divide(Span<float> x, float divisor, const Stream& stream) const override {
    stream.enqueue([n = x.size(), p = x.data(), divisor] {
      for (std::int64_t i = 0; i < n; ++i) p[i] /= divisor;
    });
  }

  void add(Span<float> y, Span<const float> x, float factor, const Stream& stream) const override {
    require(x.size() == y.size(), ErrorKind::internal, "add: spans differ in size");
    stream.enqueue([n = y.size(), py = y.data(), px = x.data(), factor] {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) py[i] += factor * px[i];
    });
  }
};

}  // namespace

const UpdateKernels& cpu_update_kernels() {
  static const CpuUpdateKernels kernels;
  return kernels;
}

}  // namespace scape::detail
