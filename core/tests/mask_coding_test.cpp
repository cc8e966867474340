// Codes of masks: what is read is what was written, sizes are those announced, and near the entropy bound.
#include "methods/mask_coding.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "scape/kernels.hpp"
#include "scape/rng.hpp"
#include "support/message_of.hpp"

namespace scape::testing {
namespace {

using Words = std::vector<std::uint64_t>;
using Bytes = std::vector<std::uint8_t>;
constexpr std::array codings{MaskCoding::bitmap, MaskCoding::index32, MaskCoding::index16, MaskCoding::elias_fano,
                             MaskCoding::automatic};

Words words_of(std::int64_t n, const std::vector<std::int64_t>& set) {
  Words words(static_cast<std::size_t>(mask_words(n)));
  for (const std::int64_t j : set) words[static_cast<std::size_t>(j / 64)] |= std::uint64_t{1} << j % 64;
  return words;
}

// k of n coordinates: in turn at random, the first, the last, or in one clump.
std::vector<std::int64_t> choose(std::int64_t n, std::int64_t k, int kind) {
  std::vector<std::int64_t> set;
  if (kind == 0) {
    Rng rng(3, static_cast<std::uint64_t>(n * 31 + k));
    for (std::int64_t j = 0; j < n; ++j) {
      const auto wanted = static_cast<std::uint64_t>(k - std::ssize(set));
      if (rng.below(static_cast<std::uint64_t>(n - j)) < wanted) set.push_back(j);
    }
    return set;
  }
  const std::int64_t first = kind == 1 ? 0 : kind == 2 ? n - k : (n - k) / 2;
  for (std::int64_t j = first; j < first + k; ++j) set.push_back(j);
  return set;
}

Bytes encoded(MaskCoding coding, const Words& words, std::int64_t n, std::int64_t k) {
  Bytes coded(static_cast<std::size_t>(coded_bytes(coding, n, k)));
  encode_mask(coding, words, n, k, coded);
  return coded;
}

void expect_identity(std::int64_t n, std::int64_t k) {
  for (const int kind : {0, 1, 2, 3}) {
    const Words words = words_of(n, choose(n, k, kind));
    for (const MaskCoding coding : codings) {
      const Bytes coded = encoded(coding, words, n, k);
      Words read(words.size(), ~std::uint64_t{0});  // what was there does not matter
      decode_mask(coding, coded, n, k, read);
      EXPECT_EQ(read, words) << "coding " << static_cast<int>(coding) << ", " << k << " of " << n << ", kind " << kind;
    }
  }
}

TEST(MaskCoding, WhatIsReadIsWhatWasWritten) {
  for (std::int64_t n = 0; n <= 130; ++n) {
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, n / 10, n / 3, n / 2, n - 1, n}) {
      if (0 <= k && k <= n) expect_identity(n, k);
    }
  }
  for (const std::int64_t n : {1000, 65535, 65536, 65537, 131072, 200001}) {
    for (const double density : {0.0, 1e-5, 1e-3, 0.01, 0.0625, 0.1, 0.49, 0.5, 0.51, 0.9, 1.0}) {
      expect_identity(n, static_cast<std::int64_t>(density * static_cast<double>(n)));
    }
    expect_identity(n, 1);
    expect_identity(n, n - 1);
  }
}

TEST(MaskCoding, SizesAreThoseOfTheFormulas) {
  EXPECT_EQ(coded_bytes(MaskCoding::bitmap, 1001, 7), 126);
  EXPECT_EQ(coded_bytes(MaskCoding::index32, 1001, 7), 28);
  EXPECT_EQ(coded_bytes(MaskCoding::index16, 1001, 7), 4 + 14);
  EXPECT_EQ(coded_bytes(MaskCoding::index16, 65537, 7), 8 + 14);
  // 1001/7 = 143: 7 low bits each, 49 bits; 7 + ⌊1000/128⌋ = 14 high bits
  EXPECT_EQ(coded_bytes(MaskCoding::elias_fano, 1001, 7), 7 + 2);
  EXPECT_EQ(coded_bytes(MaskCoding::index32, (std::int64_t{1} << 32) + 1, 7), std::numeric_limits<std::int64_t>::max());
  for (const MaskCoding coding : codings) {
    EXPECT_EQ(coded_bytes(coding, 0, 0), 0);
    if (coding != MaskCoding::bitmap) {
      EXPECT_EQ(coded_bytes(coding, 1001, 0), 0);
    }
  }
}

