// Kernels over masks against loops that look at one coordinate at a time. Lengths and ranges split mask words on purpose.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "scape/kernels.hpp"
#include "support/guarded.hpp"
#include "support/kernel_inputs.hpp"

namespace scape {
namespace {

using testing::example_step;
using testing::Guarded;
using testing::normal_vector;

const SparseKernels& kernels = sparse_kernels(cpu_device);
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float smallest = std::numeric_limits<float>::denorm_min();

using Bits = std::vector<bool>;

std::vector<std::uint64_t> to_words(const Bits& bits) {
  std::vector<std::uint64_t> words(static_cast<std::size_t>(mask_words(static_cast<std::int64_t>(bits.size()))));
  for (std::size_t j = 0; j < bits.size(); ++j) words[j / 64] |= std::uint64_t{bits[j]} << (j % 64);
  return words;
}

std::string to_text(const std::vector<std::uint64_t>& words) {
  std::string text;
  for (std::size_t j = 0; j < std::min<std::size_t>(words.size(), 5) * 64; ++j) {
    text += (words[j / 64] >> (j % 64) & 1) != 0 ? '1' : '0';
    if (j % 64 == 63) text += ' ';
  }
  return text;
}

// ---- top_k ----

// The k of largest magnitude by sorting; of equal ones the lower index.
Bits sorted_top_k(const std::vector<float>& x, std::int64_t k) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  Bits chosen(x.size());
  for (std::int64_t i = 0; i < k; ++i) chosen[order[static_cast<std::size_t>(i)]] = true;
  return chosen;
}

// Runs top_k at bit `first` of a mask whose bits outside are all `outside`, and compares the whole mask.
void expect_top_k(const std::vector<float>& x, std::int64_t k, std::int64_t first, bool outside) {
  const Bits chosen = sorted_top_k(x, k);
  const auto size = static_cast<std::int64_t>(x.size());
  Bits expected(static_cast<std::size_t>((mask_words(first + size) + 1) * 64), outside);
  Bits before = expected;
  for (std::int64_t j = 0; j < size; ++j) {
    before[static_cast<std::size_t>(first + j)] = false;
    expected[static_cast<std::size_t>(first + j)] = chosen[static_cast<std::size_t>(j)];
  }
  const Guarded<float> px(x);
  const Guarded<std::uint64_t> words(to_words(before));
  kernels.top_k(px, k, words, first, Stream());
  EXPECT_TRUE(words.values() == to_words(expected))
      << "n " << size << ", k " << k << ", first " << first << ", outside " << outside << "\nis        " << to_text(words.values())
      << "\nshould be " << to_text(to_words(expected));
  EXPECT_TRUE(words.intact() && px.intact());
}

struct Distribution {
  const char* name;
  std::function<std::vector<float>(std::int64_t)> make;
};

std::vector<float> transformed(std::int64_t n, const std::function<float(float, std::size_t)>& change) {
  auto x = normal_vector(n, 21, static_cast<std::uint64_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = change(x[i], i);
  return x;
}

const std::vector<Distribution> distributions{
    {"normal", [](std::int64_t n) { return normal_vector(n, 20); }},
    {"all_equal", [](std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n), -0.25F); }},
    {"zeros_of_both_signs", [](std::int64_t n) { return transformed(n, [](float x, auto) { return x < 0 ? -0.0F : 0.0F; }); }},
    {"two_values", [](std::int64_t n) { return transformed(n, [](float x, auto) { return x < 0.3F ? -1.0F : 2.0F; }); }},
    {"signs_of_one_value", [](std::int64_t n) { return transformed(n, [](float x, auto) { return x < 0 ? -1.0F : 1.0F; }); }},
    {"with_infinities_and_zeros",
     [](std::int64_t n) {
       return transformed(n, [](float x, std::size_t i) {
         return i % 5 == 1 ? std::copysign(infinity, x) : i % 3 == 0 ? -0.0F : x;
       });
     }},
    // Equal in all but the lowest ten bits, and in all but the lowest one: one bin of every coarser histogram.
    {"one_bin",
     [](std::int64_t n) { return transformed(n, [](float x, auto) { return 1 + std::floor(std::abs(x) * 300) * 0x1p-23F; }); }},
    {"neighbouring_floats",
     [](std::int64_t n) { return transformed(n, [](float x, auto) { return x < 0 ? -1.0F : 1 + 0x1p-23F; }); }},
    {"subnormals", [](std::int64_t n) { return transformed(n, [](float x, auto) { return std::floor(x * 50) * smallest; }); }},
    {"log_normal",
     [](std::int64_t n) {
       return transformed(n, [](float x, auto) { return std::copysign(std::pow(10.0F, std::clamp(10 * x, -30.0F, 30.0F)), x); });
     }},
    {"largest_and_smallest",
     [](std::int64_t n) {
       return transformed(
           n, [](float x, std::size_t i) { return i % 2 == 0 ? smallest : std::copysign(std::numeric_limits<float>::max(), x); });
     }},
    {"descending",
     [](std::int64_t n) {
       return transformed(n, [n](float, std::size_t i) { return static_cast<float>(n) - static_cast<float>(i); });
     }},
};

