// Block-wise integers: accuracy, the cases that break such codes, and that nothing outside the spans is touched.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "scape/kernels.hpp"
#include "scape/rng.hpp"

namespace scape {
namespace {

constexpr float guard = 12345.0F;

// Quantizes and reads back `x`, which lies `offset` floats behind an aligned address, between guards that must survive.
struct Coded {
  std::vector<float> values, error;
  std::vector<std::uint8_t> records;
};
Coded code(const std::vector<float>& x, const QuantFormat& format, std::size_t offset = 1, const RandomWords& random = {1, 2, 3}) {
  const QuantKernels& kernels = quant_kernels(cpu_device);
  const auto n = static_cast<std::int64_t>(x.size());
  const std::int64_t bytes = quant_bytes(n, format);
  constexpr std::size_t margin = 8;
  std::vector<float> in(x.size() + offset + margin, guard), error(in), out(in);
  std::copy(x.begin(), x.end(), in.begin() + static_cast<std::ptrdiff_t>(offset));
  const std::vector<float> in_before = in;
  std::vector<std::uint8_t> records(static_cast<std::size_t>(bytes) + 2 * margin, 0xab);
  const auto inside = [&](std::vector<float>& v) { return Span<float>(v.data() + offset, n, cpu_device); };
  const Span<std::uint8_t> coded(records.data() + 4, bytes, cpu_device);
  kernels.quantize(inside(in), format, random, coded, inside(error), Stream());
  kernels.dequantize(coded, format, inside(out), Stream());
  EXPECT_EQ(std::memcmp(in.data(), in_before.data(), in.size() * sizeof(float)), 0);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (i >= offset && i < offset + x.size()) continue;
    EXPECT_EQ(error[i], guard);
    EXPECT_EQ(out[i], guard);
  }
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (i < 4 || i >= 4 + static_cast<std::size_t>(bytes)) {
      EXPECT_EQ(records[i], 0xab) << "byte " << i;
    }
  }
  std::vector<float> twice = out;
  kernels.dequantize_add(coded, format, inside(twice), Stream());
  const auto begin = static_cast<std::ptrdiff_t>(offset);
  for (std::size_t i = offset; i < offset + x.size(); ++i) {
    if (std::isfinite(2 * out[i])) {
      EXPECT_EQ(twice[i], 2 * out[i]);
    }
  }
  return {{out.begin() + begin, out.begin() + begin + n},
          {error.begin() + begin, error.begin() + begin + n},
          {coded.data(), coded.data() + bytes}};
}

constexpr QuantFormat bf16{.code = QuantCode::bf16};
constexpr QuantFormat e5m2{.code = QuantCode::e5m2};

// Log-normal with both signs, 1e-30 to 1e30.
std::vector<float> wide_values(std::size_t n, float spread) {
  Rng rng(n, 9);
  std::vector<float> x(n);
  for (float& value : x) value = std::exp(rng.normal() * spread) * (rng.below(2) == 0 ? 1.0F : -1.0F);
  return x;
}

TEST(SmallFloats, AreNearAndTheRestIsExact) {
  for (const std::size_t n : {1U, 7U, 255U, 257U, 4097U}) {
    for (const std::size_t offset : {0U, 1U, 3U}) {
      for (const float spread : {1.0F, 20.0F}) {
        const auto x = wide_values(n, spread);
        for (const QuantFormat& format : {bf16, e5m2}) {
          const Coded coded = code(x, format, offset);
          EXPECT_EQ(coded.records.size(), (n + 255) / 256 * (format.code == QuantCode::bf16 ? 512 : 257));
          for (std::size_t i = 0; i < n; ++i) {
            float largest = 0;
            for (std::size_t j = i / 256 * 256; j < std::min(n, i / 256 * 256 + 256); ++j)
              largest = std::max(largest, std::abs(x[j]));
            const float step =
                format.code == QuantCode::bf16 ? std::abs(x[i]) * 0x1p-8F : std::max(std::abs(x[i]) * 0x1p-3F, largest * 0x1p-31F);
            EXPECT_LE(std::abs(coded.values[i] - x[i]), step);
            EXPECT_EQ(coded.error[i], x[i] - coded.values[i]);
            EXPECT_EQ(coded.values[i] + coded.error[i], x[i]);
            EXPECT_EQ(static_cast<double>(coded.values[i]) + coded.error[i], static_cast<double>(x[i]));  // no rounding in it
          }
        }
      }
    }
  }
}

