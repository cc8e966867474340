// CPU kernels over masks. Loops run mask word by mask word: words without a bit and full words take vector loops, others
// visit their set bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "cpu/kernels.hpp"
#include "scape/error.hpp"

namespace scape::detail {

namespace {

constexpr std::int64_t word_bits = MaskView::word_bits;
constexpr std::uint64_t all_bits = ~std::uint64_t{0};

// Order of magnitudes: the bits of |x| as an integer.
std::uint32_t magnitude(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU;
}

// Bits of a word that stand for coordinates [begin, end), where the word starts at coordinate `start`.
std::uint64_t bits_within(std::int64_t start, std::int64_t begin, std::int64_t end) {
  std::uint64_t bits = all_bits;
  if (begin > start) bits &= all_bits << (begin - start);
  if (end < start + word_bits) bits &= all_bits >> (start + word_bits - end);
  return bits;
}

// The magnitude of the k-th largest element, and how many elements equal to it belong to the k largest.
struct Threshold {
  std::uint32_t magnitude;
  std::int64_t ties;
};

// Radix select from the most significant digit: digits of 11, 10 and 10 bits of the 31-bit magnitude.
Threshold select(const float* x, std::int64_t n, std::int64_t k) {
  std::uint32_t prefix = 0;    // digits known so far
  std::uint32_t known = 0;     // their bits
  std::int64_t remaining = k;  // rank of the threshold among the elements that share the prefix
  for (const auto& [shift, digits] : {std::pair{20, 2048}, std::pair{10, 1024}, std::pair{0, 1024}}) {
    std::array<std::int64_t, 2048> histogram{};
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t value = magnitude(x[i]);
      if ((value & known) == prefix) ++histogram[value >> shift & static_cast<std::uint32_t>(digits - 1)];
    }
    int digit = digits - 1;
    while (histogram[static_cast<std::size_t>(digit)] < remaining) remaining -= histogram[static_cast<std::size_t>(digit--)];
    prefix |= static_cast<std::uint32_t>(digit) << shift;
    known |= static_cast<std::uint32_t>(digits - 1) << shift;
  }
  return {prefix, remaining};
}

// Calls visit(coordinate) for each set bit of `word`, which starts at coordinate `start`.
template <class Visit>
void for_each_bit(std::uint64_t word, std::int64_t start, Visit visit) {
  for (; word != 0; word &= word - 1) visit(start + std::countr_zero(word));
}

template <class Visit>
void for_each_set(const std::uint64_t* words, std::int64_t size, Visit visit) {
  for (std::int64_t w = 0; w < mask_words(size); ++w) for_each_bit(words[w], w * word_bits, visit);
}

class CpuSparseKernels final : public SparseKernels {
 public:
  void top_k(Span<const float> x, std::int64_t k, Span<std::uint64_t> words, std::int64_t first,
             const Stream& stream) const override {
    require(k >= 0 && k <= x.size(), ErrorKind::internal, "top_k: k outside 0 … n");
    require(first >= 0 && first + x.size() <= words.size() * word_bits, ErrorKind::internal, "top_k: the mask is too small");
    if (k == 0) return;
    if (k == x.size()) return set_range(words, {first, first + k}, stream);
    stream.enqueue([=] {
      auto [threshold, ties] = select(x.data(), x.size(), k);
      const std::int64_t end = first + x.size();
      for (std::int64_t w = first / word_bits; w * word_bits < end; ++w) {
        const std::int64_t begin_bit = std::max(first, w * word_bits);
        const std::int64_t end_bit = std::min(end, (w + 1) * word_bits);
        std::uint64_t above = 0;
        std::uint64_t equal = 0;
        for (std::int64_t j = begin_bit; j < end_bit; ++j) {
          const std::uint32_t value = magnitude(x.data()[j - first]);
          above |= std::uint64_t{value > threshold} << (j % word_bits);
          equal |= std::uint64_t{value == threshold} << (j % word_bits);
        }
        for (; equal != 0 && ties > 0; equal &= equal - 1, --ties) above |= equal & (0 - equal);
        words.data()[w] |= above;
      }
    });
  }