// Known bytes, so that another program can read them.
TEST(MaskCoding, BytesAreTheDocumentedOnes) {
  const Words words = words_of(20, {2, 5, 17});
  EXPECT_EQ(encoded(MaskCoding::bitmap, words, 20, 3), (Bytes{0x24, 0x00, 0x02}));
  EXPECT_EQ(encoded(MaskCoding::index32, words, 20, 3), (Bytes{2, 0, 0, 0, 5, 0, 0, 0, 17, 0, 0, 0}));
  EXPECT_EQ(encoded(MaskCoding::index16, words, 20, 3), (Bytes{3, 0, 0, 0, 2, 0, 5, 0, 17, 0}));
  // 20/3 = 6: 2 low bits: 10, 01, 01 from the lowest on; high parts 0, 1, 4 set bits 0 + 0, 1 + 1, 2 + 4.
  EXPECT_EQ(encoded(MaskCoding::elias_fano, words, 20, 3), (Bytes{0b01'01'10, 0b0100'0101}));
}

TEST(MaskCoding, AutomaticIsTheSmallest) {
  for (const std::int64_t n : {1, 20, 1000, 65536, 1000000}) {
    for (const double density : {0.0, 1e-4, 0.01, 0.03, 0.05, 0.1, 0.3, 1.0}) {
      const auto k = static_cast<std::int64_t>(density * static_cast<double>(n));
      for (const MaskCoding coding : codings) {
        EXPECT_LE(coded_bytes(MaskCoding::automatic, n, k), coded_bytes(coding, n, k)) << k << " of " << n;
      }
    }
  }
  EXPECT_EQ(resolve(MaskCoding::automatic, 1000, 500), MaskCoding::bitmap);
  EXPECT_EQ(resolve(MaskCoding::automatic, 1000000, 1000), MaskCoding::elias_fano);
  EXPECT_EQ(resolve(MaskCoding::index32, 1000, 500), MaskCoding::index32);
}

// Bytes per coordinate beside the entropy of a random set: H(d)/8.
TEST(MaskCoding, EliasFanoIsNearTheEntropy) {
  constexpr std::int64_t n = 1'000'000;
  struct Expected {
    double density, bound, overhead;
  };
  for (const auto& [density, bound, overhead] : {Expected{0.1, 0.0586, 0.12}, {0.01, 0.0101, 0.06}, {0.001, 0.0014, 0.07}}) {
    const double entropy = -(density * std::log2(density) + (1 - density) * std::log2(1 - density)) / 8;
    EXPECT_NEAR(entropy, bound, 0.00005);
    const double bytes = static_cast<double>(coded_bytes(MaskCoding::elias_fano, n, static_cast<std::int64_t>(density * n))) / n;
    EXPECT_GE(bytes, entropy);
    EXPECT_LT(bytes, (1 + overhead) * bound) << density;
  }
}

TEST(MaskCoding, DamagedBytesAreRefused) {
  constexpr std::int64_t n = 100000;
  const Words words = words_of(n, choose(n, 50, 0));
  Words read(words.size());
  for (const MaskCoding coding : codings) {
    const Bytes sound = encoded(coding, words, n, 50);
    Bytes all_ones(sound.size(), 0xff);
    Bytes all_zeros(sound.size());
    for (const Bytes& damaged : {all_ones, all_zeros}) {
      SCOPED_TRACE("coding " + std::to_string(static_cast<int>(coding)) + ", bytes of " + std::to_string(damaged[0]));
      testing::message_of(ErrorKind::communication, [&] { decode_mask(coding, damaged, n, 50, read); });
    }
    EXPECT_THROW(decode_mask(coding, std::span(sound).first(sound.size() - 1), n, 50, read), Error);
  }
}

TEST(MaskCoding, CopiesBitsBetweenAnyPlaces) {
  Rng rng(11);
  Words from(6);
  for (std::uint64_t& word : from) word = std::uint64_t{rng.next_u32()} << 32 | rng.next_u32();
  const auto bit = [](const Words& words, std::int64_t j) { return words[static_cast<std::size_t>(j / 64)] >> j % 64 & 1; };
  for (const std::int64_t from_first : {0, 1, 63, 64, 100}) {
    for (const std::int64_t to_first : {0, 5, 63, 64, 127}) {
      for (const std::int64_t n : {0, 1, 63, 64, 65, 128, 200}) {
        Words to(6);
        to[0] = 1;  // stays
        copy_set_bits(from, from_first, n, to, to_first);
        for (std::int64_t j = 0; j < 384; ++j) {
          const bool copied = j >= to_first && j < to_first + n;
          const std::uint64_t expected = (copied ? bit(from, from_first + j - to_first) : 0) | (j == 0 ? 1 : 0);
          ASSERT_EQ(bit(to, j), expected) << from_first << " -> " << to_first << ", " << n << ", bit " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace scape::testing
