// Ok-Topk against an oracle in plain loops that plays all ranks at once and knows no regions, and what the regions are for.
#include "oktopk.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "rig.hpp"

namespace scape::testing {
namespace {

using Vector = std::vector<float>;
constexpr std::int64_t total_steps = 100;
constexpr std::size_t size = 280;  // of layout_of_three()
constexpr std::size_t matrices = 271;

// Multiples of 1/2: sums over a few ranks are exact in any order, and there are many ties and zeros. Smaller and smaller.
float gradient(std::int64_t t, int rank, std::int64_t j) {
  return std::round((4 - 0.03F * static_cast<float>(t)) * normal_at(3, t, rank, j)) / 2;
}

class Oracle {
 public:
  Oracle(const OkTopK::Options& options, std::size_t ranks) : options_(options), residual(ranks, Vector(size)), local_(ranks) {}

  Vector reduce(std::int64_t t) {
    const auto k = static_cast<std::size_t>(kept_count(options_.schedule.at(t, total_steps), matrices));
    const bool estimate = (t - 1) % options_.threshold_period == 0 || k != estimated_k_ || (global_ == 0 && k < matrices);
    estimated_k_ = k;
    std::vector<Vector> a = residual;
    Vector sum(size);
    std::vector<bool> in_any(size);
    const auto in_local = [&](std::size_t rank, std::size_t j) { return std::abs(a[rank][j]) >= local_[rank] && a[rank][j] != 0; };
    for (std::size_t rank = 0; rank < a.size(); ++rank) {
      for (std::size_t j = 0; j < size; ++j) a[rank][j] += gradient(t, static_cast<int>(rank), static_cast<std::int64_t>(j));
      if (estimate || (local_[rank] == 0 && k < matrices))
        local_[rank] = kth_largest(Vector(a[rank].begin(), a[rank].begin() + matrices), k);
      for (std::size_t j = 0; j < size; ++j) {
        if (j < matrices && !in_local(rank, j)) continue;
        sum[j] += a[rank][j];
        in_any[j] = true;
      }
    }
    Vector sums;
    for (std::size_t j = 0; j < matrices; ++j) {
      if (in_any[j]) sums.push_back(sum[j]);
    }
    if (estimate) global_ = kth_largest(sums, k);
    chosen = 0;
    for (std::size_t j = 0; j < size; ++j) {
      const bool in_global = j >= matrices || (in_any[j] && std::abs(sum[j]) >= global_);
      chosen += in_global ? 1 : 0;
      for (std::size_t rank = 0; rank < a.size(); ++rank)
        residual[rank][j] = in_global && (j >= matrices || in_local(rank, j)) ? 0.0F : a[rank][j];
      sum[j] = in_global ? sum[j] / static_cast<float>(a.size()) : 0.0F;
    }
    return sum;
  }

 private:
  // With k = all coordinates, 0.
  static float kth_largest(Vector values, std::size_t k) {
    if (k == matrices || values.empty()) return 0;
    for (float& value : values) value = std::abs(value);
    std::sort(values.begin(), values.end(), std::greater<>());
    return values[std::min(k, values.size()) - 1];
  }

  OkTopK::Options options_;
  std::size_t estimated_k_ = 0;

 public:
  std::vector<Vector> residual;
  std::size_t chosen = 0;

