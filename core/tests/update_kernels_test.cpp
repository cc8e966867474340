// Update rules and sums against their formulas in double. AdamW: Loshchilov & Hutter 2019 as in PyTorch; AdamS: arXiv 2505.16363.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "scape/kernels.hpp"
#include "scape/scape.hpp"
#include "support/guarded.hpp"
#include "support/kernel_inputs.hpp"

namespace scape {
namespace {

using testing::example_step;
using testing::Guarded;
using testing::normal_vector;

const UpdateKernels& kernels = update_kernels(cpu_device);
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

void expect_near(const std::vector<float>& actual, const std::vector<double>& expected, double relative, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], relative * std::max(std::abs(expected[i]), 1e-2)) << what << " " << i;
  }
}

class UpdateSizes : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, UpdateSizes, ::testing::Values(0, 1, 7, 15, 16, 17, 64, 255, 4097));

TEST_P(UpdateSizes, AdamW) {
  const std::int64_t n = GetParam();
  const auto theta = normal_vector(n, 1);
  const auto m = normal_vector(n, 2, 0, 0.1F);
  auto v = normal_vector(n, 3, 0, 0.1F);
  for (float& x : v) x *= x;
  const auto g = normal_vector(n, 4);
  const AdamStep s = example_step;
  std::vector<double> theta1;
  std::vector<double> m1;
  std::vector<double> v1;
  for (std::size_t i = 0; i < theta.size(); ++i) {
    const double gradient = static_cast<double>(s.gradient_scale) * g[i];
    m1.push_back(s.beta1 * static_cast<double>(m[i]) + (1.0 - s.beta1) * gradient);
    v1.push_back(s.beta2 * static_cast<double>(v[i]) + (1.0 - s.beta2) * gradient * gradient);
    const double u = s.m_scale * m1[i] / (std::sqrt(s.v_scale * v1[i]) + s.epsilon);
    theta1.push_back(theta[i] - s.learning_rate * (u + s.weight_decay * static_cast<double>(theta[i])));
  }
  const Guarded<float> pt(theta), pm(m), pv(v), pg(g);
  kernels.adamw(pt, pm, pv, pg, s, Stream());
  expect_near(pm.values(), m1, 2e-6, "m");
  expect_near(pv.values(), v1, 2e-6, "v");
  expect_near(pt.values(), theta1, 2e-6, "theta");
  EXPECT_EQ(pg.values(), g);
  EXPECT_TRUE(pt.intact() && pm.intact() && pv.intact() && pg.intact());
}

TEST_P(UpdateSizes, AdamS) {
  const std::int64_t n = GetParam();
  const auto theta = normal_vector(n, 1);
  const auto m = normal_vector(n, 2, 0, 0.1F);
  const auto g = normal_vector(n, 4);
  const AdamStep s = example_step;
  std::vector<double> theta1;
  std::vector<double> m1;
  for (std::size_t i = 0; i < theta.size(); ++i) {
    const double gradient = static_cast<double>(s.gradient_scale) * g[i];
    const double previous = static_cast<double>(s.previous_scale) * m[i];
    const double v = s.beta2 * previous * previous + (1.0 - s.beta2) * gradient * gradient;
    m1.push_back(s.beta1 * static_cast<double>(m[i]) + (1.0 - s.beta1) * gradient);
    const double u = s.m_scale * m1[i] / (std::sqrt(s.v_scale * v) + s.epsilon);
    theta1.push_back(theta[i] - s.learning_rate * (u + s.weight_decay * static_cast<double>(theta[i])));
  }
  const Guarded<float> pt(theta), pm(m), pg(g);
  kernels.adams(pt, pm, pg, s, Stream());
  expect_near(pm.values(), m1, 2e-6, "m");
  expect_near(pt.values(), theta1, 2e-6, "theta");
  EXPECT_EQ(pg.values(), g);
  EXPECT_TRUE(pt.intact() && pm.intact() && pg.intact());
}

