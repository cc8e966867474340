// Arithmetic of the methods, one abstract class per family. update_kernels(device) and its like choose the implementation;
// the CPU's is the oracle that every other is tested against. All operations are ordered on their stream, and sums have a
// fixed order, so that equal input gives equal bits on every rank.
#pragma once

#include <cstdint>

#include "scape/buffer.hpp"
#include "scape/parameters.hpp"

namespace scape {

/// Coefficients of one Adam-like step, bias corrections included, prepared on the host.
///   m  = β1 m' + (1−β1) g                      with m' the moment before the step and g the scaled gradient
///   v  = β2 v' + (1−β2) g²                     AdamW: v' is the stored second moment
///   v  = β2 (previous_scale m')² + (1−β2) g²   AdamS (arXiv 2505.16363): v is built on the spot
///   θ ← θ − η ( m_scale m / (√(v_scale v) + ε) + λ θ )
struct AdamStep {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float learning_rate = 0;   // η
  float weight_decay = 0;    // λ
  float gradient_scale = 1;  // clip coefficient
  float m_scale = 1;         // 1/(1−β1^t), or 1 without bias correction
  float v_scale = 1;         // 1/(1−β2^t), or 1
  float previous_scale = 1;  // AdamS "official": 1/(1−β1^t); otherwise 1
  float residual_scale = 1;  // SCAPE: part of c that stays as residual off the mask
};

class UpdateKernels {
 public:
  virtual ~UpdateKernels() = default;
  /// All spans [n].
  virtual void adamw(Span<float> theta, Span<float> m, Span<float> v, Span<const float> g, const AdamStep& step,
                     const Stream& stream) const = 0;
  virtual void adams(Span<float> theta, Span<float> m, Span<const float> g, const AdamStep& step, const Stream& stream) const = 0;
  /// g [n] ← the direction of AdamS's step if the new moment were c: m_scale c / (√(v_scale v) + ε), with v of m' = m and g as
  /// above; 0 where that is no number. All [n].
  virtual void adams_direction(Span<float> g, Span<const float> c, Span<const float> m, const AdamStep& step,
                               const Stream& stream) const = 0;
  /// result [1] ← Σ x², in double. Not finite exactly when an element is not: squares of floats cannot overflow a double.
  virtual void sum_of_squares(Span<const float> x, Span<double> result, const Stream& stream) const = 0;
  /// squares [x.size()/block] ← Σ x² over each `block` neighbours, in double.
  virtual void block_squares(Span<const float> x, std::int64_t block, Span<double> squares, const Stream& stream) const = 0;
  /// result [n] ← factor · x [n], rounded.
  virtual void narrow(Span<const double> x, double factor, Span<float> result, const Stream& stream) const = 0;
  /// flag [1] ← 0 if all values [n] are finite, ∞ otherwise: a sum of flags is 0 exactly if all are.
  virtual void flag_not_finite(Span<const double> values, Span<float> flag, const Stream& stream) const = 0;
  /// x ← factor · x.
  virtual void scale(Span<float> x, float factor, const Stream& stream) const = 0;
  /// x ← x / divisor.
  virtual void divide(Span<float> x, float divisor, const Stream& stream) const = 0;
  /// y ← y + factor · x.
  virtual void add(Span<float> y, Span<const float> x, float factor, const Stream& stream) const = 0;
};

/// A set of coordinates as one bit each. Bit j % 64 of word j / 64 is coordinate j; bits at and beyond `size` are zero.
struct MaskView {
  static constexpr std::int64_t word_bits = 64;
  static constexpr std::int64_t block_words = 8;  // words per entry of `offsets`: one cache line

  Span<const std::uint64_t> words;   // [mask_words(size)]
  Span<const std::int64_t> offsets;  // [mask_blocks(size)]: set bits before the block
  std::int64_t size = 0;             // coordinates
  std::int64_t count = 0;            // set bits

