// The flat coordinate space: ranges, layouts, what each rank owns, and how many coordinates a density keeps.
#include "scape/parameters.hpp"

#include <gmock/gmock.h>

#include "scape/density.hpp"
#include "scape/scape.hpp"
#include "support/message_of.hpp"

namespace scape {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

TEST(Range, Intersects) {
  EXPECT_EQ(intersect({0, 10}, {3, 5}), (Range{3, 5}));
  EXPECT_EQ(intersect({3, 8}, {5, 12}), (Range{5, 8}));
  EXPECT_TRUE(intersect({0, 3}, {3, 5}).empty());
  EXPECT_TRUE(intersect({7, 9}, {0, 2}).empty());
  EXPECT_EQ(intersect({7, 9}, {0, 2}).size(), 0);
  EXPECT_EQ(intersect({4, 4}, {0, 9}).size(), 0);
}

TEST(ParameterLayout, PlacesTensorsOneBehindTheOther) {
  ParameterLayout layout;
  EXPECT_EQ(layout.size(), 0);
  EXPECT_EQ(layout.add("a", {2, 3}, TensorRole::matrix), (Range{0, 6}));
  EXPECT_EQ(layout.add("b", {4}, TensorRole::matrix), (Range{6, 10}));
  EXPECT_EQ(layout.add("c", {5}, TensorRole::vector), (Range{10, 15}));
  EXPECT_EQ(layout.add("scalar", {}, TensorRole::vector), (Range{15, 16}));
  EXPECT_EQ(layout.add("d", {1, 1}, TensorRole::matrix), (Range{16, 17}));
  EXPECT_EQ(layout.size(), 17);
  EXPECT_EQ(layout.tensor("c").range, (Range{10, 15}));
  EXPECT_EQ(layout.tensor("a").shape, (std::vector<std::int64_t>{2, 3}));
  ASSERT_EQ(layout.runs().size(), 3U);  // neighbours of one role are one run
  EXPECT_EQ(layout.runs()[0].range, (Range{0, 10}));
  EXPECT_EQ(layout.runs()[0].role, TensorRole::matrix);
  EXPECT_EQ(layout.runs()[1].range, (Range{10, 16}));
  EXPECT_EQ(layout.runs()[1].role, TensorRole::vector);
  EXPECT_EQ(layout.runs()[2].range, (Range{16, 17}));
}

TEST(ParameterLayout, RefusesAndStaysAsItWas) {
  ParameterLayout layout;
  layout.add("weight", {2, 3}, TensorRole::matrix);
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { layout.add("weight", {1}, TensorRole::vector); }),
              HasSubstr("'weight' is declared twice"));
  EXPECT_THAT(message_of(ErrorKind::usage,
                         [&] {
                           layout.add("bias", {3, 0}, TensorRole::vector);
                         }),
              HasSubstr("'bias' has a dimension below 1"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { layout.add("bias", {-2, -3}, TensorRole::vector); }), HasSubstr("'bias'"));
  EXPECT_THAT(message_of(ErrorKind::usage,
                         [&] {
                           layout.add("huge", {std::int64_t{1} << 40, std::int64_t{1} << 40}, TensorRole::matrix);
                         }),
              HasSubstr("'huge'"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { (void)layout.tensor("wieght"); }), HasSubstr("'weight'"));
  EXPECT_EQ(layout.size(), 6);
  EXPECT_EQ(layout.tensors().size(), 1U);
}

TEST(OwnedRange, CoversDisjointlyAndBalancedInWholeMaskWords) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (std::int64_t size = 0; size <= 1200; size += size < 200 ? 1 : 37) {
      SCOPED_TRACE("size " + std::to_string(size) + ", ranks " + std::to_string(ranks));
      std::int64_t next = 0;
      std::int64_t most = 0;
      std::int64_t least = mask_words(size);
      for (int rank = 0; rank < ranks; ++rank) {
        const Range owned = owned_range(size, rank, ranks);
        ASSERT_EQ(owned.begin, next);
        ASSERT_GE(owned.size(), 0);
        ASSERT_TRUE(owned.begin % 64 == 0 || owned.empty());
        next = owned.end;
        most = std::max(most, mask_words(owned.size()));
        least = std::min(least, mask_words(owned.size()));
      }
      ASSERT_EQ(next, size);
      ASSERT_LE(most - least, 1);
    }
  }
}

TEST(DensitySchedule, FallsFromOneToItsTarget) {
  DensitySchedule schedule{.density = 0.01, .density_warmup = DensityWarmup::geometric, .density_warmup_fraction = 0.1};
  EXPECT_NEAR(schedule.at(1, 1000), std::pow(0.01, 0.01), 1e-15);
  EXPECT_NEAR(schedule.at(50, 1000), 0.1, 1e-15);
  EXPECT_EQ(schedule.at(100, 1000), 0.01);
  EXPECT_EQ(schedule.at(1064, 1000), 0.01);  // a mask for after the end of the run
  for (std::int64_t t = 1; t < 150; ++t) EXPECT_LE(schedule.at(t + 1, 1000), schedule.at(t, 1000));
  schedule.density_warmup = DensityWarmup::linear;
  EXPECT_NEAR(schedule.at(50, 1000), 0.505, 1e-15);
  EXPECT_EQ(schedule.at(100, 1000), 0.01);
  schedule.density_warmup = DensityWarmup::none;
  EXPECT_EQ(schedule.at(1, 1000), 0.01);
  schedule = {.density = 0.25, .density_warmup = DensityWarmup::geometric, .density_warmup_fraction = 0};
  EXPECT_EQ(schedule.at(1, 1), 0.25);
}

TEST(DensitySchedule, StepsDownWhenTheWarmupIsOver) {
  DensitySchedule schedule{.density = 0.01, .density_warmup = DensityWarmup::step, .density_warmup_fraction = 0.1};
  for (std::int64_t t = 1; t < 100; ++t) EXPECT_EQ(schedule.at(t, 1000), 1);
  EXPECT_EQ(schedule.at(100, 1000), 0.01);
  EXPECT_EQ(schedule.at(101, 1000), 0.01);
}

TEST(DensitySchedule, LengthInStepsTakesTheFractionsPlace) {
  DensitySchedule schedule{
      .density = 0.01, .density_warmup = DensityWarmup::step, .density_warmup_fraction = 0.5, .density_warmup_steps = 10};
  EXPECT_EQ(schedule.at(9, 1000), 1);
  EXPECT_EQ(schedule.at(10, 1000), 0.01);
  schedule.density_warmup = DensityWarmup::geometric;
  EXPECT_NEAR(schedule.at(5, 1000), 0.1, 1e-15);
  schedule.density_warmup = DensityWarmup::linear;
  EXPECT_NEAR(schedule.at(5, 1000), 0.505, 1e-15);
  schedule.density_warmup_steps = 0;
  EXPECT_NEAR(schedule.at(250, 1000), 0.505, 1e-15);
}

TEST(DensitySchedule, KeepsAtLeastOneAndAtMostAll) {
  EXPECT_EQ(kept_count(0.01, 0), 0);
  EXPECT_EQ(kept_count(1e-9, 1), 1);
  EXPECT_EQ(kept_count(0.01, 99), 1);
  EXPECT_EQ(kept_count(0.01, 100), 1);
  EXPECT_EQ(kept_count(0.01, 299), 2);
  EXPECT_EQ(kept_count(0.5, 7), 3);
  EXPECT_EQ(kept_count(1, 7), 7);
}

}  // namespace
}  // namespace scape