TEST(SmallFloats, AreRoundedToTheEvenNeighbourInATie) {
  // bf16 has 8 significant bits.
  EXPECT_THAT(code({257, 259, -257, -259, 256.5F, 258.99F}, bf16).values, ::testing::ElementsAre(256, 260, -256, -260, 256, 258));
  // e5m2 has 3, and below 2^−30 of the block's power of two multiples of 2^−30.
  EXPECT_THAT(code({16, 9, 11, -9, -11, 9.1F, 13, 15}, e5m2).values, ::testing::ElementsAre(16, 8, 12, -8, -12, 10, 12, 16));
  const float tiny = 0x1p-30F;
  EXPECT_THAT(code({1, 0.5F * tiny, 1.5F * tiny, 2.5F * tiny, 0.51F * tiny, -0.5F * tiny, 3.5F * tiny}, e5m2).values,
              ::testing::ElementsAre(1, 0, 2 * tiny, 2 * tiny, tiny, 0, 4 * tiny));
}

TEST(SmallFloats, ExtremesStayFiniteAndZerosZero) {
  constexpr float max = std::numeric_limits<float>::max();
  for (const QuantFormat& format : {bf16, e5m2}) {
    for (const float extreme : {0.0F, 1e-38F, 1e-40F, std::numeric_limits<float>::denorm_min(), 3e38F, max}) {
      std::vector<float> x(300, 0.0F);
      x[17] = extreme;
      x[40] = -extreme;
      x[41] = extreme / 3;
      const Coded coded = code(x, format);
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_TRUE(std::isfinite(coded.values[i])) << extreme;
        EXPECT_EQ(coded.values[i] + coded.error[i], x[i]) << extreme;
        if (x[i] == 0) {
          EXPECT_EQ(coded.values[i], 0);
        }
      }
      EXPECT_EQ(coded.values[17], -coded.values[40]);
      if (extreme > 1e-39F) {
        EXPECT_NEAR(coded.values[17] / extreme, 1, format.code == QuantCode::bf16 ? 0.004 : 0.13);
      }
    }
  }
  EXPECT_EQ(code({max}, bf16).values[0], 0x1.fep127F);  // the largest code, not infinity
  EXPECT_EQ(code({max}, e5m2).values[0], 0x1.cp127F);
}

TEST(SmallFloats, WhatIsNotFiniteReadsBackAsNaN) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(600, 1.0F);
    x[300] = bad;
    for (const QuantFormat& format : {bf16, e5m2}) {
      const Coded coded = code(x, format);
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(std::isnan(coded.values[i]), format.code == QuantCode::bf16 ? i == 300 : i / 256 == 1) << i;
      }
    }
  }
}

std::vector<QuantFormat> formats() {
  std::vector<QuantFormat> all;
  for (const int bits : {8, 4}) {
    for (const int block : {32, 256}) {
      for (const bool stochastic : {false, true}) all.push_back({bits, block, stochastic});
    }
  }
  return all;
}

