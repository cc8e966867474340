// Philox against the known answers of Random123 (Salmon et al., SC 2011: kat_vectors), and the distributions made from it.
#include "scape/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "scape/error.hpp"

namespace scape {
namespace {

using Words = std::array<std::uint32_t, 4>;

TEST(Philox, GivesTheKnownAnswers) {
  constexpr std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(ones, ones, ones), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Counter 243f6a88 85a308d3 13198a2e 03707344 and key a4093822 299f31d0, low words first: the digits of π.
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, IsTheSequenceOfPhiloxWords) {
  Rng rng(7, 9);
  for (std::uint64_t counter = 0; counter < 3; ++counter) {
    for (const std::uint32_t word : philox(7, 9, counter)) EXPECT_EQ(rng.next_u32(), word);
  }
  EXPECT_NE(Rng(7, 9).next_u32(), Rng(7, 10).next_u32());
  EXPECT_NE(Rng(7, 9).next_u32(), Rng(8, 9).next_u32());
}

TEST(Rng, UniformCoversTheUnitInterval) {
  Rng rng(1);
  std::vector<int> tenth(10);
  for (int i = 0; i < 100'000; ++i) {
    const float u = rng.uniform();
    ASSERT_TRUE(u >= 0 && u < 1) << u;
    ++tenth[static_cast<std::size_t>(u * 10)];
  }
  for (const int count : tenth) EXPECT_NEAR(count, 10'000, 500);  // 5 σ = 474
}

TEST(Rng, NormalHasTheMomentsOfANormal) {
  Rng rng(2);
  constexpr int n = 400'000;
  double sum = 0;
  double square = 0;
  double cube = 0;
  double fourth = 0;
  for (int i = 0; i < n; ++i) {
    const double x = rng.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    square += x * x;
    cube += x * x * x;
    fourth += x * x * x * x;
  }
  // Five standard errors: √(1/n), √(2/n), √(15/n), √(96/n).
  EXPECT_NEAR(sum / n, 0, 0.008);
  EXPECT_NEAR(square / n, 1, 0.0112);
  EXPECT_NEAR(cube / n, 0, 0.031);
  EXPECT_NEAR(fourth / n, 3, 0.078);
}

TEST(Rng, BelowIsUniformAndWithinItsBound) {
  Rng rng(3);
  std::vector<int> counts(3);
  for (int i = 0; i < 30'000; ++i) ++counts.at(rng.below(3));
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 410);  // 5 σ
  for (int i = 0; i < 10; ++i) EXPECT_EQ(rng.below(1), 0U);
  constexpr std::uint64_t large = (std::uint64_t{1} << 63) + 1;  // nearly half of the draws are rejected
  bool upper = false;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t x = rng.below(large);
    ASSERT_LT(x, large);
    upper |= x > large / 2;
  }
  EXPECT_TRUE(upper);
  EXPECT_THROW((void)rng.below(0), Error);
}

}  // namespace
}  // namespace scape
