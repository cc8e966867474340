// The syncs with a shared mask against oracles in plain loops that play all ranks at once.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "radius.hpp"
#include "rig.hpp"
#include "scape/scape.hpp"
#include "topk_shared.hpp"

namespace scape::testing {
namespace {

using Vector = std::vector<float>;
using Mask = std::vector<bool>;
constexpr std::int64_t total_steps = 100;

// Every vector coordinate of `range` and the largest of each matrix's part, by sorting.
void choose_by_sorting(const ParameterLayout& layout, Range range, double density, const Vector& a, Mask& mask) {
  for (const ParameterTensor& tensor : layout.tensors()) {
    const Range part = intersect(tensor.range, range);
    std::vector<std::int64_t> order(static_cast<std::size_t>(part.size()));
    std::iota(order.begin(), order.end(), part.begin);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
      return std::abs(a[static_cast<std::size_t>(i)]) > std::abs(a[static_cast<std::size_t>(j)]);
    });
    const std::int64_t k = tensor.role == TensorRole::vector ? part.size() : kept_count(density, part.size());
    for (std::int64_t i = 0; i < k; ++i) mask[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = true;
  }
}

// Runs `sync` beside `mask_of(t, a of every rank)` and compares means and residuals bit for bit.
template <class MaskOf>
void expect_same_as_oracle(Rig& rig, GradientSync& sync, MaskOf mask_of) {
  const auto size = static_cast<std::size_t>(rig.layout.size());
  const auto ranks = static_cast<std::size_t>(rig.comm->size());
  std::vector<Vector> residual(ranks, Vector(size));
  for (std::int64_t t = 1; t <= total_steps; ++t) {
    Rig::fill(rig.grads, [&](std::int64_t j) { return coarse_normal_at(3, t, rig.comm->rank(), j); });
    EXPECT_TRUE(sync.reduce(rig.context(t, 0)));

    std::vector<Vector> a(residual);
    Vector mean(size, 0.0F);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t j = 0; j < size; ++j)
        a[rank][j] += coarse_normal_at(3, t, static_cast<int>(rank), static_cast<std::int64_t>(j));
    }
    const Mask mask = mask_of(t, a);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t j = 0; j < size; ++j) {
        residual[rank][j] = mask[j] ? 0.0F : a[rank][j];
        if (mask[j]) mean[j] += a[rank][j];
      }
    }
    for (std::size_t j = 0; j < size; ++j) {
      EXPECT_EQ(rig.grads.data()[j], mean[j] / static_cast<float>(ranks)) << "coordinate " << j << ", step " << t;
    }
    const Vector& mine = residual[static_cast<std::size_t>(rig.comm->rank())];
    EXPECT_EQ(std::memcmp(sync.state()[0].bytes.data(), mine.data(), size * sizeof(float)), 0) << "step " << t;
    EXPECT_NEAR(sync.density(), static_cast<double>(std::count(mask.begin(), mask.end(), true)) / static_cast<double>(size), 1e-12);
  }
}

TEST(TopKShared, UnionAndOwnersEqualTheOracle) {
  for (const auto chooser : {TopKShared::Chooser::every_rank, TopKShared::Chooser::owner}) {
    for (const double density : {0.02, 0.3}) {
      Rig rig(layout_of_three(), MPI_COMM_WORLD);
      const TopKShared::Options options{{.density = density}, chooser};
      TopKShared sync(options, {}, rig.method_context(total_steps));
      expect_same_as_oracle(rig, sync, [&](std::int64_t t, const std::vector<Vector>& a) {
        Mask mask(a[0].size());
        for (std::size_t rank = 0; rank < a.size(); ++rank) {
          const Range all{0, rig.layout.size()};
          const Range owned = owned_range(rig.layout.size(), static_cast<int>(rank), static_cast<int>(a.size()));
          choose_by_sorting(rig.layout, chooser == TopKShared::Chooser::owner ? owned : all, options.schedule.at(t, total_steps),
                            a[rank], mask);
        }
        return mask;
      });
    }
  }
}

TEST(TopKShared, AnOwnersMaskHasNoFillIn) {
  Rig rig(layout_of_three(), MPI_COMM_WORLD);
  const DensitySchedule constant{0.1, DensityWarmup::none, 0};
  TopKShared united({constant, TopKShared::Chooser::every_rank}, {}, rig.method_context(total_steps));
  TopKShared owner({constant, TopKShared::Chooser::owner}, {}, rig.method_context(total_steps));
  for (TopKShared* sync : {&united, &owner}) {
    Rig::fill(rig.grads, [&](std::int64_t j) { return normal_at(3, 1, rig.comm->rank(), j); });
    EXPECT_TRUE(sync->reduce(rig.context(1, 0)));
  }
  const auto size = static_cast<double>(rig.layout.size());
  EXPECT_LE(owner.density() * size, 22 + 5 + 9 + 4);  // an owner of a piece of a tensor takes at least one of it
  if (rig.comm->size() > 1) {
    EXPECT_GT(united.density(), 1.2 * owner.density());
  }
}

TEST(Radius, EqualsTheOracle) {
  for (const std::int64_t period : {1, 4}) {
    Rig rig(layout_of_three(), MPI_COMM_WORLD);
    const Radius::Options options{0.05, period};
    Radius sync(options, {}, rig.method_context(total_steps));
    Mask kept(static_cast<std::size_t>(rig.layout.size()));
    expect_same_as_oracle(rig, sync, [&](std::int64_t t, const std::vector<Vector>& a) {
      if ((t - 1) % period != 0) return kept;
      Vector mean(a[0].size(), 0.0F);
      for (const Vector& of_rank : a) {
        for (std::size_t j = 0; j < mean.size(); ++j) mean[j] += of_rank[j];
      }
      for (float& value : mean) value /= static_cast<float>(a.size());
      kept.assign(kept.size(), false);
      choose_by_sorting(rig.layout, {0, rig.layout.size()}, options.density, mean, kept);
      return Mask(kept.size(), true);
    });
  }
}

TEST(Radius, BytesOfAKnownCase) {
  const ParameterLayout layout = layout_of_three();  // 221 + 50 + 9
  const Radius sync({0.1, 10}, {}, {layout, cpu_device, 0, 4, total_steps, 1});
  EXPECT_DOUBLE_EQ(sync.expected_wire_bytes(1), 1.5 * 4 * 280);
  EXPECT_DOUBLE_EQ(sync.expected_wire_bytes(2), 1.5 * 4 * (22 + 5 + 9 + 1));
  EXPECT_DOUBLE_EQ(sync.expected_wire_bytes(11), 1.5 * 4 * 280);
}

TEST(TopKShared, BytesOfAKnownCase) {
  const ParameterLayout layout = layout_of_three();  // 280 coordinates, 5 mask words
  const DensitySchedule all{1.0, DensityWarmup::none, 0};
  const TopKShared united({all, TopKShared::Chooser::every_rank}, {}, {layout, cpu_device, 0, 4, total_steps, 1});
  const TopKShared owner({all, TopKShared::Chooser::owner}, {}, {layout, cpu_device, 0, 4, total_steps, 1});
  EXPECT_DOUBLE_EQ(united.expected_wire_bytes(1), 0.75 * 4 * 40 + 1.5 * 4 * 1);  // no mask yet
  EXPECT_DOUBLE_EQ(owner.expected_wire_bytes(1), 0.75 * 40 + 1.5 * 4 * 281);
}

}  // namespace
}  // namespace scape::testing