TEST_P(UpdateSizes, AdamSDirection) {
  const std::int64_t n = GetParam();
  const auto m = normal_vector(n, 2, 0, 0.1F);
  const auto c = normal_vector(n, 3);
  const auto g = normal_vector(n, 4);
  const AdamStep s = example_step;
  std::vector<double> direction;
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double previous = static_cast<double>(s.previous_scale) * m[i];
    const double v = s.beta2 * previous * previous + (1.0 - s.beta2) * g[i] * static_cast<double>(g[i]);
    direction.push_back(s.m_scale * static_cast<double>(c[i]) / (std::sqrt(s.v_scale * v) + s.epsilon));
  }
  const Guarded<float> pg(g), pc(c), pm(m);
  kernels.adams_direction(pg, pc, pm, s, Stream());
  expect_near(pg.values(), direction, 2e-6, "direction");
  EXPECT_EQ(pc.values(), c);
  EXPECT_EQ(pm.values(), m);
  EXPECT_TRUE(pg.intact() && pc.intact() && pm.intact());
}

// Neither 0/0 nor infinity/infinity is a number to choose by.
TEST(UpdateKernels, AdamSDirectionIsANumber) {
  AdamStep step = example_step;
  step.epsilon = 0;
  step.m_scale = 2;
  const Guarded<float> g(std::vector{0.0F, 0.0F, 3e38F, 1.0F}), c(std::vector{0.0F, 1.0F, 3e38F, -1.0F}), m(4);
  kernels.adams_direction(g, c, m, step, Stream());
  const auto direction = g.values();
  EXPECT_EQ(direction[0], 0);
  EXPECT_EQ(direction[1], std::numeric_limits<float>::infinity());
  EXPECT_EQ(direction[2], 0);
  EXPECT_LT(direction[3], 0);
}

TEST_P(UpdateSizes, SumOfSquaresAddDivideScale) {
  const std::int64_t n = GetParam();
  const Stream stream;
  const auto x = normal_vector(n, 5);
  const auto y = normal_vector(n, 6);
  const Guarded<float> px(x), py(y);
  const Guarded<double> sum(std::vector{-1.0});
  kernels.sum_of_squares(px, sum, stream);
  const double expected =
      std::inner_product(x.begin(), x.end(), x.begin(), 0.0, std::plus(), [](double a, double b) { return a * b; });
  EXPECT_NEAR(sum.values()[0], expected, 1e-13 * expected);
  kernels.add(py, px, -0.75F, stream);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(py.values()[i], y[i] + -0.75F * x[i]);
  kernels.divide(px, 3, stream);
  const auto divided = px.values();
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(divided[i], x[i] / 3);
  kernels.scale(px, 0.3F, stream);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(px.values()[i], 0.3F * divided[i]);
  EXPECT_TRUE(px.intact() && py.intact() && sum.intact());
}

TEST(UpdateKernels, ZeroStateAndGradientMoveNothing) {
  const std::vector<float> theta{1, -2, 0};
  const Guarded<float> t(theta), m(3), v(3), g(3);
  AdamStep step = example_step;
  step.weight_decay = 0;
  kernels.adamw(t, m, v, g, step, Stream());
  kernels.adams(t, m, g, step, Stream());
  EXPECT_EQ(t.values(), theta);
  EXPECT_EQ(m.values(), std::vector<float>(3));
}

TEST(UpdateKernels, SumIsNotFiniteExactlyWhenAnElementIsNot) {
  const Stream stream;
  const Guarded<double> sum(std::int64_t{1});
  const Guarded<float> flag(std::vector{7.0F});
  const auto flag_of = [&](const std::vector<float>& x) {
    const Guarded<float> px(x);
    kernels.sum_of_squares(px, sum, stream);
    kernels.flag_not_finite(sum, flag, stream);
    EXPECT_TRUE(flag.intact());
    return flag.values()[0];
  };
  for (const std::size_t at : {0, 15, 16, 39}) {
    std::vector<float> x(40, std::numeric_limits<float>::max());
    EXPECT_EQ(flag_of(x), 0);
    for (const float bad : {infinity, -infinity, nan}) {
      x[at] = bad;
      EXPECT_EQ(flag_of(x), infinity) << bad << " at " << at;
    }
  }
  EXPECT_EQ(flag_of({}), 0);
}