  /// Throws Error(internal) unless the parts fit each other and a packed vector of `packed` elements.
  void check(std::int64_t packed) const;
  /// And unless `elements` are those of `range`, which lies inside.
  void check(Range range, std::int64_t elements, std::int64_t packed) const;
};
constexpr std::int64_t mask_words(std::int64_t size) {
  return (size + MaskView::word_bits - 1) / MaskView::word_bits;
}
constexpr std::int64_t mask_blocks(std::int64_t size) {
  return (mask_words(size) + MaskView::block_words - 1) / MaskView::block_words;
}

inline void MaskView::check(std::int64_t packed) const {
  require(words.size() == mask_words(size) && offsets.size() == mask_blocks(size), ErrorKind::internal,
          "sparse kernel: the mask's words or index do not fit its size");
  require(packed == count, ErrorKind::internal, "sparse kernel: the packed vector does not match the mask's count");
}
inline void MaskView::check(Range range, std::int64_t elements, std::int64_t packed) const {
  check(packed);
  require(range.begin >= 0 && range.begin <= range.end && range.end <= size && elements == range.size(), ErrorKind::internal,
          "sparse kernel: the vector is not that of a range inside the mask");
}

/// What apply() needs for SCAPE's extensions beyond the paper (formulas in scape/scape.hpp). Empty spans: AdamS.
struct ApplyExtension {
  /// [mask.size] a = steps since a coordinate was last on a mask, 1 if it was on the previous one. A coordinate on the mask moves
  /// by factor · η u with u that of AdamS for the gradient ĝ/b, b = min(a, backlog_cap), and factor = b or √b. Afterwards a is 1 on
  /// the mask and a + 1, up to 65535, off it.
  Span<std::uint16_t> ages{};
  float backlog_cap = 1;
  bool backlog_root = false;
  /// V of blocks of block_size coordinates, from coordinate block_begin ≤ range.begin on: in place of AdamS's v.
  Span<const float> block_v{};
  std::int64_t block_size = 1;
  std::int64_t block_begin = 0;

  void check(Range range, std::int64_t size) const {
    require(ages.empty() || (ages.size() == size && backlog_cap >= 1), ErrorKind::internal,
            "apply: ages of another size than the parameters, or a cap below 1");
    require(block_v.empty() || (block_begin <= range.begin && range.end <= block_begin + block_size * block_v.size()),
            ErrorKind::internal, "apply: range outside the blocks");
  }
};

class SparseKernels {
 public:
  virtual ~SparseKernels() = default;

  /// Sets the bits first + i of the k elements x[i] of largest magnitude; among equal magnitudes the lower index wins. Other
  /// bits stay. 0 ≤ k ≤ x.size(). x must be free of NaN (callers see it in a sum of squares).
  virtual void top_k(Span<const float> x, std::int64_t k, Span<std::uint64_t> words, std::int64_t first,
                     const Stream& stream) const = 0;
  /// Sets the bits of `range`; other bits stay.
  virtual void set_range(Span<std::uint64_t> words, Range range, const Stream& stream) const = 0;
  /// words ← words | other. Equal sizes.
  virtual void unite(Span<std::uint64_t> words, Span<const std::uint64_t> other, const Stream& stream) const = 0;
  /// offsets [blocks] ← set bits before each block of MaskView::block_words words.
  virtual void index_mask(Span<const std::uint64_t> words, Span<std::int64_t> offsets, const Stream& stream) const = 0;
  /// result [1] ← number of bits set in both. Equal sizes.
  virtual void count_common(Span<const std::uint64_t> a, Span<const std::uint64_t> b, Span<std::int64_t> result,
                            const Stream& stream) const = 0;

  /// packed [mask.count] ← x on the mask, in order of the coordinates; of these only what lies in `range`, whose x [range.size()]
  /// is.
  virtual void pack(Range range, Span<const float> x, const MaskView& mask, Span<float> packed, const Stream& stream) const = 0;
  void pack(Span<const float> x, const MaskView& mask, Span<float> packed, const Stream& stream) const {
    pack({0, mask.size}, x, mask, packed, stream);
  }
  /// x [range.size()], the coordinates of `range`: on the mask ← packed [mask.count], or 0 if that is empty; off the mask x stays.
  virtual void unpack(Range range, Span<const float> packed, const MaskView& mask, Span<float> x, const Stream& stream) const = 0;
  void unpack(Span<const float> packed, const MaskView& mask, Span<float> x, const Stream& stream) const {
    unpack({0, mask.size}, packed, mask, x, stream);
  }
  /// indices [mask.count] ← the coordinates of the mask, ascending. mask.size ≤ 2^32.
  virtual void indices(const MaskView& mask, Span<std::uint32_t> indices, const Stream& stream) const = 0;
  /// x[indices[i]] += values[i] / divisor, for i in order; indices are distinct.
  virtual void scatter_add(Span<const std::uint32_t> indices, Span<const float> values, float divisor, Span<float> x,
                           const Stream& stream) const = 0;

