// The kernels of a device against those of the CPU: the same bits in every vector, sums to rounding and always the same; sizes
// around every boundary, vectors at any alignment with guards around them, and the values that top-k gets wrong most easily.
#include "support/kernel_suite.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "scape/rng.hpp"
#include "support/kernel_inputs.hpp"

namespace scape::testing {

namespace {

using Floats = std::vector<float>;
using Words = std::vector<std::uint64_t>;

constexpr std::array<std::int64_t, 13> sizes{0, 1, 3, 19, 57, 63, 64, 65, 511, 512, 513, 4097, 100'000};
using Offsets = std::array<std::int64_t, 4>;
constexpr std::array<Offsets, 3> alignments{Offsets{0, 0, 0, 0}, Offsets{3, 3, 3, 3}, Offsets{0, 1, 2, 3}};
constexpr float infinity = std::numeric_limits<float>::infinity();

// Values on a device, `offset` elements beyond an aligned address, with a guard on each side.
template <class T>
class Array {
 public:
  Array(const std::vector<T>& values, std::int64_t offset, const KernelBench& bench)
      : begin_(guard + offset), host_(values.size() + static_cast<std::size_t>(2 * guard + offset)), stream_(bench.stream) {
    std::memset(host_.data(), guard_byte, host_.size() * sizeof(T));
    std::copy(values.begin(), values.end(), host_.begin() + begin_);
    device_ = Buffer<T>(static_cast<std::int64_t>(host_.size()), bench.device);
    copy<T>(device_, Span<T>(host_), stream_);
    size_ = static_cast<std::int64_t>(values.size());
  }
  [[nodiscard]] Span<T> span() const { return device_.span().subspan(begin_, size_); }
  operator Span<T>() const { return span(); }        // NOLINT(google-explicit-constructor)
  operator Span<const T>() const { return span(); }  // NOLINT(google-explicit-constructor)

  [[nodiscard]] std::vector<T> read() {
    copy<T>(Span<T>(host_), device_, stream_);
    stream_.synchronize();
    std::vector<T> guards(host_.begin(), host_.begin() + begin_);
    guards.insert(guards.end(), host_.begin() + begin_ + size_, host_.end());
    const auto* bytes = reinterpret_cast<const unsigned char*>(guards.data());
    EXPECT_TRUE(std::all_of(bytes, bytes + guards.size() * sizeof(T), [](unsigned char byte) { return byte == guard_byte; }))
        << "written outside of a vector of " << size_;
    return {host_.begin() + begin_, host_.begin() + begin_ + size_};
  }
  [[nodiscard]] T value() { return read().front(); }

 private:
  static constexpr std::int64_t guard = 16;  // keeps offset 0 aligned for every T
  static constexpr unsigned char guard_byte = 0x5a;
  std::int64_t begin_;
  std::vector<T> host_;
  Stream stream_;
  Buffer<T> device_;
  std::int64_t size_ = 0;
};

template <class T>
Array<T> array(const KernelBench& bench, const std::vector<T>& values, std::int64_t offset = 0) {
  return Array<T>(values, offset, bench);
}
template <class T>
Array<T> result(const KernelBench& bench) {
  return Array<T>({T{77}}, 0, bench);
}

Floats squares(std::int64_t n, std::uint64_t seed) {
  Floats values = normal_vector(n, seed);
  for (float& value : values) value *= value;
  return values;
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// The same bits, or both not a number.
void expect_same(const std::vector<Floats>& expected, const std::vector<Floats>& got) {
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t v = 0; v < expected.size(); ++v) {
    ASSERT_EQ(expected[v].size(), got[v].size());
    for (std::size_t j = 0; j < expected[v].size(); ++j) {
      ASSERT_TRUE(same(expected[v][j], got[v][j]))
          << "vector " << v << ", element " << j << " of " << expected[v].size() << ": " << expected[v][j] << ", got " << got[v][j];
    }
  }
}

void expect_close(double expected, double got) {
  EXPECT_LE(std::abs(expected - got), 1e-13 * std::abs(expected)) << expected << ", got " << got;
}

// A mask with each bit set with the probability `density`, and its index.
struct HostMask {
  std::int64_t size = 0;
  std::int64_t count = 0;
  Words words;
  std::vector<std::int64_t> offsets;

  HostMask(std::int64_t n, double density, std::uint64_t seed) : size(n), words(static_cast<std::size_t>(mask_words(n))) {
    Rng rng(seed);
    for (std::int64_t j = 0; j < n; ++j) {
      if (static_cast<double>(rng.uniform()) < density) words[static_cast<std::size_t>(j / 64)] |= std::uint64_t{1} << (j % 64);
    }
    for (std::size_t w = 0; w < words.size(); ++w) {
      if (w % MaskView::block_words == 0) offsets.push_back(count);
      count += std::popcount(words[w]);
    }
  }
};
class DeviceMask {
 public:
  DeviceMask(const KernelBench& bench, const HostMask& mask)
      : words_(array(bench, mask.words)), offsets_(array(bench, mask.offsets)), view_{words_, offsets_, mask.size, mask.count} {}
  operator const MaskView&() const { return view_; }  // NOLINT(google-explicit-constructor)

 private:
  Array<std::uint64_t> words_;
  Array<std::int64_t> offsets_;
  MaskView view_;
};
constexpr std::array densities{0.0, 0.01, 0.5, 1.0};

template <class Body>
void for_each_case(Body body) {
  for (const std::int64_t n : sizes) {
    for (const Offsets& offsets : alignments) {
      SCOPED_TRACE("n = " + std::to_string(n) + ", offset of the second vector = " + std::to_string(offsets[1]));
      body(n, offsets);
    }
  }
}

}  // namespace

TEST_P(KernelSuite, AdamW) {
  for_each_case([&](std::int64_t n, const Offsets& at) {
    const auto run = [&](KernelBench& on) {
      auto theta = array(on, normal_vector(n, 1), at[0]);
      auto m = array(on, normal_vector(n, 2), at[1]);
      auto v = array(on, squares(n, 3), at[2]);
      auto g = array(on, normal_vector(n, 4), at[3]);
      on.update.adamw(theta, m, v, g, example_step, on.stream);
      return std::vector{theta.read(), m.read(), v.read(), g.read()};
    };
    expect_same(run(oracle()), run(tested()));
  });
}

TEST_P(KernelSuite, AdamS) {
  for_each_case([&](std::int64_t n, const Offsets& at) {
    const auto run = [&](KernelBench& on) {
      auto theta = array(on, normal_vector(n, 1), at[0]);
      auto m = array(on, normal_vector(n, 2), at[1]);
      auto g = array(on, normal_vector(n, 4), at[2]);
      on.update.adams(theta, m, g, example_step, on.stream);
      return std::vector{theta.read(), m.read(), g.read()};
    };
    expect_same(run(oracle()), run(tested()));
  });
}

TEST_P(KernelSuite, AdamSDirection) {
  for_each_case([&](std::int64_t n, const Offsets& at) {
    const auto run = [&](KernelBench& on) {
      auto g = array(on, normal_vector(n, 1), at[0]);
      auto c = array(on, normal_vector(n, 2), at[1]);
      auto m = array(on, normal_vector(n, 4), at[2]);
      on.update.adams_direction(g, c, m, example_step, on.stream);
      return std::vector{g.read(), c.read(), m.read()};
    };
    expect_same(run(oracle()), run(tested()));
  });
}

TEST_P(KernelSuite, DivideScaleAndAdd) {
  for_each_case([&](std::int64_t n, const Offsets& at) {
    const auto run = [&](KernelBench& on) {
      auto y = array(on, normal_vector(n, 1), at[0]);
      auto x = array(on, normal_vector(n, 2), at[1]);
      on.update.add(y, x, 0.3F, on.stream);
      on.update.divide(x, 3, on.stream);
      on.update.scale(y, 0.7F, on.stream);
      return std::vector{y.read(), x.read()};
    };
    expect_same(run(oracle()), run(tested()));
  });
}

TEST_P(KernelSuite, SumOfSquares) {
  for_each_case([&](std::int64_t n, const Offsets& at) {
    const auto run = [&](KernelBench& on, std::int64_t offset) {
      auto sum = result<double>(on);
      on.update.sum_of_squares(array(on, normal_vector(n, 1), offset), sum, on.stream);
      return sum.value();
    };
    expect_close(run(oracle(), 0), run(tested(), at[1]));
    EXPECT_EQ(run(tested(), 0), run(tested(), at[1])) << "the order of a sum must not depend on where the vector lies";
  });
}

TEST_P(KernelSuite, BlockSquaresAndNarrow) {
  for (const std::int64_t block : {1, 3, 57, 300, 4097}) {
    for (const std::int64_t n : {0, 1, 7, 300}) {
      const auto run = [&](KernelBench& on) {
        auto squares = array(on, std::vector<double>(static_cast<std::size_t>(n), -1));
        auto means = array(on, normal_vector(n, 2), 1);
        on.update.block_squares(array(on, normal_vector(n * block, 1), 3), block, squares, on.stream);
        on.update.narrow(squares, 1.0 / 3, means, on.stream);
        return std::pair{squares.read(), means.read()};
      };
      const auto [expected, expected_means] = run(oracle());
      const auto [got, means] = run(tested());
      for (std::size_t b = 0; b < expected.size(); ++b) {
        expect_close(expected[b], got[b]);
        EXPECT_EQ(means[b], static_cast<float>(got[b] * (1.0 / 3)));
      }
      if (block > 1) continue;
      const Floats x = normal_vector(n, 1);
      for (std::size_t b = 0; b < x.size(); ++b) EXPECT_EQ(got[b], static_cast<double>(x[b]) * x[b]);
      EXPECT_EQ(expected_means, means);
    }
  }
}

TEST_P(KernelSuite, SumsThatAreNotFiniteAreFlagged) {
  for (const auto& [value, flag] :
       {std::pair{3e38F, 0.0F}, {1e-45F, 0.0F}, {infinity, infinity}, {-infinity, infinity}, {NAN, infinity}}) {
    Floats x = normal_vector(4097, 1);
    x[4096] = value;
    auto sum = result<double>(tested());
    auto flagged = result<float>(tested());
    tested().update.sum_of_squares(array(tested(), x), sum, tested().stream);
    tested().update.flag_not_finite(sum, flagged, tested().stream);
    EXPECT_EQ(flagged.value(), flag) << value;
    tested().update.flag_not_finite(array(tested(), std::vector{1.0, 1e300, static_cast<double>(value), 2.0}), flagged,
                                    tested().stream);
    EXPECT_EQ(flagged.value(), flag) << value << " among others";
  }
}

TEST_P(KernelSuite, TopK) {
  const auto pick = [](std::int64_t n, auto make) {
    Rng rng(static_cast<std::uint64_t>(n));
    Floats x(static_cast<std::size_t>(n));
    for (float& value : x) value = make(rng);
    return x;
  };
  const auto check = [&](const std::string& kind, const Floats& x, std::int64_t k, std::int64_t first) {
    SCOPED_TRACE(kind + ", n = " + std::to_string(x.size()) + ", k = " + std::to_string(k) + ", first = " + std::to_string(first));
    const auto n = static_cast<std::int64_t>(x.size());
    const Words before = HostMask(first + n + 100, 0.1, 5).words;
    std::vector<std::int64_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return std::abs(x[static_cast<std::size_t>(a)]) > std::abs(x[static_cast<std::size_t>(b)]);
    });
    Words sorted = before;
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t j = first + order[static_cast<std::size_t>(i)];
      sorted[static_cast<std::size_t>(j / 64)] |= std::uint64_t{1} << (j % 64);
    }
    for (KernelBench* on : {&oracle(), &tested()}) {
      auto words = array(*on, before);
      on->sparse.top_k(array(*on, x, 1), k, words, first, on->stream);
      ASSERT_EQ(words.read(), sorted) << to_string(on->device);
    }
  };
  const auto kinds = [&](std::int64_t n) {
    return std::vector<std::pair<std::string, Floats>>{
        {"normal", normal_vector(n, 1)},
        {"all equal", Floats(static_cast<std::size_t>(n), -2.5F)},
        {"zeros", pick(n, [](Rng& rng) { return rng.below(2) == 0 ? 0.0F : -0.0F; })},
        {"few values", pick(n, [](Rng& rng) { return (static_cast<float>(rng.below(5)) - 2) * 0.5F; })},
        {"neighbouring floats",
         pick(n, [](Rng& rng) { return std::bit_cast<float>(0x3f800000U + static_cast<std::uint32_t>(rng.below(3))); })},
        {"subnormals", pick(n, [](Rng& rng) { return std::bit_cast<float>(static_cast<std::uint32_t>(rng.below(1 << 22))); })},
        {"log-normal", pick(n, [](Rng& rng) { return std::exp(rng.normal() * 23) * (rng.below(2) == 0 ? 1.0F : -1.0F); })},
        {"infinities",
         pick(n, [](Rng& rng) { return rng.below(3) == 0 ? (rng.below(2) == 0 ? infinity : -infinity) : rng.normal(); })}};
  };
  for (const std::int64_t n : {0, 1, 19}) {
    check("none", normal_vector(n, 1), 0, 5);
    check("all", normal_vector(n, 1), n, 5);
  }
  check("ties that end with the run of a block", Floats(100'000, 1.0F), 20 * 1024, 0);
  int turn = 0;
  for (const std::int64_t n : {2, 63, 65, 1023, 4097, 100'000}) {
    for (const auto& [kind, x] : kinds(n)) {
      for (const std::int64_t k : n < 5000 ? std::vector{std::int64_t{1}, n / 3 + 1, n - 1} : std::vector{n / 3}) {
        check(kind, x, k, std::array{0, 5, 127, 63}[static_cast<std::size_t>(turn++ % 4)]);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(KernelSuite, SetRange) {
  for (const Range range : {Range{0, 0}, {0, 64}, {0, 1}, {63, 65}, {5, 9}, {5, 64}, {64, 128}, {100, 70'000}, {70'399, 70'400}}) {
    const auto run = [&](KernelBench& on) {
      auto words = array(on, HostMask(70'400, 0.1, 5).words);
      on.sparse.set_range(words, range, on.stream);
      return words.read();
    };
    EXPECT_EQ(run(oracle()), run(tested())) << range.begin << " … " << range.end;
  }
}

TEST_P(KernelSuite, IndexAndCountOfMasks) {
  for (const std::int64_t n : {0, 1, 64, 65, 511, 512, 513, 4097, 100'000, 1'000'000}) {
    for (const double density : densities) {
      const HostMask mask(n, density, 1);
      auto words = array(tested(), mask.words, 1);
      auto offsets = array(tested(), std::vector<std::int64_t>(mask.offsets.size(), -1));
      tested().sparse.index_mask(words, offsets, tested().stream);
      ASSERT_EQ(offsets.read(), mask.offsets) << n << " " << density;

      const HostMask other(n, 0.5, 2);
      const auto run = [&](KernelBench& on) {
        auto count = result<std::int64_t>(on);
        on.sparse.count_common(array(on, mask.words), array(on, other.words), count, on.stream);
        return count.value();
      };
      ASSERT_EQ(run(oracle()), run(tested())) << n << " " << density;
    }
  }
}

TEST_P(KernelSuite, PackUnpackAndIndices) {
  for_each_case([&](std::int64_t n, const Offsets& at) {
    for (const double density : densities) {
      const HostMask mask(n, density, 1);
      const auto run = [&](KernelBench& on) {
        const DeviceMask view(on, mask);
        auto x = array(on, normal_vector(n, 1), at[0]);
        auto packed = array(on, Floats(static_cast<std::size_t>(mask.count)), at[1]);
        auto other = array(on, normal_vector(n, 2), at[2]);
        auto places = array(on, std::vector<std::uint32_t>(static_cast<std::size_t>(mask.count)), at[3]);
        on.sparse.pack(x, view, packed, on.stream);
        on.sparse.unpack(packed, view, other, on.stream);
        on.sparse.indices(view, places, on.stream);
        on.sparse.scatter_add(places, packed, 3, x, on.stream);
        const std::vector<std::uint32_t> indices = places.read();
        const Range range{n / 3, n - n / 5};
        auto part = array(on, normal_vector(mask.count, 3), at[2]);
        auto piece = array(on, normal_vector(range.size(), 4), at[0]);
        on.sparse.pack(range, piece, view, part, on.stream);
        on.sparse.unpack(range, packed, view, piece, on.stream);
        auto cleared = array(on, normal_vector(range.size(), 4), at[1]);
        on.sparse.unpack(range, {}, view, cleared, on.stream);
        return std::pair{std::vector{packed.read(), other.read(), x.read(), part.read(), piece.read(), cleared.read()}, indices};
      };
      const auto [expected, expected_indices] = run(oracle());
      const auto [got, indices] = run(tested());
      expect_same(expected, got);
      EXPECT_EQ(expected_indices, indices);
    }
  });
}

TEST_P(KernelSuite, Candidate) {
  for_each_case([&](std::int64_t n, const Offsets& at) {
    const auto run = [&](KernelBench& on, const Offsets& offsets, bool with_m) {
      auto g = array(on, normal_vector(n, 1), offsets[0]);
      auto m = array(on, normal_vector(n, 2), offsets[1]);
      auto e = array(on, normal_vector(n, 3), offsets[2]);
      auto sum = result<double>(on);
      on.sparse.candidate(g, with_m ? m : Span<float>(), e, 0.9F, sum, on.stream);
      return std::tuple{std::vector{g.read(), m.read(), e.read()}, sum.value()};
    };
    for (const bool with_m : {true, false}) {
      const auto [expected, expected_sum] = run(oracle(), at, with_m);
      const auto [got, sum] = run(tested(), at, with_m);
      expect_same(expected, got);
      expect_close(expected_sum, sum);
      EXPECT_EQ(sum, std::get<1>(run(tested(), alignments[0], with_m)));
    }
  });
}

TEST_P(KernelSuite, RecoverGradient) {
  for_each_case([&](std::int64_t n, const Offsets& at) {
    for (const double density : densities) {
      const HostMask mask(n, density, 1);
      const auto run = [&](KernelBench& on) {
        const DeviceMask view(on, mask);
        auto packed = array(on, normal_vector(mask.count, 1), at[0]);
        auto m = array(on, normal_vector(n, 2), at[1]);
        auto sum = result<double>(on);
        on.sparse.recover_gradient(packed, m, view, 3, -0.9F, 0.9F, sum, on.stream);
        return std::pair{std::vector{packed.read(), m.read()}, sum.value()};
      };
      const auto [expected, expected_sum] = run(oracle());
      const auto [got, sum] = run(tested());
      expect_same(expected, got);
      expect_close(expected_sum, sum);
    }
  });
}

TEST_P(KernelSuite, Apply) {
  for_each_case([&](std::int64_t n, const Offsets& at) {
    for (const double density : densities) {
      const HostMask mask(n, density, 1);
      for (const Range range : {Range{0, n}, Range{n / 3, n - n / 5}, Range{n / 2, n / 2}}) {
        const auto run = [&](KernelBench& on) {
          const DeviceMask view(on, mask);
          auto theta = array(on, normal_vector(range.size(), 1), at[0]);
          auto m = array(on, normal_vector(range.size(), 2), at[1]);
          auto e = array(on, normal_vector(range.size(), 3), at[2]);
          auto c = array(on, normal_vector(range.size(), 4), at[3]);
          auto packed = array(on, normal_vector(mask.count, 5), at[1]);
          on.sparse.apply(range, theta, m, e, c, packed, view, example_step, on.stream);
          return std::vector{theta.read(), m.read(), e.read(), c.read(), packed.read()};
        };
        expect_same(run(oracle()), run(tested()));
      }
    }
  });
}

TEST_P(KernelSuite, ApplyWithExtensions) {
  for_each_case([&](std::int64_t n, const Offsets& at) {
    std::vector<std::uint16_t> random_ages;
    Rng rng(7);
    for (std::int64_t j = 0; j < n; ++j)
      random_ages.push_back(static_cast<std::uint16_t>(rng.below(5) == 0 ? 65535 : 1 + rng.below(9)));
    for (const double density : densities) {
      const HostMask mask(n, density, 1);
      for (const Range range : {Range{0, n}, Range{n / 3, n - n / 5}}) {
        for (const int kind : {0, 1, 2}) {  // linear, √, block
          const auto run = [&](KernelBench& on) {
            const DeviceMask view(on, mask);
            auto theta = array(on, normal_vector(range.size(), 1), at[0]);
            auto m = array(on, normal_vector(range.size(), 2), at[1]);
            auto e = array(on, normal_vector(range.size(), 3), at[2]);
            auto c = array(on, normal_vector(range.size(), 4), at[3]);
            auto packed = array(on, normal_vector(mask.count, 5), at[1]);
            auto ages = array(on, random_ages, at[1]);
            auto v = array(on, squares(n / 7 + 2, 6), at[1]);
            ApplyExtension extension;
            if (kind < 2) extension = {.ages = ages, .backlog_cap = 4.5F, .backlog_root = kind == 1};
            if (kind == 2) extension = {.block_v = v, .block_size = 7, .block_begin = range.begin - 3};
            on.sparse.apply(range, theta, m, e, c, packed, view, example_step, extension, on.stream);
            return std::pair{std::vector{theta.read(), m.read(), e.read(), c.read(), packed.read()}, ages.read()};
          };
          const auto [expected, expected_ages] = run(oracle());
          const auto [got, ages] = run(tested());
          expect_same(expected, got);
          EXPECT_EQ(expected_ages, ages);
        }
      }
    }
  });
}

TEST_P(KernelSuite, QuantizedRecords) {
  const auto check = [&](std::int64_t n, const QuantFormat& format, std::int64_t offset) {
    SCOPED_TRACE(std::to_string(n) + " elements, " + std::to_string(format.bits) + " bits, blocks of " +
                 std::to_string(format.block));
    Floats x = normal_vector(n, 1);
    const auto set = [&](std::int64_t begin, std::int64_t end, float value) {
      for (std::int64_t j = begin; j < std::min(end, n); ++j) x[static_cast<std::size_t>(j)] = value;
    };
    set(0, 8, -0.0F);
    set(40, 41, infinity);
    set(48, 50, 3.4028235e38F);
    set(56, 64, 1e-45F);
    set(64, 65, 1e-38F);
    const auto run = [&](KernelBench& on) {
      auto input = array(on, x, offset);
      auto records = array(on, std::vector<std::uint8_t>(static_cast<std::size_t>(quant_bytes(n, format)), 0xee));
      auto error = array(on, normal_vector(n, 2), offset);
      auto back = array(on, normal_vector(n, 3), offset);
      auto sum = array(on, normal_vector(n, 4), offset);
      on.quant.quantize(input, format, {1, 2, (std::uint64_t{1} << 32) - 2}, records, error, on.stream);
      on.quant.dequantize(records, format, back, on.stream);
      on.quant.dequantize_add(records, format, sum, on.stream);
      const std::vector<std::uint8_t> bytes = records.read();
      on.quant.quantize(input, format, {1, 2, 3}, records, input, on.stream);  // in place
      return std::pair{std::vector{error.read(), back.read(), sum.read(), input.read()}, bytes};
    };
    const auto [expected, expected_bytes] = run(oracle());
    const auto [got, bytes] = run(tested());
    EXPECT_EQ(expected_bytes, bytes);
    expect_same(expected, got);
  };
  for (const QuantCode code : {QuantCode::bf16, QuantCode::e5m2}) {
    for (const std::int64_t n : {0, 1, 7, 255, 257, 4097, 50'000}) {
      for (const int block : {8, 256, 1000}) check(n, {8, block, false, code}, n % 2);
    }
  }
  for (const int bits : {8, 4}) {
    for (const bool stochastic : {false, true}) {
      for (const std::int64_t n : {0, 1, 7, 255, 257, 4097}) {
        for (const int block : {8, 256, 1000}) check(n, {bits, block, stochastic}, n % 2);
      }
      check(100'000, {bits, 256, stochastic}, 0);
      if (HasFailure()) return;
    }
  }
}

}  // namespace scape::testing
