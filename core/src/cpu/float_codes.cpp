// Small floats on the CPU. Formats in scape/kernels.hpp. Arithmetic on the bits of floats, which vectorises; every rounding is to
// nearest, ties to even.
#include "cpu/float_codes.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace scape::detail {

namespace {

constexpr std::uint32_t infinity_bits = 0x7f800000U;
constexpr std::uint32_t magnitude_bits = 0x7fffffffU;

std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & magnitude_bits) >= infinity_bits) return 0x7fc0;
  const std::uint32_t code = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  return static_cast<std::uint16_t>((code & 0x7fffU) == infinity_bits >> 16 ? code - 1 : code);  // the largest is not rounded to ∞
}

float from_bf16(std::uint16_t code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

// 2^e for e ≥ −149.
float power_of_two(int e) {
  return std::bit_cast<float>(e >= -126 ? static_cast<std::uint32_t>(e + 127) << 23 : 1U << (e + 149));
}

// |y| ≤ 2^15.
std::uint8_t to_e5m2(float y, std::uint32_t largest) {
  const auto bits = std::bit_cast<std::uint32_t>(y);
  const std::uint32_t magnitude = bits & magnitude_bits;
  constexpr float magic = 0x1.8p7F;  // floats beside it are multiples of 2^−16, the smallest code
  const auto small = static_cast<std::uint32_t>(((std::bit_cast<float>(magnitude) + magic) - magic) * 0x1p16F);
  const std::uint32_t normal = ((magnitude + 0xfffffU + (magnitude >> 21 & 1U)) >> 21) - (112U << 2);
  const std::uint32_t code = magnitude < 113U << 23 ? small : normal;
  return static_cast<std::uint8_t>(bits >> 24 & 0x80U) | static_cast<std::uint8_t>(std::min(code, largest));
}

float from_e5m2(std::uint8_t code) {
  const float magnitude = std::bit_cast<float>(static_cast<std::uint32_t>(code & 0x7fU) << 21) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | static_cast<std::uint32_t>(code & 0x80U) << 24);
}

// The scale's exponent, from the byte that stands for it.
int scale_exponent(std::uint8_t byte) {
  return std::max<int>(byte, 1) - 141;
}

}  // namespace

void encode_bf16(const float* x, std::int64_t n, std::uint8_t* record) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint16_t code = to_bf16(x[i]);
    std::memcpy(record + 2 * i, &code, sizeof(code));
  }
}

void decode_bf16(const std::uint8_t* record, std::int64_t n, float* x) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, record + 2 * i, sizeof(code));
    x[i] = from_bf16(code);
  }
}

void encode_e5m2(const float* x, std::int64_t n, std::uint8_t* record) {
  std::uint32_t largest = 0;  // the bits of |x| order as |x| does, infinity and NaN last
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & magnitude_bits);
  record[0] = static_cast<std::uint8_t>(largest >> 23);
  const int up = -scale_exponent(record[0]);
  const float first = power_of_two(up / 2);  // in two steps: 2^140 is no float
  const float second = power_of_two(up - up / 2);
  const std::uint32_t most = record[0] == 254 ? 0x77 : 0x78;  // twice 2^127 is no float
  for (std::int64_t i = 0; i < n; ++i) record[1 + i] = largest < infinity_bits ? to_e5m2(x[i] * first * second, most) : 0;
}

void decode_e5m2(const std::uint8_t* record, std::int64_t n, float* x) {
  const float scale = record[0] == 255 ? std::numeric_limits<float>::quiet_NaN() : power_of_two(scale_exponent(record[0]));
  for (std::int64_t i = 0; i < n; ++i) x[i] = from_e5m2(record[1 + i]) * scale;
}

}  // namespace scape::detail
