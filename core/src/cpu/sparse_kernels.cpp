// CPU kernels over masks. Loops run mask word by mask word: words without a bit and full words take vector loops, others
// visit their set bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
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

// Calls visit(coordinate) for each set bit of `word`, which starts at coordinate `start`.
template <class Visit>
void for_each_bit(std::uint64_t word, std::int64_t start, Visit visit) {
  for (; word != 0; word &= word - 1) visit(start + std::countr_zero(word));
}

template <class Visit>
void for_each_set(const std::uint64_t* words, std::int64_t size, Visit visit) {
  for (std::int64_t w = 0; w < mask_words(size); ++w) for_each_bit(words[w], w * word_bits, visit);
}

// Bit i: test(magnitude of x[i]) for i < n ≤ 64. Bytes first, which vectorise; a multiplication then gathers the lowest bits of
// eight bytes in its top byte.
template <class Test>
std::uint64_t bits_where(const float* x, std::int64_t n, Test test) {
  static_assert(std::endian::native == std::endian::little);
  std::array<std::uint8_t, word_bits> flags{};
  for (std::int64_t i = 0; i < n; ++i) flags[static_cast<std::size_t>(i)] = test(magnitude(x[i]));
  std::uint64_t bits = 0;
  for (int byte = 0; byte < 8; ++byte) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, flags.data() + 8 * byte, sizeof(eight));
    bits |= (eight * 0x0102040810204080U >> 56) << 8 * byte;
  }
  return bits;
}

// The k largest elements: all of magnitude `bound` or more, and the first `ties` of magnitude bound − 1.
struct Threshold {
  std::uint32_t bound;
  std::int64_t ties;
};

// Where the element of a given rank (1 = the largest) is found by one digit.
struct Digit {
  std::uint32_t value;
  std::int64_t rank;   // among the elements with this digit
  std::int64_t count;  // of those elements
};

template <int bits, class T>
Digit find_digit(const T* x, std::int64_t n, int shift, std::int64_t rank) {
  constexpr std::uint32_t largest = (1U << bits) - 1;
  const auto digit = [shift](T value) { return std::bit_cast<std::uint32_t>(value) >> shift & largest; };
  std::array<std::array<std::int64_t, largest + 1>, 2> histograms{};  // two, so that equal neighbours do not wait for each other
  for (std::int64_t i = 0; i + 1 < n; i += 2) {
    ++histograms[0][digit(x[i])];
    ++histograms[1][digit(x[i + 1])];
  }
  if (n % 2 != 0) ++histograms[0][digit(x[n - 1])];
  std::uint32_t value = largest;
  const auto count = [&] { return histograms[0][value] + histograms[1][value]; };
  for (; count() < rank; --value) rank -= count();
  return {value, rank, count()};
}

