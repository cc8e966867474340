// Top-k against an oracle in plain loops that plays all ranks at once, and the meaning of its options.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rig.hpp"
#include "topk.hpp"

namespace scape::testing {
namespace {

using Vector = std::vector<float>;
constexpr std::int64_t total_steps = 100;

// The formulas of topk.hpp, one rank after the other.
class Oracle {
 public:
  Oracle(const TopK::Options& options, const ParameterLayout& layout, int ranks)
      : options_(options), layout_(layout), residual_(static_cast<std::size_t>(ranks), Vector(size())), velocity_(residual_) {}

  Vector reduce(std::int64_t t) {
    Vector mean(size(), 0.0F);
    for (std::size_t rank = 0; rank < residual_.size(); ++rank) {
      Vector a(size());
      for (std::size_t j = 0; j < size(); ++j) {
        float g = coarse_normal_at(3, t, static_cast<int>(rank), static_cast<std::int64_t>(j));
        if (options_.momentum_correction > 0)
          g = velocity_[rank][j] = g + static_cast<float>(options_.momentum_correction) * velocity_[rank][j];
        a[j] = g + residual_[rank][j];
      }
      const std::vector<bool> sent = selection(a, t);
      for (std::size_t j = 0; j < size(); ++j) {
        if (sent[j]) mean[j] += a[j];
        residual_[rank][j] = sent[j] || !options_.error_feedback ? 0.0F : a[j];
        if (sent[j]) velocity_[rank][j] = 0;
      }
    }
    for (float& value : mean) value /= static_cast<float>(residual_.size());
    return mean;
  }
  [[nodiscard]] const Vector& residual(int rank) const { return residual_[static_cast<std::size_t>(rank)]; }

 private:
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(layout_.size()); }
  [[nodiscard]] std::vector<bool> selection(const Vector& a, std::int64_t t) const {
    std::vector<bool> sent(size(), false);
    const double density = options_.schedule.at(t, total_steps);
    std::vector<std::vector<std::size_t>> groups(1);
    for (const ParameterTensor& tensor : layout_.tensors()) {
      if (options_.scope == TopK::Scope::tensor) groups.emplace_back();
      for (auto j = static_cast<std::size_t>(tensor.range.begin); j < static_cast<std::size_t>(tensor.range.end); ++j) {
        if (tensor.role == TensorRole::vector && options_.dense_vectors) {
          sent[j] = true;
        } else {
          groups.back().push_back(j);
        }
      }
    }
    for (std::vector<std::size_t>& group : groups) {
      std::stable_sort(group.begin(), group.end(), [&](std::size_t i, std::size_t j) { return std::abs(a[i]) > std::abs(a[j]); });
      const std::int64_t k = kept_count(density, static_cast<std::int64_t>(group.size()));
      for (std::int64_t i = 0; i < k; ++i) sent[group[static_cast<std::size_t>(i)]] = true;
    }
    return sent;
  }

