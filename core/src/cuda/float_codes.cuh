// Device code of small floats in blocks (formats in scape/kernels.hpp): a warp takes a record, a thread eight neighbours of it.
#pragma once

#include <cstdint>

#include "cuda/groups.cuh"
#include "scape/kernels.hpp"

namespace scape::cuda {

inline constexpr std::uint32_t infinity_bits = 0x7f800000U;
inline constexpr std::uint32_t not_a_number_bits = 0x7fc00000U;

/// One code of one element; conversions on the bits of floats, to nearest, ties to even.
template <class Thread>
struct FloatCodes {
  const Thread& t;

  __device__ std::uint32_t to_bf16(float x) const {
    const std::uint32_t bits = t.bits(x);
    if ((bits & 0x7fffffffU) >= infinity_bits) return not_a_number_bits >> 16;
    const std::uint32_t code = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    return (code & 0x7fffU) == infinity_bits >> 16 ? code - 1 : code;
  }
  __device__ float from_bf16(std::uint32_t code) const { return t.from_bits(code << 16); }

  /// 2^e for e ≥ −149.
  __device__ float power_of_two(int e) const {
    return t.from_bits(e >= -126 ? static_cast<std::uint32_t>(e + 127) << 23 : 1U << (e + 149));
  }
  /// The scale's exponent, from the byte that stands for it.
  __device__ static int scale_exponent(std::uint32_t byte) { return (byte == 0 ? 1 : static_cast<int>(byte)) - 141; }
  /// x / scale as a code.
  __device__ std::uint32_t to_e5m2(float x, std::uint32_t byte) const {
    if (byte == 255) return 0;
    const int up = -scale_exponent(byte);
    const std::uint32_t bits = t.bits(x * power_of_two(up / 2) * power_of_two(up - up / 2));  // 2^140 is no float
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    constexpr float magic = 0x1.8p7F;  // floats beside it are multiples of 2^−16, the smallest code
    const std::uint32_t code = magnitude < 113U << 23
                                   ? static_cast<std::uint32_t>(((t.from_bits(magnitude) + magic) - magic) * 0x1p16F)
                                   : ((magnitude + 0xfffffU + (magnitude >> 21 & 1U)) >> 21) - (112U << 2);
    const std::uint32_t most = byte == 254 ? 0x77U : 0x78U;  // twice 2^127 is no float
    return (bits >> 24 & 0x80U) | (code < most ? code : most);
  }
  __device__ float from_e5m2(std::uint32_t code, std::uint32_t byte) const {
    const float scale = byte == 255 ? t.from_bits(not_a_number_bits) : power_of_two(scale_exponent(byte));
    const float magnitude = t.from_bits((code & 0x7fU) << 21) * 0x1p112F;
    return t.from_bits(t.bits(magnitude) | (code & 0x80U) << 24) * scale;
  }
};

// 4 bytes per element, 8 with the error, and the record's.
struct EncodeFloats {
  const float* x;
  std::int64_t n;
  QuantFormat format;
  std::uint8_t* records;
  std::int64_t record_bytes;
  float* error;  // or null

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    const FloatCodes<Thread> codes{t};
    const int lane = t.index() % warp_threads;
    for (std::int64_t b = global_index(t) / warp_threads; b * format.block < n; b += global_threads(t) / warp_threads) {
      const std::int64_t begin = b * format.block;
      const std::int64_t end = begin + format.block < n ? begin + format.block : n;
      std::uint8_t* record = records + b * record_bytes;
      const bool scaled = format.code == QuantCode::e5m2;
      const std::uint32_t scale = scaled ? largest_magnitude(t, x, begin, end) >> 23 : 0;
      if (scaled && lane == 0) record[0] = static_cast<std::uint8_t>(scale);
      for (std::int64_t first = lane * group_size; first < format.block; first += warp_threads * group_size) {
        const Group group = load_group(x, begin + first, end);
        Group rest;
        for (int i = 0; i < group_size; ++i) {
          if (scaled) {
            const std::uint32_t code = codes.to_e5m2(group.at[i], scale);
            record[1 + first + i] = static_cast<std::uint8_t>(code);
            rest.at[i] = group.at[i] - codes.from_e5m2(code, scale);
          } else {
            const std::uint32_t code = codes.to_bf16(group.at[i]);
            reinterpret_cast<std::uint16_t*>(record)[first + i] = static_cast<std::uint16_t>(code);
            rest.at[i] = group.at[i] - codes.from_bf16(code);
          }
        }
        if (error != nullptr) store_group(error, begin + first, end, rest);
      }
    }
  }
};

// x ← what the records say, or that added to x. 4 or 8 bytes per element, and the record's.
struct DecodeFloats {
  const std::uint8_t* records;
  std::int64_t record_bytes;
  QuantFormat format;
  float* x;
  std::int64_t n;
  bool add;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    const FloatCodes<Thread> codes{t};
    for (std::int64_t first = global_index(t) * group_size; first < n; first += global_threads(t) * group_size) {
      const std::uint8_t* record = records + first / format.block * record_bytes;
      const std::int64_t place = first % format.block;
      Group group = add ? load_group(x, first, n) : Group{};
      for (int i = 0; i < group_size; ++i) {
        const float value = format.code == QuantCode::e5m2
                                ? codes.from_e5m2(record[1 + place + i], record[0])
                                : codes.from_bf16(reinterpret_cast<const std::uint16_t*>(record)[place + i]);
        group.at[i] = add ? group.at[i] + value : value;
      }
      store_group(x, first, n, group);
    }
  }
};

}  // namespace scape::cuda
