// Device code of QuantKernels: block-wise integers (format and formulas in scape/kernels.hpp). Threads work on groups of eight
// neighbouring elements, whose codes are one or two 32-bit words of a record.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/float_codes.cuh"
#include "cuda/groups.cuh"
#include "scape/error.hpp"
#include "scape/kernels.hpp"

namespace scape::cuda {

/// Philox 4x32-10 (scape/rng.hpp).
struct Words {
  std::uint32_t at[4];
};
__device__ inline Words philox(const RandomWords& random, std::uint64_t counter) {
  Words x{{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
           static_cast<std::uint32_t>(random.stream), static_cast<std::uint32_t>(random.stream >> 32)}};
  auto key0 = static_cast<std::uint32_t>(random.seed);
  auto key1 = static_cast<std::uint32_t>(random.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * x.at[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * x.at[2];
    x = {{static_cast<std::uint32_t>(product1 >> 32) ^ x.at[1] ^ key0, static_cast<std::uint32_t>(product1),
          static_cast<std::uint32_t>(product0 >> 32) ^ x.at[3] ^ key1, static_cast<std::uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return x;
}

/// Where the codes of eight elements are in their record.
__device__ inline int group_words(const QuantFormat& format) {
  return format.bits * group_size / 32;
}

// A warp makes a record. 8 bytes per element with the error, 4 without, and the record's.
struct Quantize {
  const float* x;
  std::int64_t n;
  QuantFormat format;
  RandomWords random;
  std::uint8_t* records;
  std::int64_t record_bytes;
  float* error;  // or null

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    const int lane = t.index() % warp_threads;
    const auto q = static_cast<float>((1 << (format.bits - 1)) - 1);
    for (std::int64_t b = global_index(t) / warp_threads; b * format.block < n; b += global_threads(t) / warp_threads) {
      const std::int64_t begin = b * format.block;
      const std::int64_t end = begin + format.block < n ? begin + format.block : n;
      const float scale = scale_of(t, largest_magnitude(t, x, begin, end), q);
      std::uint8_t* record = records + b * record_bytes;
      if (lane == 0) *reinterpret_cast<float*>(record) = scale;
      auto* codes = reinterpret_cast<std::uint32_t*>(record + sizeof(float));
      for (int g = lane; g < format.block / group_size; g += warp_threads) {
        encode(begin + g * group_size, end, scale, q, codes + g * group_words(format));
      }
    }
  }

 private:
  template <class Thread>
  __device__ static float scale_of(const Thread& t, std::uint32_t largest, float q) {
    constexpr std::uint32_t infinity = 0x7f800000U;
    constexpr std::uint32_t not_a_number = 0x7fc00000U;
    if (largest >= infinity) return t.from_bits(not_a_number);
    const float scale = t.from_bits(largest) / q;
    return t.bits(scale * q) == infinity ? t.from_bits(t.bits(scale) - 1) : scale;  // rounded up beside the largest float
  }

  __device__ void encode(std::int64_t first, std::int64_t end, float scale, float q, std::uint32_t* codes) const {
    constexpr float magic = 0x1.8p23F;  // above 2^23 the spacing of floats is 1
    const Group group = load_group(x, first, end);
    Group residual = group;
    std::uint32_t word = 0;
    for (int i = 0; i < group_size; ++i) {
      int code = 0;
      if (scale > 0 && first + i < end) {
        const float steps = group.at[i] / scale;
        const float rounded = format.stochastic ? std::floor(steps + uniform(first + i)) : (steps + magic) - magic;
        code = static_cast<int>(rounded < -q ? -q : rounded > q ? q : rounded);
      }
      residual.at[i] = group.at[i] - static_cast<float>(code) * scale;
      const int per_word = 32 / format.bits;
      word |= (static_cast<std::uint32_t>(code) & ((1U << format.bits) - 1)) << (i % per_word * format.bits);
      if ((i + 1) % per_word == 0) {
        codes[i / per_word] = word;
        word = 0;
      }
    }
    if (error != nullptr) store_group(error, first, end, residual);
  }

  __device__ float uniform(std::int64_t j) const {
    const Words words = philox(random, random.counter + static_cast<std::uint64_t>(j / 4));
    return static_cast<float>(words.at[j % 4] >> 8) * 0x1.0p-24F;
  }
};

// x ← what the records say, or that added to x. 4 or 8 bytes per element, and the record's.
struct Dequantize {
  const std::uint8_t* records;
  std::int64_t record_bytes;
  QuantFormat format;
  float* x;
  std::int64_t n;
  bool add;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    const int per_word = 32 / format.bits;
    for (std::int64_t first = global_index(t) * group_size; first < n; first += global_threads(t) * group_size) {
      const std::uint8_t* record = records + first / format.block * record_bytes;
      const float scale = *reinterpret_cast<const float*>(record);
      const auto* codes =
          reinterpret_cast<const std::uint32_t*>(record + sizeof(float)) + first % format.block / group_size * group_words(format);
      Group group = add ? load_group(x, first, n) : Group{};
      for (int i = 0; i < group_size; ++i) {
        const std::uint32_t raised = codes[i / per_word] << (32 - (i % per_word + 1) * format.bits);  // the sign is on top
        const float value = static_cast<float>(static_cast<std::int32_t>(raised) >> (32 - format.bits)) * scale;
        group.at[i] = add ? group.at[i] + value : value;
      }
      store_group(x, first, n, group);
    }
  }
};

template <class Launcher>
class DeviceQuantKernels final : public QuantKernels {
 public:
  void quantize(Span<const float> x, const QuantFormat& format, const RandomWords& random, Span<std::uint8_t> records,
                Span<float> error, const Stream& stream) const override {
    check(format, x.size(), records.size());
    require(error.empty() || error.size() == x.size(), ErrorKind::internal, "quantize: the error has another size than the vector");
    float* const errors = error.empty() ? nullptr : error.data();
    const std::int64_t record_bytes = quant_record_bytes(format);
    const std::int64_t blocks = pieces(quant_blocks(x.size(), format), block_warps);
    if (format.code == QuantCode::integer) {
      Launcher::launch(Quantize{x.data(), x.size(), format, random, records.data(), record_bytes, errors}, blocks, stream);
    } else {
      Launcher::launch(EncodeFloats{x.data(), x.size(), format, records.data(), record_bytes, errors}, blocks, stream);
    }
  }
  void dequantize(Span<const std::uint8_t> records, const QuantFormat& format, Span<float> x, const Stream& stream) const override {
    launch(records, format, x, false, stream);
  }
  void dequantize_add(Span<const std::uint8_t> records, const QuantFormat& format, Span<float> x,
                      const Stream& stream) const override {
    launch(records, format, x, true, stream);
  }

 private:
  static void launch(Span<const std::uint8_t> records, const QuantFormat& format, Span<float> x, bool add, const Stream& stream) {
    check(format, x.size(), records.size());
    const std::int64_t record_bytes = quant_record_bytes(format);
    const std::int64_t blocks = pieces(pieces(x.size(), group_size), block_threads);
    if (format.code == QuantCode::integer) {
      Launcher::launch(Dequantize{records.data(), record_bytes, format, x.data(), x.size(), add}, blocks, stream);
    } else {
      Launcher::launch(DecodeFloats{records.data(), record_bytes, format, x.data(), x.size(), add}, blocks, stream);
    }
  }
  static void check(const QuantFormat& format, std::int64_t size, std::int64_t bytes) {
    require((format.bits == 8 || format.bits == 4) && format.block > 0 && format.block % group_size == 0 && format.block <= 4096,
            ErrorKind::internal, "quantized records: bits must be 8 or 4, the block a multiple of 8 up to 4096");
    require(bytes == quant_bytes(size, format), ErrorKind::internal, "quantized records: their bytes do not match the vector");
  }
};

}  // namespace scape::cuda
