// Block-wise integers on the CPU. Format and formulas in scape/kernels.hpp. Loops over a block vectorise; the results are the
// same with any vector width, since every operation on an element is one correctly rounded float operation.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/float_codes.hpp"
#include "cpu/kernels.hpp"
#include "scape/error.hpp"
#include "scape/rng.hpp"

namespace scape::detail {

namespace {

constexpr int max_block = 4096;
using Codes = std::array<std::int8_t, max_block>;

// The largest |x|; NaN when an element is not finite.
float largest_magnitude(const float* x, std::int64_t n) {
  std::uint32_t largest = 0;  // the bits of |x| order as |x| does, infinity and NaN last
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffU);
  const auto magnitude = std::bit_cast<float>(largest);
  return std::isfinite(magnitude) ? magnitude : std::numeric_limits<float>::quiet_NaN();
}

float scale_for(float magnitude, float q) {
  const float scale = magnitude / q;
  return std::isinf(scale * q) ? std::nextafter(scale, 0.0F) : scale;  // rounded up beside the largest float
}

// Nearest integer, ties to even, for |x| < 2^22: above 2^23 the spacing of floats is 1.
float nearest(float x) {
  constexpr float magic = 0x1.8p23F;
  return (x + magic) - magic;
}

void encode(const float* x, std::int64_t n, float scale, float q, const RandomWords* random, std::int64_t first,
            std::int8_t* codes) {
  if (random == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::int8_t>(std::clamp(nearest(x[i] / scale), -q, q));
    return;
  }
  for (std::int64_t i = 0; i < n; i += 4) {
    const auto words = philox(random->seed, random->stream, random->counter + static_cast<std::uint64_t>((first + i) / 4));
    for (std::int64_t j = i; j < std::min(n, i + 4); ++j) {
      const float uniform = static_cast<float>(words[static_cast<std::size_t>(j - i)] >> 8) * 0x1.0p-24F;
      codes[j] = static_cast<std::int8_t>(std::clamp(std::floor(x[j] / scale + uniform), -q, q));
    }
  }
}

void store(const std::int8_t* codes, const QuantFormat& format, std::uint8_t* bytes) {
  if (format.bits == 8) {
    std::memcpy(bytes, codes, static_cast<std::size_t>(format.block));
    return;
  }
  for (int i = 0; i < format.block / 2; ++i) {
    bytes[i] = static_cast<std::uint8_t>((codes[2 * i] & 0xf) | (codes[2 * i + 1] & 0xf) << 4);
  }
}

void load(const std::uint8_t* bytes, const QuantFormat& format, std::int8_t* codes) {
  if (format.bits == 8) {
    std::memcpy(codes, bytes, static_cast<std::size_t>(format.block));
    return;
  }
  const auto extend = [](int low) { return static_cast<std::int8_t>((low ^ 8) - 8); };
  for (int i = 0; i < format.block / 2; ++i) {
    codes[2 * i] = extend(bytes[i] & 0xf);
    codes[2 * i + 1] = extend(bytes[i] >> 4);
  }
}

// Calls visit(codes, scale, first element, elements) for each block.
template <class Visit>
void for_each_block(const std::uint8_t* records, const QuantFormat& format, std::int64_t size, Visit visit) {
  Codes codes;
  for (std::int64_t begin = 0; begin < size; begin += format.block, records += quant_record_bytes(format)) {
    float scale = 0;
    std::memcpy(&scale, records, sizeof(scale));
    load(records + sizeof(scale), format, codes.data());
    visit(codes.data(), scale, begin, std::min<std::int64_t>(format.block, size - begin));
  }
}

// One record of small floats.
void encode_floats(const float* x, std::int64_t n, const QuantFormat& format, std::uint8_t* record) {
  std::memset(record, 0, static_cast<std::size_t>(quant_record_bytes(format)));
  format.code == QuantCode::bf16 ? encode_bf16(x, n, record) : encode_e5m2(x, n, record);
}
void decode_floats(const std::uint8_t* record, std::int64_t n, const QuantFormat& format, float* x) {
  format.code == QuantCode::bf16 ? decode_bf16(record, n, x) : decode_e5m2(record, n, x);
}

// Calls visit(values, first element, elements) for each block of what the records say.
template <class Visit>
void for_each_decoded(const std::uint8_t* records, const QuantFormat& format, std::int64_t size, Visit visit) {
  std::array<float, max_block> values;
  for (std::int64_t begin = 0; begin < size; begin += format.block, records += quant_record_bytes(format)) {
    const std::int64_t n = std::min<std::int64_t>(format.block, size - begin);
    decode_floats(records, n, format, values.data());
    visit(values.data(), begin, n);
  }
}

class CpuQuantKernels final : public QuantKernels {
 public:
  void quantize(Span<const float> x, const QuantFormat& format, const RandomWords& random, Span<std::uint8_t> records,
                Span<float> error, const Stream& stream) const override {
    check(format, x.size(), records.size());
    require(error.empty() || error.size() == x.size(), ErrorKind::internal, "quantize: the error has another size than the vector");
    if (format.code != QuantCode::integer) return quantize_floats(x, format, records, error, stream);
    stream.enqueue([=] {
      const auto q = static_cast<float>((1 << (format.bits - 1)) - 1);
      Codes codes;
      std::uint8_t* record = records.data();
      for (std::int64_t begin = 0; begin < x.size(); begin += format.block, record += quant_record_bytes(format)) {
        const std::int64_t n = std::min<std::int64_t>(format.block, x.size() - begin);
        const float* in = x.data() + begin;
        const float scale = scale_for(largest_magnitude(in, n), q);
        std::fill_n(codes.data(), format.block, std::int8_t{0});
        if (scale > 0) encode(in, n, scale, q, format.stochastic ? &random : nullptr, begin, codes.data());
        std::memcpy(record, &scale, sizeof(scale));
        store(codes.data(), format, record + sizeof(scale));
        if (error.empty()) continue;
        float* out = error.data() + begin;
#pragma GCC ivdep
        for (std::int64_t i = 0; i < n; ++i) out[i] = in[i] - static_cast<float>(codes[static_cast<std::size_t>(i)]) * scale;
      }
    });
  }