  TopK::Options options_;
  const ParameterLayout& layout_;
  std::vector<Vector> residual_, velocity_;
};

void expect_same_as_oracle(const TopK::Options& options) {
  Rig rig(layout_of_three(), MPI_COMM_WORLD);
  TopK sync(options, {}, rig.method_context(total_steps));
  Oracle oracle(options, rig.layout, rig.comm->size());
  for (std::int64_t t = 1; t <= total_steps; ++t) {
    Rig::fill(rig.grads, [&](std::int64_t j) { return coarse_normal_at(3, t, rig.comm->rank(), j); });
    EXPECT_TRUE(sync.reduce(rig.context(t, 0)));
    // Sums of a few multiples of 1/2 are exact in any order (with momentum: of a few floats, not quite).
    const float tolerance = options.momentum_correction > 0 ? 1e-5F : 0;
    const Vector mean = oracle.reduce(t);
    for (std::size_t j = 0; j < mean.size(); ++j)
      EXPECT_NEAR(rig.grads.data()[j], mean[j], tolerance) << "coordinate " << j << ", step " << t;
    if (!options.error_feedback) continue;
    const auto entries = sync.state();
    EXPECT_EQ(entries[0].name, "topk/residual");
    EXPECT_EQ(std::memcmp(entries[0].bytes.data(), oracle.residual(rig.comm->rank()).data(), mean.size() * sizeof(float)), 0)
        << "step " << t;
    double squares = 0;
    for (const float r : oracle.residual(rig.comm->rank())) squares += static_cast<double>(r) * r;
    EXPECT_NEAR(sync.residual_norm(), std::sqrt(squares), 1e-9);
  }
}

TopK::Options options_at(double density) {
  TopK::Options options;
  options.schedule.density = density;
  return options;
}

TEST(TopK, EqualsTheOracle) {
  for (const double density : {0.01, 0.1, 0.3, 0.7, 1.0}) {  // few coordinates are gathered, many are all-reduced
    SCOPED_TRACE(density);
    expect_same_as_oracle(options_at(density));
  }
}

TEST(TopK, EveryOptionEqualsTheOracle) {
  TopK::Options global = options_at(0.1);
  global.scope = TopK::Scope::global;
  TopK::Options sparse_vectors = options_at(0.1);
  sparse_vectors.dense_vectors = false;
  TopK::Options forgetful = options_at(0.1);
  forgetful.error_feedback = false;
  TopK::Options momentum = options_at(0.1);
  momentum.momentum_correction = 0.9;
  TopK::Options constant = options_at(0.1);
  constant.schedule.density_warmup = DensityWarmup::none;
  for (const TopK::Options& options : {global, sparse_vectors, forgetful, momentum, constant}) expect_same_as_oracle(options);
}

// One rank: what is sent is the result, so sent + residual must be the input, bit for bit, and the next input contains it.
TEST(TopK, SentPlusResidualIsTheInput) {
  Rig rig(odd_layout(57), MPI_COMM_SELF);
  TopK::Options options = options_at(0.1);
  options.schedule.density_warmup = DensityWarmup::none;
  TopK sync(options, {}, rig.method_context(total_steps));
  Vector residual(57, 0.0F);
  for (std::int64_t t = 1; t <= 5; ++t) {
    Vector input(57);
    for (std::size_t j = 0; j < input.size(); ++j) {
      const float g = normal_at(9, t, 0, static_cast<std::int64_t>(j));
      rig.grads.data()[j] = g;
      input[j] = g + residual[j];
    }
    ASSERT_TRUE(sync.reduce(rig.context(t, 0)));
    const auto* kept = reinterpret_cast<const float*>(sync.state()[0].bytes.data());
    for (std::size_t j = 0; j < input.size(); ++j) {
      EXPECT_EQ(rig.grads.data()[j] + kept[j], input[j]) << "coordinate " << j << ", step " << t;
      EXPECT_TRUE(rig.grads.data()[j] == 0 || kept[j] == 0);
    }
    EXPECT_GT(sync.residual_norm(), 0);
    residual.assign(kept, kept + residual.size());
  }
}

TEST(TopK, BytesOfAKnownCase) {
  // 221 + 50 sparse coordinates at d = 0.1: k = 22 + 5, and 9 dense ones.
  const ParameterLayout layout = layout_of_three();
  TopK::Options options = options_at(0.1);
  options.schedule.density_warmup = DensityWarmup::none;
  const TopK sync(options, {}, {layout, cpu_device, 0, 4, total_steps, 1});
  EXPECT_DOUBLE_EQ(sync.expected_wire_bytes(1), 3 * 8 * 27 + 2 * 0.75 * 4 * 9);
  // At d = 1/2 four ranks would gather more than the all-reduce of everything carries.
  options.schedule.density = 0.5;
  const TopK half(options, {}, {layout, cpu_device, 0, 4, total_steps, 1});
  EXPECT_DOUBLE_EQ(half.expected_wire_bytes(1), 2 * 0.75 * 4 * 280);
}

// Gradients whose sum does not fit a float are refused like an infinite one: the residual stays.
TEST(TopK, AnOverflowingSumIsRefused) {
  for (const double density : {0.02, 1.0}) {
    Rig rig(odd_layout(57), MPI_COMM_WORLD);
    if (rig.comm->size() == 1) return;
    TopK sync(options_at(density), {}, rig.method_context(1));
    Rig::fill(rig.grads, [](std::int64_t j) { return j % 2 == 0 ? 1.0F : 2.0F; });
    EXPECT_TRUE(sync.reduce(rig.context(1, 0)));
    const double before = sync.residual_norm();
    Rig::fill(rig.grads, [](std::int64_t j) { return j == 5 ? 3e38F : 0.0F; });
    EXPECT_FALSE(sync.reduce(rig.context(2, 0)));
    EXPECT_EQ(sync.residual_norm(), before);
  }
}

TEST(TopK, RefusesOptionsThatCannotBeMeant) {
  ParameterLayout mixed;
  mixed.add("v", {3}, TensorRole::vector);
  mixed.add("a", {4}, TensorRole::matrix);
  mixed.add("w", {3}, TensorRole::vector);
  mixed.add("b", {4}, TensorRole::matrix);
  const auto make = [&](const TopK::Options& options) { const TopK sync(options, {}, {mixed, cpu_device, 0, 1, 1, 1}); };
  TopK::Options global;
  global.scope = TopK::Scope::global;
  TopK::Options forgetful;
  forgetful.error_feedback = false;
  forgetful.momentum_correction = 0.9;
  EXPECT_THROW(make(global), Error);
  EXPECT_THROW(make(forgetful), Error);
  global.dense_vectors = false;
  EXPECT_NO_THROW(make(global));
}

}  // namespace
}  // namespace scape::testing