 private:
  Vector local_;  // thresholds
  float global_ = 0;
};

OkTopK::Options constant(double density, std::int64_t threshold_period, std::int64_t region_period, double balance) {
  return {{.density = density, .density_warmup = DensityWarmup::none}, threshold_period, region_period, balance};
}

TEST(OkTopK, EqualsTheOracle) {
  OkTopK::Options warmed = constant(0.1, 32, 64, 4);
  warmed.schedule.density_warmup = DensityWarmup::geometric;
  for (const OkTopK::Options& options :
       {warmed, constant(0.1, 1, 1, 4), constant(0.1, 8, 16, 1), constant(0.02, 32, 64, 1), constant(1, 32, 64, 4)}) {
    Rig rig(layout_of_three(), MPI_COMM_WORLD);
    OkTopK sync(options, {}, rig.method_context(total_steps));
    Oracle oracle(options, static_cast<std::size_t>(rig.comm->size()));
    const Vector& residual = oracle.residual[static_cast<std::size_t>(rig.comm->rank())];
    SCOPED_TRACE(::testing::Message() << "density " << options.schedule.density << ", period " << options.threshold_period);
    for (std::int64_t t = 1; t <= total_steps; ++t) {
      Rig::fill(rig.grads, [&](std::int64_t j) { return gradient(t, rig.comm->rank(), j); });
      ASSERT_TRUE(sync.reduce(rig.context(t, 0)));
      const Vector mean = oracle.reduce(t);
      EXPECT_EQ(Vector(rig.grads.data(), rig.grads.data() + size), mean) << "step " << t;
      EXPECT_EQ(std::memcmp(sync.state()[0].bytes.data(), residual.data(), size * sizeof(float)), 0) << "step " << t;
      EXPECT_EQ(sync.density(), static_cast<double>(oracle.chosen) / static_cast<double>(size));
    }
  }
}

// Once thresholds and regions are made and until they are again, a rank sends less than 6 k words, balancing and counts included.
TEST(OkTopK, SendsLessThanSixTimesKWordsBetweenEstimates) {
  ParameterLayout layout;
  layout.add("w", {8000}, TensorRole::matrix);
  const double k = 160;
  for (const double balance : {1.0, 4.0}) {
    Rig rig(layout, MPI_COMM_WORLD);
    OkTopK sync(constant(0.02, 16, 16, balance), {}, rig.method_context(total_steps));
    int counted = 0;
    double words = 0;
    for (std::int64_t t = 1; t <= 96; ++t) {
      // Large values crowd at the end, so that regions of equal length would be far from balanced.
      Rig::fill(rig.grads,
                [&](std::int64_t j) { return normal_at(3, t, rig.comm->rank(), j) * std::exp(static_cast<float>(j) / 1600); });
      const double before = rig.comm->traffic().total().wire_bytes;
      EXPECT_TRUE(sync.reduce(rig.context(t, 0)));
      if (t <= 32 || (t - 1) % 16 == 0) continue;
      words += (rig.comm->traffic().total().wire_bytes - before) / 4;
      ++counted;
    }
    EXPECT_LT(words / counted, 6 * k);
    EXPECT_GE(words / counted, rig.comm->size() == 1 ? 0.0 : 0.5 * k);
  }
}

// The same gradients, large in the first tenth, on every rank.
TEST(OkTopK, EveryRegionHasItsShareOfTheChosen) {
  const auto crowded = [](std::int64_t j) {
    return j < 100 ? 2.0F + static_cast<float>(j % 10) : 1.0F / static_cast<float>(1 + j);
  };
  ParameterLayout layout;
  layout.add("w", {1000}, TensorRole::matrix);
  Rig rig(layout, MPI_COMM_WORLD);
  OkTopK sync(constant(0.1, 1, 1, 4), {}, rig.method_context(total_steps));
  Rig::fill(rig.grads, crowded);
  EXPECT_TRUE(sync.reduce(rig.context(1, 0)));
  const int ranks = rig.comm->size();
  ASSERT_EQ(sync.regions().size(), static_cast<std::size_t>(ranks + 1));
  EXPECT_EQ(sync.regions().front(), 0);
  EXPECT_EQ(sync.regions().back(), 1000);
  for (int r = 0; r < ranks; ++r) {
    const Range region{sync.regions()[static_cast<std::size_t>(r)], sync.regions()[static_cast<std::size_t>(r) + 1]};
    EXPECT_NEAR(static_cast<double>(intersect(region, {0, 100}).size()), 100.0 / ranks, 1) << r;
  }
}

// Everything large moves to where one rank owns it all: with balancing that rank alone sends an all-to-all more, of its 50 entries.
TEST(OkTopK, BalancesWhatOneOwnerHolds) {
  ParameterLayout layout;
  layout.add("w", {1000}, TensorRole::matrix);
  std::vector<Vector> results;
  std::vector<std::int64_t> bytes;
  for (const double balance : {1.5, 1e9}) {
    Rig rig(layout, MPI_COMM_WORLD);
    const int ranks = rig.comm->size();
    if (ranks == 1) return;
    OkTopK sync(constant(0.05, 1, 100, balance), {}, rig.method_context(total_steps));
    for (std::int64_t t = 1; t <= 2; ++t) {
      const std::int64_t first = t == 1 ? 0 : 1000 - 50;
      Rig::fill(rig.grads,
                [&](std::int64_t j) { return t == 1 ? (j % 20 == 0 ? 1.0F : 0.0F) : (j >= first ? static_cast<float>(j) : 0.0F); });
      EXPECT_TRUE(sync.reduce(rig.context(t, 0)));
    }
    results.emplace_back(rig.grads.data(), rig.grads.data() + 1000);
    bytes.push_back(rig.comm->traffic()[Collective::all_to_all].payload_bytes);
    if (balance > 2) {
      EXPECT_EQ(bytes[0] - bytes[1], rig.comm->rank() == ranks - 1 ? 50 * 8 : 0);
    }
  }
  EXPECT_EQ(results[0], results[1]);
}

// Gradients whose sum does not fit a float, in a matrix or a vector, are refused like an infinite one: nothing changes.
TEST(OkTopK, AnOverflowingSumIsRefused) {
  for (const std::int64_t bad : {5, 275}) {
    Rig rig(layout_of_three(), MPI_COMM_WORLD);
    if (rig.comm->size() == 1) return;
    OkTopK sync(constant(0.1, 1, 1, 1), {}, rig.method_context(total_steps));
    Rig::fill(rig.grads, [&](std::int64_t j) { return gradient(1, rig.comm->rank(), j); });
    EXPECT_TRUE(sync.reduce(rig.context(1, 0)));
    const StateBytes before = save(sync);
    Rig::fill(rig.grads, [&](std::int64_t j) { return j == bad ? 3e38F : gradient(2, rig.comm->rank(), j); });
    EXPECT_FALSE(sync.reduce(rig.context(2, 0)));
    EXPECT_EQ(save(sync), before);
  }
}

}  // namespace
}  // namespace scape::testing