TEST(UpdateKernels, RefuseSpansOfDifferentSizes) {
  const Stream stream;
  const Buffer<float> three(3), four(4);
  EXPECT_THROW(kernels.adamw(three, three, four, three, example_step, stream), Error);
  EXPECT_THROW(kernels.adams(three, three, four, example_step, stream), Error);
  EXPECT_THROW(kernels.add(three, four, 1, stream), Error);
}

TEST(UpdateKernels, AreOrderedOnAQueuedStream) {
  const Stream stream(cpu_device);
  const Buffer<float> x(1000);
  const Buffer<double> sum(1);
  stream.enqueue([&] { std::fill_n(x.data(), 1000, 2.0F); });
  kernels.divide(x, 4, stream);
  kernels.sum_of_squares(x, sum, stream);
  EXPECT_EQ(read(sum.span(), stream), 250);
}

// Numbers from PyTorch's formula, step by step in double, written independently of AdamStep:
//   θ ← θ (1 − ηλ);  m, v as usual;  θ ← θ − η/(1−β1^t) · m / (√v/√(1−β2^t) + ε)
TEST(AdamW, FollowsPyTorchOverSteps) {
  constexpr std::int64_t n = 40;
  constexpr double lr = 0.02, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0.1;
  const auto start = normal_vector(n, 11);
  std::vector<double> theta(start.begin(), start.end()), m(n), v(n);
  const Guarded<float> pt(start), pm(n), pv(n);
  for (int t = 1; t <= 20; ++t) {
    const auto g = normal_vector(n, 12, static_cast<std::uint64_t>(t));
    const double c1 = 1 - std::pow(beta1, t), c2 = 1 - std::pow(beta2, t);
    for (std::size_t i = 0; i < n; ++i) {
      theta[i] *= 1 - lr * decay;
      m[i] = beta1 * m[i] + (1 - beta1) * g[i];
      v[i] = beta2 * v[i] + (1 - beta2) * static_cast<double>(g[i]) * g[i];
      theta[i] -= lr / c1 * m[i] / (std::sqrt(v[i]) / std::sqrt(c2) + epsilon);
    }
    const AdamStep step{.beta1 = static_cast<float>(beta1),
                        .beta2 = static_cast<float>(beta2),
                        .epsilon = static_cast<float>(epsilon),
                        .learning_rate = static_cast<float>(lr),
                        .weight_decay = static_cast<float>(decay),
                        .m_scale = static_cast<float>(1 / c1),
                        .v_scale = static_cast<float>(1 / c2)};
    kernels.adamw(pt, pm, pv, Guarded<float>(g), step, Stream());
  }
  expect_near(pt.values(), theta, 1e-5, "theta");
}

TEST(AdamS, CoefficientsOfTheThreeConventions) {
  const CommonOptions options{.beta1 = 0.75, .beta2 = 0.5, .epsilon = 1e-6};
  const AdamStep scape = adams_step(options, BiasCorrection::scape, 2, 0.5);
  EXPECT_FLOAT_EQ(scape.m_scale, 1 / (1 - 0.75F * 0.75F));
  EXPECT_FLOAT_EQ(scape.v_scale, 1 / (1 - 0.25F));
  EXPECT_EQ(scape.previous_scale, 1);
  EXPECT_EQ(scape.learning_rate, 0.5F);
  EXPECT_EQ(scape.epsilon, 1e-6F);
  EXPECT_EQ(scape.beta1, 0.75F);
  EXPECT_EQ(scape.beta2, 0.5F);
  EXPECT_EQ(scape.weight_decay, 0);  // the caller's, per run of the layout
  EXPECT_EQ(scape.gradient_scale, 1);
  const AdamStep official = adams_step(options, BiasCorrection::official, 2, 0.5);
  EXPECT_FLOAT_EQ(official.m_scale, 1 / (1 - 0.75F * 0.75F));
  EXPECT_EQ(official.v_scale, 1);
  EXPECT_EQ(official.previous_scale, official.m_scale);
  const AdamStep none = adams_step(options, BiasCorrection::none, 2, 0.5);
  EXPECT_EQ(none.m_scale, 1);
  EXPECT_EQ(none.v_scale, 1);
  EXPECT_EQ(none.previous_scale, 1);
}

}  // namespace
}  // namespace scape
