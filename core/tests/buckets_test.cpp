// Buckets of a backward pass.
#include "scape/buckets.hpp"

#include <gmock/gmock.h>

#include "scape/error.hpp"

namespace scape {

void PrintTo(const Range& range, std::ostream* out) {
  *out << "[" << range.begin << ", " << range.end << ")";
}

namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

// Buckets of `full` coordinates.
Buckets buckets_of(std::int64_t full, std::int64_t size) {
  return {{Overlap::bucketed, static_cast<double>(full) * 4e-6}, size};
}

TEST(Buckets, AreGivenOutWhenFull) {
  Buckets buckets = buckets_of(30, 100);
  EXPECT_TRUE(buckets.empty());
  EXPECT_EQ(buckets.add({80, 100}), Range{});
  EXPECT_FALSE(buckets.empty());
  EXPECT_EQ(buckets.add({70, 80}), (Range{70, 100}));
  EXPECT_EQ(buckets.add({20, 70}), (Range{20, 70}));
  EXPECT_EQ(buckets.add({15, 20}), Range{});
  EXPECT_EQ(buckets.add({0, 15}), Range{});
  EXPECT_THAT(buckets.rest(), ElementsAre(Range{0, 20}));
  EXPECT_TRUE(buckets.empty());
}

TEST(Buckets, LeaveTheLastOneForTheRest) {
  Buckets buckets = buckets_of(30, 100);
  EXPECT_EQ(buckets.add({50, 100}), (Range{50, 100}));
  EXPECT_EQ(buckets.add({0, 50}), Range{});
  EXPECT_THAT(buckets.rest(), ElementsAre(Range{0, 50}));
}

TEST(Buckets, FillSideBySideAndJoin) {
  Buckets buckets = buckets_of(30, 100);
  EXPECT_EQ(buckets.add({95, 100}), Range{});
  EXPECT_EQ(buckets.add({50, 70}), Range{});
  EXPECT_EQ(buckets.add({90, 95}), Range{});
  EXPECT_EQ(buckets.add({40, 50}), (Range{40, 70}));
  EXPECT_EQ(buckets.add({0, 10}), Range{});
  EXPECT_EQ(buckets.add({20, 25}), Range{});
  EXPECT_EQ(buckets.add({70, 70}), Range{});
  EXPECT_EQ(buckets.add({10, 20}), Range{});  // closes a gap
  EXPECT_EQ(buckets.add({70, 90}), (Range{70, 100}));
  EXPECT_EQ(buckets.add({25, 40}), Range{});
  EXPECT_THAT(buckets.rest(), UnorderedElementsAre(Range{0, 40}));
}

TEST(Buckets, OfNoAnnouncementAreOneAndOfAPartAreAnError) {
  Buckets buckets = buckets_of(30, 100);
  EXPECT_THAT(buckets.rest(), ElementsAre(Range{0, 100}));
  EXPECT_EQ(buckets.add({0, 99}), (Range{0, 99}));
  EXPECT_THROW((void)buckets.rest(), Error);
}

}  // namespace
}  // namespace scape