  /// SCAPE step 1: g [n] ← c = β1 m + (1−β1) g + e, all [n]; an empty m is 0. sum [1] ← Σ c² in double: not finite exactly when a
  /// c is not.
  virtual void candidate(Span<float> g, Span<const float> m, Span<const float> e, float beta1, Span<double> sum,
                         const Stream& stream) const = 0;
  /// SCAPE step 5. packed [mask.count]: b → ĝ = (b/divisor + factor x)/(1−β1) with x [mask.size] on the mask. sum [1] ← Σ ĝ².
  /// Replicated form: x = m, factor = −β1. Sharded form: x = q, factor = 1.
  virtual void recover_gradient(Span<float> packed, Span<const float> x, const MaskView& mask, float divisor, float factor,
                                float beta1, Span<double> sum, const Stream& stream) const = 0;
  /// SCAPE steps 2, 5, 6 for the coordinates of `range`. On the mask: AdamS with the packed ĝ · step.gradient_scale, or what the
  /// extension makes of it, e ← 0. Off it: θ ← (1−ηλ) θ, m ← 0, e ← c · step.residual_scale. All of θ, m, e, c are [range.size()].
  virtual void apply(Range range, Span<float> theta, Span<float> m, Span<float> e, Span<const float> c, Span<const float> packed,
                     const MaskView& mask, const AdamStep& step, const ApplyExtension& extension, const Stream& stream) const = 0;
  void apply(Range range, Span<float> theta, Span<float> m, Span<float> e, Span<const float> c, Span<const float> packed,
             const MaskView& mask, const AdamStep& step, const Stream& stream) const {
    apply(range, theta, m, e, c, packed, mask, step, ApplyExtension(), stream);
  }
};

/// Block-wise symmetric integers. A block of `block` elements is coded in one record: its scale (a float), then a code of `bits`
/// bits for each element in two's complement; of two 4-bit codes in a byte the first is the low one. With q = 2^(bits−1) − 1:
///   scale = max |x| / q;   code = x / scale rounded, within ±q;   x is read back as code · scale
/// A block without a scale that a float can hold (zeros, the smallest subnormals) has scale 0 and reads back as zeros. A block
/// with an element that is not finite has scale NaN and reads back as NaN, so that whoever reads it learns of it.
///
/// Small floats, rounded to nearest. bf16: a record is the upper halves of the floats; what would round to infinity becomes the
/// largest finite code. e5m2 (OCP 8-bit floats: Micikevicius et al. 2022, arXiv 2209.05433): a record is a byte E, the exponent
/// field of max |x| in the block, then a byte for each element: x / 2^(max(E, 1) − 141), which is below 2^15 and so never
/// overflows; a code that would read back as infinity becomes the largest that does not. An element (bf16) or block (e5m2, E = 255)
/// that is not finite reads back as NaN. x − what the record says is exact in fp32.
enum class QuantCode { integer, bf16, e5m2 };

struct QuantFormat {
  int bits = 8;             // integers: 8 or 4
  int block = 256;          // a multiple of 8
  bool stochastic = false;  // integers, rounding: up with the probability of the fraction, or to nearest (even in a tie)
  QuantCode code = QuantCode::integer;
};
constexpr std::int64_t quant_record_bytes(const QuantFormat& format) {
  switch (format.code) {
    case QuantCode::integer:
      return static_cast<std::int64_t>(sizeof(float)) + format.block * format.bits / 8;
    case QuantCode::bf16:
      return 2 * static_cast<std::int64_t>(format.block);
    case QuantCode::e5m2:
      return 1 + static_cast<std::int64_t>(format.block);
  }
  return 0;
}
constexpr std::int64_t quant_blocks(std::int64_t size, const QuantFormat& format) {
  return (size + format.block - 1) / format.block;
}
/// Bytes of the records of `size` elements; the last record is a full one, with zero codes behind the last element.
constexpr std::int64_t quant_bytes(std::int64_t size, const QuantFormat& format) {
  return quant_blocks(size, format) * quant_record_bytes(format);
}

/// Where stochastic rounding takes its numbers: element i uses word i % 4 of philox(seed, stream, counter + i / 4).
struct RandomWords {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::uint64_t counter = 0;
};

class QuantKernels {
 public:
  virtual ~QuantKernels() = default;
  /// records [quant_bytes(n)] ← codes of x [n]. error [n] ← x − what the records say, unless it is empty; it may be x itself.
  /// Records start at a multiple of 4 bytes.
  virtual void quantize(Span<const float> x, const QuantFormat& format, const RandomWords& random, Span<std::uint8_t> records,
                        Span<float> error, const Stream& stream) const = 0;
  /// x [n] ← what the records say.
  virtual void dequantize(Span<const std::uint8_t> records, const QuantFormat& format, Span<float> x,
                          const Stream& stream) const = 0;
  /// x [n] ← x + what the records say.
  virtual void dequantize_add(Span<const std::uint8_t> records, const QuantFormat& format, Span<float> x,
                              const Stream& stream) const = 0;
};

[[nodiscard]] const UpdateKernels& update_kernels(Device device);
[[nodiscard]] const SparseKernels& sparse_kernels(Device device);
[[nodiscard]] const QuantKernels& quant_kernels(Device device);

}  // namespace scape