  void dequantize(Span<const std::uint8_t> records, const QuantFormat& format, Span<float> x, const Stream& stream) const override {
    check(format, x.size(), records.size());
    stream.enqueue([=] {
      if (format.code != QuantCode::integer) {
        return for_each_decoded(records.data(), format, x.size(), [&](const float* values, std::int64_t begin, std::int64_t n) {
          std::copy_n(values, n, x.data() + begin);
        });
      }
      for_each_block(records.data(), format, x.size(),
                     [&](const std::int8_t* codes, float scale, std::int64_t begin, std::int64_t n) {
                       for (std::int64_t i = 0; i < n; ++i) x.data()[begin + i] = static_cast<float>(codes[i]) * scale;
                     });
    });
  }

  void dequantize_add(Span<const std::uint8_t> records, const QuantFormat& format, Span<float> x,
                      const Stream& stream) const override {
    check(format, x.size(), records.size());
    stream.enqueue([=] {
      if (format.code != QuantCode::integer) {
        return for_each_decoded(records.data(), format, x.size(), [&](const float* values, std::int64_t begin, std::int64_t n) {
          for (std::int64_t i = 0; i < n; ++i) x.data()[begin + i] += values[i];
        });
      }
      for_each_block(records.data(), format, x.size(),
                     [&](const std::int8_t* codes, float scale, std::int64_t begin, std::int64_t n) {
                       for (std::int64_t i = 0; i < n; ++i) x.data()[begin + i] += static_cast<float>(codes[i]) * scale;
                     });
    });
  }

 private:
  static void quantize_floats(Span<const float> x, const QuantFormat& format, Span<std::uint8_t> records, Span<float> error,
                              const Stream& stream) {
    stream.enqueue([=] {
      std::array<float, max_block> values;
      std::uint8_t* record = records.data();
      for (std::int64_t begin = 0; begin < x.size(); begin += format.block, record += quant_record_bytes(format)) {
        const std::int64_t n = std::min<std::int64_t>(format.block, x.size() - begin);
        encode_floats(x.data() + begin, n, format, record);
        if (error.empty()) continue;
        decode_floats(record, n, format, values.data());
        for (std::int64_t i = 0; i < n; ++i) error.data()[begin + i] = x.data()[begin + i] - values[static_cast<std::size_t>(i)];
      }
    });
  }
  static void check(const QuantFormat& format, std::int64_t size, std::int64_t bytes) {
    require((format.bits == 8 || format.bits == 4) && format.block > 0 && format.block % 8 == 0 && format.block <= max_block,
            ErrorKind::internal, "quantized records: bits must be 8 or 4, the block a multiple of 8 up to 4096");
    require(bytes == quant_bytes(size, format), ErrorKind::internal, "quantized records: their bytes do not match the vector");
  }
};

}  // namespace

const QuantKernels& cpu_quant_kernels() {
  static const CpuQuantKernels kernels;
  return kernels;
}

}  // namespace scape::detail