  void set_range(Span<std::uint64_t> words, Range range, const Stream& stream) const override {
    require(range.begin >= 0 && range.end <= words.size() * word_bits, ErrorKind::internal, "set_range: the mask is too small");
    if (range.empty()) return;
    stream.enqueue([=] {
      for (std::int64_t w = range.begin / word_bits; w * word_bits < range.end; ++w) {
        words.data()[w] |= bits_within(w * word_bits, range.begin, range.end);
      }
    });
  }

  void unite(Span<std::uint64_t> words, Span<const std::uint64_t> other, const Stream& stream) const override {
    require(words.size() == other.size(), ErrorKind::internal, "unite: masks differ in size");
    stream.enqueue([=] {
      for (std::int64_t w = 0; w < words.size(); ++w) words.data()[w] |= other.data()[w];
    });
  }

  void index_mask(Span<const std::uint64_t> words, Span<std::int64_t> offsets, const Stream& stream) const override {
    stream.enqueue([=] {
      std::int64_t count = 0;
      for (std::int64_t w = 0; w < words.size(); ++w) {
        if (w % MaskView::block_words == 0) offsets.data()[w / MaskView::block_words] = count;
        count += std::popcount(words.data()[w]);
      }
    });
  }

  void count_common(Span<const std::uint64_t> a, Span<const std::uint64_t> b, Span<std::int64_t> result,
                    const Stream& stream) const override {
    require(a.size() == b.size(), ErrorKind::internal, "count_common: masks differ in size");
    stream.enqueue([=] {
      std::int64_t count = 0;
      for (std::int64_t w = 0; w < a.size(); ++w) count += std::popcount(a.data()[w] & b.data()[w]);
      *result.data() = count;
    });
  }

  void pack(Span<const float> x, const MaskView& mask, Span<float> packed, const Stream& stream) const override {
    check(mask, x.size(), packed.size());
    stream.enqueue([=, words = mask.words.data()] {
      float* out = packed.data();
      for (std::int64_t w = 0; w < mask_words(x.size()); ++w) {
        const float* in = x.data() + w * word_bits;
        if (words[w] == all_bits) {
          std::memcpy(out, in, word_bits * sizeof(float));
          out += word_bits;
        } else {
          for_each_bit(words[w], 0, [&](std::int64_t j) { *out++ = in[j]; });
        }
      }
    });
  }

  void unpack(Span<const float> packed, const MaskView& mask, Span<float> x, const Stream& stream) const override {
    check(mask, x.size(), packed.size());
    stream.enqueue([=, words = mask.words.data()] {
      const float* in = packed.data();
      for_each_set(words, x.size(), [&](std::int64_t j) { x.data()[j] = *in++; });
    });
  }

  void indices(const MaskView& mask, Span<std::uint32_t> indices, const Stream& stream) const override {
    check(mask, mask.size, indices.size());
    require(mask.size <= std::int64_t{1} << 32, ErrorKind::internal, "indices: a coordinate does not fit 32 bits");
    stream.enqueue([=, words = mask.words.data(), size = mask.size] {
      std::uint32_t* out = indices.data();
      for_each_set(words, size, [&](std::int64_t j) { *out++ = static_cast<std::uint32_t>(j); });
    });
  }

  void scatter_add(Span<const std::uint32_t> indices, Span<const float> values, float divisor, Span<float> x,
                   const Stream& stream) const override {
    require(indices.size() == values.size(), ErrorKind::internal, "scatter_add: spans differ in size");
    stream.enqueue([=] {
      for (std::int64_t i = 0; i < indices.size(); ++i) x.data()[indices.data()[i]] += values.data()[i] / divisor;
    });
  }

  void candidate(Span<float> g, Span<const float> m, Span<const float> e, float beta1, Span<double> sum,
                 const Stream& stream) const override {
    const std::int64_t n = g.size();
    require(m.size() == n && e.size() == n, ErrorKind::internal, "candidate: spans differ in size");
    stream.enqueue([=, pg = g.data(), pm = m.data(), pe = e.data()] {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) pg[i] = beta1 * pm[i] + (1 - beta1) * pg[i] + pe[i];
      *sum.data() = detail::sum_of_squares(pg, n);
    });
  }