TEST(QuantKernels, ErrorIsWithinTheStepForEverySizeAndStart) {
  for (const QuantFormat& format : formats()) {
    const float q = format.bits == 8 ? 127 : 7;
    for (const std::size_t n : {1U, 7U, 255U, 257U, 4097U}) {
      for (const std::size_t offset : {0U, 1U, 3U}) {
        Rng rng(n, offset);
        std::vector<float> x(n);
        for (float& value : x) value = rng.normal();
        const Coded coded = code(x, format, offset);
        for (std::size_t i = 0; i < n; ++i) {
          const std::size_t begin = i / static_cast<std::size_t>(format.block) * static_cast<std::size_t>(format.block);
          float largest = 0;
          for (std::size_t j = begin; j < std::min(n, begin + static_cast<std::size_t>(format.block)); ++j)
            largest = std::max(largest, std::abs(x[j]));
          const float step = largest / q;
          EXPECT_LE(std::abs(coded.values[i] - x[i]), (format.stochastic ? 1.0F : 0.5F) * step * 1.0001F);
          EXPECT_LE(std::abs(coded.values[i]), largest * 1.0001F);
          if (format.stochastic) {
            EXPECT_NEAR(coded.values[i] + coded.error[i], x[i], 1e-6F * largest);
          } else {
            EXPECT_EQ(coded.values[i] + coded.error[i], x[i]);  // bit for bit: the difference of two near floats is exact
          }
        }
      }
    }
  }
}

TEST(QuantKernels, ZerosTinyAndHugeValuesStayFinite) {
  for (const QuantFormat& format : formats()) {
    for (const float extreme :
         {0.0F, 1e-38F, 1e-40F, std::numeric_limits<float>::denorm_min(), 3e38F, std::numeric_limits<float>::max()}) {
      std::vector<float> x(300, 0.0F);
      x[17] = extreme;
      x[40] = -extreme;
      const Coded coded = code(x, format);
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_TRUE(std::isfinite(coded.values[i]));
        EXPECT_TRUE(std::isfinite(coded.error[i]));
        if (x[i] == 0) {
          EXPECT_EQ(coded.values[i], 0);
        }
      }
      if (extreme > 1e-39F) {
        EXPECT_NEAR(coded.values[17] / extreme, 1, 1e-2);
      }
      EXPECT_EQ(coded.values[17], -coded.values[40]);
    }
  }
}

TEST(QuantKernels, AnElementThatIsNotFiniteShowsInItsWholeBlockOnly) {
  for (const QuantFormat& format : formats()) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x(600, 1.0F);
      x[300] = bad;
      const Coded coded = code(x, format);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const bool in_block = i / static_cast<std::size_t>(format.block) == 300 / static_cast<std::size_t>(format.block);
        EXPECT_EQ(std::isnan(coded.values[i]), in_block) << "element " << i;
      }
    }
  }
}

TEST(QuantKernels, NearestTakesTheEvenNeighbourInATie) {
  // Largest 127, so the scale is 1.
  const std::vector<float> x{127, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 2.4F, -2.6F};
  EXPECT_THAT(code(x, {8, 256, false}).values, ::testing::ElementsAre(127, 0, 2, 2, 0, -2, 2, -3));
}

TEST(QuantKernels, FourBitCodesArePackedLowHalfFirst) {
  std::vector<float> x(32, 0.0F);
  x[0] = 7;
  x[1] = -7;
  x[2] = -1;
  x[3] = 3;
  const Coded coded = code(x, {4, 32, false});
  float scale = 0;
  std::memcpy(&scale, coded.records.data(), sizeof(scale));
  EXPECT_EQ(scale, 1);
  EXPECT_EQ(coded.records[4], 0x97);  // 7 and −7 = 0b1001
  EXPECT_EQ(coded.records[5], 0x3f);  // −1 = 0b1111 and 3
}

TEST(QuantKernels, StochasticRoundingIsRightOnAverageAndRepeatable) {
  const std::size_t n = 256;
  std::vector<float> x(n, 0.3F);
  x[0] = 127;
  double mean = 0;
  const int draws = 200;
  for (int draw = 0; draw < draws; ++draw) {
    const RandomWords random{5, 0, static_cast<std::uint64_t>(draw) << 32};
    const Coded coded = code(x, {8, 256, true}, 1, random);
    EXPECT_EQ(coded.values, code(x, {8, 256, true}, 0, random).values);
    for (std::size_t i = 1; i < n; ++i) mean += coded.values[i];
  }
  mean /= draws * static_cast<double>(n - 1);
  EXPECT_NEAR(mean, 0.3, 4 * std::sqrt(0.3 * 0.7 / (draws * static_cast<double>(n - 1))));
}

}  // namespace
}  // namespace scape