// Radix select from the most significant digit: digits of 11, 10 and 10 bits of the 31-bit magnitude. Only the elements that
// share the digits found so far, usually a few per cent, go on to the next digit.
Threshold select(const float* x, std::int64_t n, std::int64_t k) {
  Digit digit = find_digit<11>(x, n, 20, k);
  std::uint32_t prefix = digit.value;
  std::vector<std::uint32_t> candidates;
  candidates.reserve(static_cast<std::size_t>(digit.count));
  for (std::int64_t i = 0; i < n; i += word_bits) {
    const auto shares_prefix = [&](std::uint32_t value) { return value >> 20 == prefix; };
    for_each_bit(bits_where(x + i, std::min(n - i, word_bits), shares_prefix), i,
                 [&](std::int64_t j) { candidates.push_back(magnitude(x[j])); });
  }
  for (const int shift : {10, 0}) {
    digit = find_digit<10>(candidates.data(), std::ssize(candidates), shift, digit.rank);
    prefix = prefix << 10 | digit.value;
    std::erase_if(candidates, [&](std::uint32_t value) { return value >> shift != prefix; });
  }
  return digit.rank == digit.count ? Threshold{prefix, 0} : Threshold{prefix + 1, digit.rank};
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
      auto [bound, ties] = select(x.data(), x.size(), k);
      const std::int64_t end = first + x.size();
      for (std::int64_t begin = first; begin < end;) {
        const std::int64_t bit = begin % word_bits;
        const std::int64_t n = std::min(word_bits - bit, end - begin);
        const float* in = x.data() + (begin - first);
        std::uint64_t chosen = bits_where(in, n, [=](std::uint32_t value) { return value >= bound; });
        if (ties > 0) {
          std::uint64_t equal = bits_where(in, n, [=](std::uint32_t value) { return value == bound - 1; });
          for (; equal != 0 && ties > 0; equal &= equal - 1, --ties) chosen |= equal & (0 - equal);
        }
        words.data()[begin / word_bits] |= chosen << bit;
        begin += n;
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

  using SparseKernels::pack;
  void pack(Range range, Span<const float> x, const MaskView& mask, Span<float> packed, const Stream& stream) const override {
    mask.check(range, x.size(), packed.size());
    if (range.empty()) return;
    stream.enqueue([=, words = mask.words.data(), offsets = mask.offsets.data()] {
      float* out = packed.data() + bits_before(words, offsets, range.begin);
      for (std::int64_t w = range.begin / word_bits; w * word_bits < range.end; ++w) {
        const std::int64_t first = w * word_bits - range.begin;
        const std::uint64_t word = words[w] & bits_within(w * word_bits, range.begin, range.end);
        if (word == all_bits) {
          std::memcpy(out, x.data() + first, word_bits * sizeof(float));
          out += word_bits;
        } else {
          for_each_bit(word, first, [&](std::int64_t i) { *out++ = x.data()[i]; });
        }
      }
    });
  }

  using SparseKernels::unpack;
  void unpack(Range range, Span<const float> packed, const MaskView& mask, Span<float> x, const Stream& stream) const override {
    const bool zeros = packed.empty();
    mask.check(range, x.size(), zeros ? mask.count : packed.size());
    if (range.empty()) return;
    stream.enqueue([=, words = mask.words.data(), offsets = mask.offsets.data()] {
      const float* in = zeros ? nullptr : packed.data() + bits_before(words, offsets, range.begin);
      for (std::int64_t w = range.begin / word_bits; w * word_bits < range.end; ++w) {
        const std::uint64_t word = words[w] & bits_within(w * word_bits, range.begin, range.end);
        for_each_bit(word, w * word_bits - range.begin, [&](std::int64_t i) { x.data()[i] = zeros ? 0 : *in++; });
      }
    });
  }

  void indices(const MaskView& mask, Span<std::uint32_t> indices, const Stream& stream) const override {
    mask.check(indices.size());
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
    require((m.empty() || m.size() == n) && e.size() == n, ErrorKind::internal, "candidate: spans differ in size");
    stream.enqueue([=, pg = g.data(), pm = m.data(), pe = e.data()] {
      *sum.data() = m.empty() ? detail::sum_of_squares(n, [=](std::int64_t i) { return pg[i] = (1 - beta1) * pg[i] + pe[i]; })
                              : detail::sum_of_squares(
                                    n, [=](std::int64_t i) { return pg[i] = beta1 * pm[i] + (1 - beta1) * pg[i] + pe[i]; });
    });
  }

  void recover_gradient(Span<float> packed, Span<const float> x, const MaskView& mask, float divisor, float factor, float beta1,
                        Span<double> sum, const Stream& stream) const override {
    mask.check({0, mask.size}, x.size(), packed.size());
    stream.enqueue([=, words = mask.words.data()] {
      float* b = packed.data();
      for_each_set(words, x.size(), [&](std::int64_t j) {
        *b = (*b / divisor + factor * x.data()[j]) / (1 - beta1);
        ++b;
      });
      *sum.data() = detail::sum_of_squares(packed.size(), [&](std::int64_t i) { return packed.data()[i]; });
    });
  }

  using SparseKernels::apply;
  void apply(Range range, Span<float> theta, Span<float> m, Span<float> e, Span<const float> c, Span<const float> packed,
             const MaskView& mask, const AdamStep& s, const ApplyExtension& x, const Stream& stream) const override {
    mask.check(range, theta.size(), packed.size());
    require(m.size() == theta.size() && e.size() == theta.size() && c.size() == theta.size(), ErrorKind::internal,
            "apply: spans differ in size");
    x.check(range, mask.size);
    const float keep = 1 - s.learning_rate * s.weight_decay;
    const auto with = [=](auto update) {
      stream.enqueue([=] { apply_update(range, theta, m, e, c, packed, mask, s, keep, update); });
    };
    if (range.empty()) return;
    if (!x.block_v.empty()) {
      with([=](std::int64_t j, float& theta_j, float& m_j, float g) {
        adams_with_v(theta_j, m_j, g, x.block_v.data()[(j - x.block_begin) / x.block_size], s, keep);
      });
    } else if (!x.ages.empty()) {
      with([=](std::int64_t j, float& theta_j, float& m_j, float g) {
        const float steps = std::min(static_cast<float>(x.ages.data()[j]), x.backlog_cap);
        adams_backlog(theta_j, m_j, g, s, keep, steps, x.backlog_root ? std::sqrt(steps) : steps);
      });
      stream.enqueue([=] { grow_older(range, mask, x.ages); });
    } else {
      with([=](std::int64_t, float& theta_j, float& m_j, float g) { adams_coordinate(theta_j, m_j, g, s, keep); });
    }
  }

 private:
  // update(j, θ_j, m_j, scaled ĝ_j) is what is done on the mask.
  template <class Update>
  static void apply_update(Range range, Span<float> theta, Span<float> m, Span<float> e, Span<const float> c,
                           Span<const float> packed, const MaskView& mask, const AdamStep& s, float keep, const Update& update) {
    const std::uint64_t* words = mask.words.data();
    const std::int64_t* offsets = mask.offsets.data();
    const float* gradient = packed.data() + bits_before(words, offsets, range.begin);
    for (std::int64_t w = range.begin / word_bits; w * word_bits < range.end; ++w) {
      const std::int64_t begin = std::max(range.begin, w * word_bits);
      const std::int64_t n = std::min(range.end, (w + 1) * word_bits) - begin;
      const std::uint64_t word = words[w] & bits_within(w * word_bits, range.begin, range.end);
      float* t = theta.data() + (begin - range.begin);
      float* pm = m.data() + (begin - range.begin);
      float* pe = e.data() + (begin - range.begin);
      const float* pc = c.data() + (begin - range.begin);
      if (std::popcount(word) == n) {
#pragma GCC ivdep
        for (std::int64_t i = 0; i < n; ++i) {
          update(begin + i, t[i], pm[i], s.gradient_scale * gradient[i]);
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
        update(begin + i, entry.theta, entry.m, s.gradient_scale * *gradient++);
      });
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) {
        t[i] *= keep;
        pm[i] = 0;
        pe[i] = s.residual_scale * pc[i];
      }
      for (std::size_t i = 0; i < count; ++i) {
        t[moved[i].i] = moved[i].theta;
        pm[moved[i].i] = moved[i].m;
        pe[moved[i].i] = 0;
      }
    }
  }
  static void grow_older(Range range, const MaskView& mask, Span<std::uint16_t> ages) {
    constexpr int oldest = std::numeric_limits<std::uint16_t>::max();
    for (std::int64_t w = range.begin / word_bits; w * word_bits < range.end; ++w) {
      const std::uint64_t word = mask.words.data()[w];
      const std::int64_t begin = std::max(range.begin, w * word_bits);
      const std::int64_t end = std::min(range.end, (w + 1) * word_bits);
      for (std::int64_t j = begin; j < end; ++j) {
        std::uint16_t& age = ages.data()[j];
        const int older = std::min(age + 1, oldest);
        age = static_cast<std::uint16_t>((word >> (j - w * word_bits) & 1) != 0 ? 1 : older);
      }
    }
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