  void recover_gradient(Span<float> packed, Span<const float> m, const MaskView& mask, float divisor, float beta1, Span<double> sum,
                        const Stream& stream) const override {
    check(mask, m.size(), packed.size());
    stream.enqueue([=, words = mask.words.data()] {
      float* b = packed.data();
      for_each_set(words, m.size(), [&](std::int64_t j) {
        *b = (*b / divisor - beta1 * m.data()[j]) / (1 - beta1);
        ++b;
      });
      *sum.data() = detail::sum_of_squares(packed.data(), packed.size());
    });
  }

  void apply(Range range, Span<float> theta, Span<float> m, Span<float> e, Span<const float> c, Span<const float> packed,
             const MaskView& mask, const AdamStep& s, const Stream& stream) const override {
    check(mask, theta.size(), packed.size());
    require(m.size() == theta.size() && e.size() == theta.size() && c.size() == theta.size(), ErrorKind::internal,
            "apply: spans differ in size");
    require(range.begin >= 0 && range.end <= theta.size(), ErrorKind::internal, "apply: range outside the parameters");
    if (range.empty()) return;
    stream.enqueue([=, words = mask.words.data(), offsets = mask.offsets.data()] {
      const float keep = 1 - s.learning_rate * s.weight_decay;
      const float* gradient = packed.data() + bits_before(words, offsets, range.begin);
      for (std::int64_t w = range.begin / word_bits; w * word_bits < range.end; ++w) {
        const std::int64_t begin = std::max(range.begin, w * word_bits);
        const std::int64_t n = std::min(range.end, (w + 1) * word_bits) - begin;
        const std::uint64_t word = words[w] & bits_within(w * word_bits, range.begin, range.end);
        float* t = theta.data() + begin;
        float* pm = m.data() + begin;
        float* pe = e.data() + begin;
        const float* pc = c.data() + begin;
        if (std::popcount(word) == n) {
#pragma GCC ivdep
          for (std::int64_t i = 0; i < n; ++i) {
            adams_coordinate(t[i], pm[i], s.gradient_scale * gradient[i], s, keep);
            pe[i] = 0;
          }
          gradient += n;
          continue;
        }
        struct Moved {
          std::int64_t i;
          float theta, m;
        };
        std::array<Moved, word_bits> moved;  // coordinates on the mask; written after the vector loop over the whole word
        std::size_t count = 0;
        for_each_bit(word, w * word_bits - begin, [&](std::int64_t i) {
          Moved& entry = moved[count++];
          entry = {i, t[i], pm[i]};
          adams_coordinate(entry.theta, entry.m, s.gradient_scale * *gradient++, s, keep);
        });
#pragma GCC ivdep
        for (std::int64_t i = 0; i < n; ++i) {
          t[i] *= keep;
          pm[i] = 0;
          pe[i] = pc[i];
        }
        for (std::size_t i = 0; i < count; ++i) {
          t[moved[i].i] = moved[i].theta;
          pm[moved[i].i] = moved[i].m;
          pe[moved[i].i] = 0;
        }
      }
    });
  }

 private:
  static void check(const MaskView& mask, std::int64_t size, std::int64_t count) {
    require(mask.size == size && mask.words.size() == mask_words(size) && mask.offsets.size() == mask_blocks(size),
            ErrorKind::internal, "sparse kernel: the mask has another size than the vector");
    require(mask.count == count, ErrorKind::internal, "sparse kernel: the packed vector does not match the mask's count");
  }
  // Set bits before coordinate `j`.
  static std::int64_t bits_before(const std::uint64_t* words, const std::int64_t* offsets, std::int64_t j) {
    const std::int64_t word = j / word_bits;
    const std::int64_t block = word / MaskView::block_words;
    std::int64_t count = offsets[block];
    for (std::int64_t w = block * MaskView::block_words; w < word; ++w) count += std::popcount(words[w]);
    if (j % word_bits != 0) count += std::popcount(words[word] & ~(all_bits << (j % word_bits)));
    return count;
  }
};

}  // namespace

const SparseKernels& cpu_sparse_kernels() {
  static const CpuSparseKernels kernels;
  return kernels;
}

}  // namespace scape::detail