class TopK : public ::testing::TestWithParam<Distribution> {};
INSTANTIATE_TEST_SUITE_P(Of, TopK, ::testing::ValuesIn(distributions), [](const auto& test) { return test.param.name; });

std::vector<std::int64_t> interesting_counts(std::int64_t n) {
  std::vector<std::int64_t> counts{0, 1, 2, n / 3, n / 2, n - 2, n - 1, n};
  std::erase_if(counts, [n](std::int64_t k) { return k < 0 || k > n; });
  std::ranges::sort(counts);
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

TEST_P(TopK, EqualsSortingForEverySmallSizeAndStart) {
  for (std::int64_t n = 1; n <= 130; ++n) {
    const auto x = GetParam().make(n);
    for (const std::int64_t k : interesting_counts(n)) {
      for (const std::int64_t first : {0, 1, 63, 64, 65}) {
        expect_top_k(x, k, first, false);
        expect_top_k(x, k, first, true);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(TopK, EqualsSortingForLargeSizes) {
  for (const std::int64_t n : {4097, 100'000}) {
    const auto x = GetParam().make(n);
    for (const std::int64_t k : {std::int64_t{1}, n / 1000, n / 100, n / 10, n - 1}) expect_top_k(x, k, 65, false);
  }
}

TEST(TopKArguments, AreChecked) {
  const Stream stream;
  const Buffer<float> x(64);
  const Buffer<std::uint64_t> words(1);
  EXPECT_THROW(kernels.top_k(x, -1, words, 0, stream), Error);
  EXPECT_THROW(kernels.top_k(x, 65, words, 0, stream), Error);
  EXPECT_THROW(kernels.top_k(x, 3, words, 1, stream), Error);
  EXPECT_THROW(kernels.top_k(x, 3, words, -1, stream), Error);
  EXPECT_NO_THROW(kernels.top_k(Buffer<float>(0), 0, words, 64, stream));
  EXPECT_EQ(words.host()[0], 0U);
}

// A refused step runs top_k on whatever the gradient left there; the result is thrown away, but nothing may be overrun.
TEST(TopKArguments, NaNLeavesTheCountAndTheNeighboursAlone) {
  auto x = normal_vector(200, 8);
  for (std::size_t i = 0; i < x.size(); i += 3) x[i] = std::numeric_limits<float>::quiet_NaN();
  const Guarded<std::uint64_t> words(std::int64_t{4});
  kernels.top_k(Guarded<float>(x), 17, words, 5, Stream());
  std::int64_t count = 0;
  for (const std::uint64_t word : words.values()) count += std::popcount(word);
  EXPECT_EQ(count, 17);
  EXPECT_TRUE(words.intact());
}

// ---- kernels that use a mask ----

// A mask as bits, words and index.
struct Mask {
  Bits bits;
  Guarded<std::uint64_t> words;
  Guarded<std::int64_t> offsets;
  std::int64_t count;

  explicit Mask(Bits given)
      : bits(std::move(given)),
        words(to_words(bits)),
        offsets(mask_blocks(static_cast<std::int64_t>(bits.size()))),
        count(std::count(bits.begin(), bits.end(), true)) {
    kernels.index_mask(words, offsets, Stream());
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(bits.size()); }
  [[nodiscard]] MaskView view() const { return {words.span(), offsets.span(), size(), count}; }
  [[nodiscard]] std::vector<std::size_t> members() const {
    std::vector<std::size_t> members;
    for (std::size_t j = 0; j < bits.size(); ++j) {
      if (bits[j]) members.push_back(j);
    }
    return members;
  }
};

// Masks of a size: empty, full, random ones, and full and empty words in turn.
std::vector<Bits> masks_of(std::int64_t size) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<Bits> masks{Bits(n), Bits(n, true)};
  for (const double density : {0.02, 0.5, 0.98}) {
    Rng rng(31, n);
    Bits mask(n);
    for (std::size_t j = 0; j < n; ++j) mask[j] = rng.uniform() < density;
    masks.push_back(std::move(mask));
  }
  Bits stripes(n);
  for (std::size_t j = 0; j < n; ++j) stripes[j] = j / 64 % 2 == 0;
  masks.push_back(std::move(stripes));
  return masks;
}

class MaskSizes : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, MaskSizes, ::testing::Values(1, 3, 63, 64, 65, 127, 200, 511, 512, 513, 1000, 4097));

TEST_P(MaskSizes, IndexMask) {
  for (const Bits& bits : masks_of(GetParam())) {
    const Mask mask(bits);
    const auto offsets = mask.offsets.values();
    for (std::size_t block = 0; block < offsets.size(); ++block) {
      ASSERT_EQ(offsets[block], std::count(bits.begin(), bits.begin() + static_cast<std::int64_t>(block) * 512, true)) << block;
    }
    EXPECT_TRUE(mask.offsets.intact());
  }
}

TEST_P(MaskSizes, SetRange) {
  const std::int64_t n = GetParam();
  for (const std::int64_t begin : {std::int64_t{0}, n / 3, n / 2, std::min(n, std::int64_t{64}), n - 1, n}) {
    for (const std::int64_t end : {begin, std::min(begin + 1, n), std::min(begin + 64, n), n}) {
      Bits bits = masks_of(n)[3];
      const Guarded<std::uint64_t> words(to_words(bits));
      kernels.set_range(words, {begin, end}, Stream());
      for (std::int64_t j = begin; j < end; ++j) bits[static_cast<std::size_t>(j)] = true;
      EXPECT_EQ(words.values(), to_words(bits)) << begin << " … " << end;
      EXPECT_TRUE(words.intact());
    }
  }
  const Guarded<std::uint64_t> words(mask_words(n));
  EXPECT_THROW(kernels.set_range(words, {-1, 1}, Stream()), Error);
  EXPECT_THROW(kernels.set_range(words, {0, words.span().size() * 64 + 1}, Stream()), Error);
}

TEST_P(MaskSizes, CountCommon) {
  const auto masks = masks_of(GetParam());
  for (const Bits& a : masks) {
    for (const Bits& b : masks) {
      const Guarded<std::int64_t> result(std::int64_t{1});
      kernels.count_common(Guarded<std::uint64_t>(to_words(a)), Guarded<std::uint64_t>(to_words(b)), result, Stream());
      EXPECT_EQ(result.values()[0], std::inner_product(a.begin(), a.end(), b.begin(), std::int64_t{0}, std::plus(),
                                                       [](bool x, bool y) { return std::int64_t{x && y}; }));
    }
  }
}

TEST_P(MaskSizes, Unite) {
  const auto masks = masks_of(GetParam());
  for (const Bits& a : masks) {
    for (const Bits& b : masks) {
      const Guarded<std::uint64_t> words(to_words(a));
      kernels.unite(words, Guarded<std::uint64_t>(to_words(b)), Stream());
      Bits both(a.size());
      for (std::size_t j = 0; j < a.size(); ++j) both[j] = a[j] || b[j];
      EXPECT_EQ(words.values(), to_words(both));
      EXPECT_TRUE(words.intact());
    }
  }
}

TEST_P(MaskSizes, PackUnpackIndicesScatterAdd) {
  const Stream stream;
  const std::int64_t n = GetParam();
  const auto x = normal_vector(n, 41);
  for (const Bits& bits : masks_of(n)) {
    const Mask mask(bits);
    std::vector<float> expected;
    std::vector<std::uint32_t> coordinates;
    for (const std::size_t j : mask.members()) {
      expected.push_back(x[j]);
      coordinates.push_back(static_cast<std::uint32_t>(j));
    }
    const Guarded<float> packed(mask.count);
    kernels.pack(Guarded<float>(x), mask.view(), packed, stream);
    EXPECT_EQ(packed.values(), expected);
    EXPECT_TRUE(packed.intact());
    const Guarded<float> in_pieces(mask.count);
    for (const Range part : {Range{n / 2, n}, Range{0, n / 3}, Range{n / 3, n / 2}}) {
      kernels.pack(part, Guarded<float>(x).span().subspan(part.begin, part.size()), mask.view(), in_pieces, stream);
    }
    EXPECT_EQ(in_pieces.values(), expected);
    EXPECT_TRUE(in_pieces.intact());

    const Guarded<std::uint32_t> indices(mask.count);
    kernels.indices(mask.view(), indices, stream);
    EXPECT_EQ(indices.values(), coordinates);
    EXPECT_TRUE(indices.intact());

    const auto y = normal_vector(n, 42);
    auto unpacked = y;
    auto added = y;
    for (const std::size_t j : mask.members()) {
      unpacked[j] = x[j];
      added[j] += x[j] / 3;
    }
    const Guarded<float> to(y);
    kernels.unpack(packed, mask.view(), to, stream);
    EXPECT_EQ(to.values(), unpacked);
    EXPECT_TRUE(to.intact());
    const Guarded<float> in_parts(y);
    for (const Range part : {Range{n / 2, n}, Range{0, n / 3}, Range{n / 3, n / 2}}) {
      kernels.unpack(part, packed, mask.view(), in_parts.span().subspan(part.begin, part.size()), stream);
    }
    EXPECT_EQ(in_parts.values(), unpacked);
    EXPECT_TRUE(in_parts.intact());
    for (const std::size_t j : mask.members()) unpacked[j] = 0;
    kernels.unpack({}, mask.view(), to, stream);  // empty: zeros
    EXPECT_EQ(to.values(), unpacked);
    EXPECT_TRUE(to.intact());
    const Guarded<float> sum(y);
    kernels.scatter_add(indices, packed, 3, sum, stream);
    EXPECT_EQ(sum.values(), added);
    EXPECT_TRUE(sum.intact());
  }
}

TEST_P(MaskSizes, Candidate) {
  const std::int64_t n = GetParam();
  const auto g = normal_vector(n, 51);
  const auto m = normal_vector(n, 52);
  const auto e = normal_vector(n, 53);
  const Guarded<float> pg(g), pm(m), pe(e);
  const Guarded<double> sum(std::int64_t{1});
  kernels.candidate(pg, pm, pe, 0.9F, sum, Stream());
  const auto c = pg.values();
  double squares = 0;
  for (std::size_t j = 0; j < c.size(); ++j) {
    EXPECT_NEAR(c[j], 0.9 * m[j] + 0.1 * g[j] + e[j], 3e-7 * (1 + std::abs(m[j]) + std::abs(e[j]))) << j;
    squares += static_cast<double>(c[j]) * c[j];
  }
  EXPECT_NEAR(sum.values()[0], squares, 1e-13 * squares);
  EXPECT_EQ(pm.values(), m);
  EXPECT_EQ(pe.values(), e);
  EXPECT_TRUE(pg.intact() && pm.intact() && pe.intact() && sum.intact());

  const Guarded<float> p(g), with_zeros(g);  // an empty m is 0
  const Guarded<double> sum_with_zeros(std::int64_t{1});
  kernels.candidate(p, {}, pe, 0.9F, sum, Stream());
  kernels.candidate(with_zeros, Guarded<float>(n), pe, 0.9F, sum_with_zeros, Stream());
  EXPECT_EQ(p.values(), with_zeros.values());
  EXPECT_EQ(sum.values(), sum_with_zeros.values());
  EXPECT_TRUE(p.intact());
}

TEST_P(MaskSizes, RecoverGradient) {
  const std::int64_t n = GetParam();
  const auto m = normal_vector(n, 61);
  for (const Bits& bits : masks_of(n)) {
    const Mask mask(bits);
    const auto b = normal_vector(mask.count, 62);
    const Guarded<float> packed(b);
    const Guarded<double> sum(std::vector{-1.0});
    kernels.recover_gradient(packed, Guarded<float>(m), mask.view(), 3, 0.75F, 0.875F, sum, Stream());
    const auto gradient = packed.values();
    const auto members = mask.members();
    double squares = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const double expected = (b[i] / 3.0 + 0.75 * m[members[i]]) / 0.125;
      EXPECT_NEAR(gradient[i], expected, 2e-6 * (1 + std::abs(b[i]) + std::abs(m[members[i]]))) << i;
      squares += static_cast<double>(gradient[i]) * gradient[i];
    }
    EXPECT_NEAR(sum.values()[0], squares, 1e-13 * squares);
    EXPECT_TRUE(packed.intact() && sum.intact());
  }
}

// apply() on one range of the coordinates: there it is AdamS on the mask and decay off it, elsewhere nothing changes.
void expect_apply(const Mask& mask, Range range) {
  const AdamStep s = example_step;
  const std::int64_t n = mask.size();
  const auto theta = normal_vector(n, 71), m = normal_vector(n, 72, 0, 0.1F), e = normal_vector(n, 73), c = normal_vector(n, 74);
  const auto packed = normal_vector(mask.count, 75);
  auto theta1 = theta, m1 = m, e1 = e;
  std::size_t next = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const auto i = static_cast<std::size_t>(j);
    const double gradient = mask.bits[i] ? static_cast<double>(s.gradient_scale) * packed[next++] : 0;
    if (j < range.begin || j >= range.end) continue;
    if (!mask.bits[i]) {
      theta1[i] = (1 - s.learning_rate * s.weight_decay) * theta[i];
      m1[i] = 0;
      e1[i] = s.residual_scale * c[i];
      continue;
    }
    const double previous = static_cast<double>(s.previous_scale) * m[i];
    const double v = s.beta2 * previous * previous + (1.0 - s.beta2) * gradient * gradient;
    const double moment = s.beta1 * static_cast<double>(m[i]) + (1.0 - s.beta1) * gradient;
    const double u = s.m_scale * moment / (std::sqrt(s.v_scale * v) + s.epsilon);
    theta1[i] = static_cast<float>(theta[i] - s.learning_rate * (u + s.weight_decay * static_cast<double>(theta[i])));
    m1[i] = static_cast<float>(moment);
    e1[i] = 0;
  }
  const Guarded<float> pt(theta), pm(m), pe(e), pc(c), pp(packed);
  const auto part = [&](const Guarded<float>& x) { return x.span().subspan(range.begin, range.size()); };
  kernels.apply(range, part(pt), part(pm), part(pe), part(pc), pp, mask.view(), s, Stream());
  const auto theta2 = pt.values(), m2 = pm.values();
  for (std::size_t i = 0; i < theta.size(); ++i) {
    const bool rounded = mask.bits[i] && static_cast<std::int64_t>(i) >= range.begin && static_cast<std::int64_t>(i) < range.end;
    EXPECT_NEAR(theta2[i], theta1[i], rounded ? 1e-6 * (1 + std::abs(theta1[i])) : 0) << "theta " << i;
    EXPECT_NEAR(m2[i], m1[i], rounded ? 1e-6 : 0) << "m " << i;
  }
  EXPECT_EQ(pe.values(), e1);
  EXPECT_EQ(pc.values(), c);
  EXPECT_EQ(pp.values(), packed);
  EXPECT_TRUE(pt.intact() && pm.intact() && pe.intact() && pc.intact() && pp.intact());
}

TEST_P(MaskSizes, Apply) {
  const std::int64_t n = GetParam();
  for (const Bits& bits : masks_of(n)) {
    const Mask mask(bits);
    for (const std::int64_t begin :
         {std::int64_t{0}, std::min(n, std::int64_t{1}), n / 3, std::min(n, std::int64_t{64}), n / 2, n}) {
      for (const std::int64_t end : {begin, std::min(begin + 1, n), (begin + n) / 2, n}) {
        SCOPED_TRACE("size " + std::to_string(n) + ", count " + std::to_string(mask.count) + ", range " + std::to_string(begin) +
                     " … " + std::to_string(end));
        expect_apply(mask, {begin, end});
        if (HasFailure()) return;
      }
    }
  }
}

// Cutting the coordinates into ranges changes no bit of the result.
TEST(Apply, DoesNotDependOnTheCuts) {
  constexpr std::int64_t n = 1000;
  const Mask mask(masks_of(n)[3]);
  const auto packed = normal_vector(mask.count, 81);
  const AdamStep step{.learning_rate = 0.01F, .weight_decay = 0.1F};
  const auto run = [&](const std::vector<std::int64_t>& cuts) {
    const Guarded<float> theta(normal_vector(n, 82)), m(normal_vector(n, 83)), e(normal_vector(n, 84)), c(normal_vector(n, 85));
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const Range range{cuts[i], cuts[i + 1]};
      const auto part = [&](const Guarded<float>& x) { return x.span().subspan(range.begin, range.size()); };
      kernels.apply(range, part(theta), part(m), part(e), part(c), Guarded<float>(packed), mask.view(), step, Stream());
    }
    return std::vector{theta.values(), m.values(), e.values()};
  };
  EXPECT_EQ(run({0, n}), run({0, 1, 63, 64, 65, 200, 511, 512, 513, 900, n}));
}

TEST(MaskArguments, AreChecked) {
  const Stream stream;
  const Mask mask(Bits(100, true));
  const Buffer<float> hundred(100), other(99);
  const Buffer<double> sum(1);
  EXPECT_THROW(kernels.pack(other, mask.view(), hundred, stream), Error);
  EXPECT_THROW(kernels.pack(hundred, mask.view(), other, stream), Error);
  EXPECT_THROW(kernels.unpack(other, mask.view(), hundred, stream), Error);
  EXPECT_THROW(kernels.indices(mask.view(), Buffer<std::uint32_t>(99), stream), Error);
  EXPECT_THROW(kernels.scatter_add(Buffer<std::uint32_t>(3), other, 1, hundred, stream), Error);
  EXPECT_THROW(kernels.candidate(hundred, other, hundred, 0.9F, sum, stream), Error);
  EXPECT_THROW(kernels.recover_gradient(hundred, other, mask.view(), 1, -0.9F, 0.9F, sum, stream), Error);
  EXPECT_THROW(kernels.apply({0, 100}, hundred, hundred, other, hundred, hundred, mask.view(), {}, stream), Error);
  EXPECT_THROW(kernels.apply({0, 101}, hundred, hundred, hundred, hundred, hundred, mask.view(), {}, stream), Error);
  EXPECT_THROW(kernels.apply({-1, 99}, hundred, hundred, hundred, hundred, hundred, mask.view(), {}, stream), Error);
  EXPECT_THROW(kernels.apply({1, 100}, hundred, hundred, hundred, hundred, hundred, mask.view(), {}, stream), Error);
  EXPECT_THROW(kernels.pack({1, 100}, hundred, mask.view(), hundred, stream), Error);
  EXPECT_THROW(kernels.unpack({1, 101}, hundred, mask.view(), hundred, stream), Error);
  const auto apply = [&](const ApplyExtension& extension) {
    const Buffer<float> ninety(90);
    kernels.apply({10, 100}, ninety, ninety, ninety, ninety, hundred, mask.view(), {}, extension, stream);
  };
  EXPECT_THROW(apply({.ages = Buffer<std::uint16_t>(99)}), Error);
  EXPECT_THROW(apply({.ages = Buffer<std::uint16_t>(100), .backlog_cap = 0.5F}), Error);
  EXPECT_THROW(apply({.block_v = Buffer<float>(9), .block_size = 10, .block_begin = 9}), Error);
  EXPECT_THROW(apply({.block_v = Buffer<float>(9), .block_size = 10, .block_begin = 11}), Error);
  EXPECT_NO_THROW(apply({.block_v = Buffer<float>(9), .block_size = 10, .block_begin = 10}));
  EXPECT_THROW(kernels.count_common(Buffer<std::uint64_t>(1), Buffer<std::uint64_t>(2), Buffer<std::int64_t>(1), stream), Error);
}

}  // namespace
}  // namespace scape
