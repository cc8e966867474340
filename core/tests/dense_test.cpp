// The dense mean on real ranks: its two payloads against plain loops, its buckets, its bytes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "methods/dense.hpp"
#include "support/rig.hpp"

namespace scape::testing {
namespace {

// To the nearest number of 8 significant bits, even in a tie.
float bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U);
}

// The gradients after one reduce; tensors are announced from the last to the first, as in a backward pass.
struct Mean {
  Rig rig;
  double expected_wire_bytes = 0;

  Mean(std::int64_t size, const Dense::Options& options, std::int64_t t, Streams streams)
      : rig(odd_layout(size), MPI_COMM_WORLD, streams) {
    Dense dense(options, {}, rig.method_context(1));
    Rig::fill(rig.grads, [&](std::int64_t j) { return normal_at(3, t, rig.comm->rank(), j); });
    const StepContext context = rig.context(1, 0);
    for (auto tensor = rig.layout.tensors().rbegin(); tensor != rig.layout.tensors().rend(); ++tensor)
      dense.gradients_ready(context, tensor->range);
    EXPECT_TRUE(dense.reduce(context));
    rig.stream.synchronize();
    expected_wire_bytes = dense.expected_wire_bytes(1);
    EXPECT_NEAR(rig.comm->traffic().total().wire_bytes, expected_wire_bytes, 1e-6);
  }
  [[nodiscard]] std::vector<float> values() const { return {rig.grads.data(), rig.grads.data() + rig.grads.size()}; }
};

const BucketOptions at_once;
const BucketOptions small_buckets{Overlap::bucketed, 2e-4};  // 50 coordinates

TEST(Dense, Bf16IsTheRoundedMeanOfRoundedGradientsWhateverTheBuckets) {
  for (const std::int64_t size : {1, 3, 19, 57, 300, 1000}) {
    for (std::int64_t t = 1; t <= 10; ++t) {
      const Mean whole(size, {at_once, PayloadType::bf16}, t, Streams::immediate);
      const Mean bucketed(size, {small_buckets, PayloadType::bf16}, t, Streams::queued);
      std::vector<float> expected;
      for (std::int64_t j = 0; j < size; ++j) {
        float sum = 0;
        for (int r = 0; r < whole.rig.comm->size(); ++r) sum += bf16(normal_at(3, t, r, j));
        expected.push_back(bf16(sum / static_cast<float>(whole.rig.comm->size())));
      }
      EXPECT_EQ(whole.values(), expected) << "size " << size << ", step " << t;
      EXPECT_EQ(bucketed.values(), expected) << "size " << size << ", step " << t;
    }
  }
}

TEST(Dense, Fp32IsTheMeanToRounding) {
  for (const std::int64_t size : {1, 3, 19, 57, 1000}) {
    for (const BucketOptions& buckets : {at_once, small_buckets}) {
      const Mean mean(size, {buckets, PayloadType::fp32}, 1, Streams::queued);
      for (std::int64_t j = 0; j < size; ++j) {
        double sum = 0, magnitudes = 0;
        for (int r = 0; r < mean.rig.comm->size(); ++r) {
          sum += normal_at(3, 1, r, j);
          magnitudes += std::abs(normal_at(3, 1, r, j));
        }
        EXPECT_NEAR(mean.values()[static_cast<std::size_t>(j)], sum / mean.rig.comm->size(), 3e-7 * magnitudes) << j;
      }
      EXPECT_TRUE(same_on_all_ranks(mean.rig.grads.data(), static_cast<std::size_t>(4 * size), MPI_COMM_WORLD));
    }
  }
}

// θ of 100 steps of a method made of the dense mean and a rule, beside its formulas in double for all ranks at once.
TEST(Dense, WithEitherRuleFollowsTheFormulas) {
  constexpr double rate = 0.01;
  for (const std::string rule : {"adamw", "adams"}) {
    Registry registry;
    register_core(registry);
    const MethodChoice choice(registry, rule, "dense");
    Rig rig(odd_layout(57), MPI_COMM_WORLD);
    const std::unique_ptr<Optimizer> method = choice.make(rig.method_context(100));
    const CommonOptions common;  // clips to a norm of 1
    const auto gradient = [&](std::int64_t t, int rank, std::int64_t j) {
      return 0.2F * normal_at(6, t, 0, 0) * (normal_at(7, 0, 0, j) + normal_at(5, t, rank, j));
    };
    const auto ranks = static_cast<double>(rig.comm->size());
    const std::size_t matrices = static_cast<std::size_t>(rig.layout.runs()[0].range.end);
    std::vector<double> theta(rig.params.data(), rig.params.data() + 57), m(57), v(57);
    int clipped = 0;
    for (std::int64_t t = 1; t <= 100; ++t) {
      std::vector<double> g(57);
      double squares = 0;
      for (std::size_t j = 0; j < g.size(); ++j) {
        for (int r = 0; r < rig.comm->size(); ++r) g[j] += gradient(t, r, static_cast<std::int64_t>(j)) / ranks;
        squares += g[j] * g[j];
      }
      const double clip = std::min(1.0, common.clip_norm / std::sqrt(squares));
      clipped += clip < 1 ? 1 : 0;
      for (std::size_t j = 0; j < g.size(); ++j) {
        const double before = rule == "adamw" ? v[j] : m[j] * m[j];
        v[j] = common.beta2 * before + (1 - common.beta2) * clip * clip * g[j] * g[j];
        m[j] = common.beta1 * m[j] + (1 - common.beta1) * clip * g[j];
        const double root = std::sqrt(v[j] / (1 - std::pow(common.beta2, t)));
        const double decay = j < matrices ? common.weight_decay : 0;
        theta[j] -= rate * (m[j] / (1 - std::pow(common.beta1, t)) / (root + common.epsilon) + decay * theta[j]);
      }
      const StepResult result = rig.step(*method, t, rate, [&](std::int64_t j) { return gradient(t, rig.comm->rank(), j); });
      EXPECT_NEAR(result.gradient_norm, std::sqrt(squares), 1e-5 * std::sqrt(squares));
      for (std::size_t j = 0; j < g.size(); ++j)
        EXPECT_NEAR(rig.values()[j], theta[j], 1e-5) << rule << ", step " << t << ", " << j;
    }
    EXPECT_GT(clipped, 10);
    EXPECT_LT(clipped, 90);
  }
}

TEST(Dense, BytesOfAKnownCase) {
  const ParameterLayout layout = odd_layout(1000);  // four blocks of 256
  const MethodContext context{layout, cpu_device, 0, 4, 1, 1};
  EXPECT_DOUBLE_EQ(Dense({}, {}, context).expected_wire_bytes(1), 1.5 * 4000);
  EXPECT_DOUBLE_EQ(Dense({at_once, PayloadType::bf16}, {}, context).expected_wire_bytes(1), 1.5 * 4 * 512);
}

}  // namespace
}  // namespace scape::testing
