// The quantized mean against an oracle in plain loops that plays all ranks at once, and what its parameters promise.
#include "quantized.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "rig.hpp"

namespace scape::testing {
namespace {

using Vector = std::vector<float>;
constexpr std::int64_t size = 1000;
constexpr std::int64_t total_steps = 100;

float gradient(std::int64_t t, int rank, std::int64_t j) {
  return normal_at(3, t, rank, j) * std::pow(10.0F, static_cast<float>(j % 7) - 3);
}

// The formulas of quantized.hpp and kernels.hpp, one element after the other.
class Oracle {
 public:
  Oracle(const Quantized::Options& options, int ranks, std::uint64_t seed)
      : options_(options),
        ranks_(ranks),
        seed_(seed),
        residual_(static_cast<std::size_t>(ranks), Vector(size)),
        mean_residual_(size) {}

  Vector reduce(std::int64_t t) {
    Vector sum(size, 0.0F);
    for (int rank = 0; rank < ranks_; ++rank) {
      Vector& kept = residual_[static_cast<std::size_t>(rank)];
      Vector a(size);
      for (std::int64_t j = 0; j < size; ++j) at(a, j) = gradient(t, rank, j) + at(kept, j);
      const Vector sent = coded(a, [&](std::int64_t j) { return uniform(t, 2 * static_cast<std::uint64_t>(rank), j); });
      for (std::int64_t j = 0; j < size; ++j) {
        at(sum, j) += at(sent, j);
        if (options_.error_feedback) at(kept, j) = at(a, j) - at(sent, j);
      }
    }
    for (std::int64_t j = 0; j < size; ++j) at(sum, j) = at(sum, j) / static_cast<float>(ranks_) + at(mean_residual_, j);
    const Vector result = coded(sum, [&](std::int64_t j) { return uniform(t, 2 * static_cast<std::uint64_t>(owner(j)) + 1, j); });
    for (std::int64_t j = 0; options_.error_feedback && j < size; ++j) at(mean_residual_, j) = at(sum, j) - at(result, j);
    return result;
  }

 private:
  static float& at(Vector& v, std::int64_t j) { return v[static_cast<std::size_t>(j)]; }
  static float at(const Vector& v, std::int64_t j) { return v[static_cast<std::size_t>(j)]; }
  // Blocks are dealt out evenly, the first ranks get the rest.
  [[nodiscard]] int owner(std::int64_t j) const {
    const std::int64_t blocks = (size + options_.block - 1) / options_.block;
    std::int64_t block = j / options_.block;
    for (int rank = 0;; ++rank) {
      block -= blocks / ranks_ + (rank < blocks % ranks_ ? 1 : 0);
      if (block < 0) return rank;
    }
  }
  [[nodiscard]] float uniform(std::int64_t t, std::uint64_t stream, std::int64_t j) const {
    const auto words =
        philox(seed_, stream, static_cast<std::uint64_t>(t) * (std::uint64_t{1} << 32) + static_cast<std::uint64_t>(j / 4));
    return static_cast<float>(words[static_cast<std::size_t>(j % 4)] / 256) / 16777216.0F;
  }
  template <class Uniform>
  [[nodiscard]] Vector coded(const Vector& x, Uniform uniform_at) const {
    Vector result(x.size());
    const float q = options_.bits == 8 ? 127 : 7;
    for (std::int64_t begin = 0; begin < size; begin += options_.block) {
      const std::int64_t end = std::min<std::int64_t>(size, begin + options_.block);
      float largest = 0;
      for (std::int64_t j = begin; j < end; ++j) largest = std::max(largest, std::abs(at(x, j)));
      const float scale = largest / q;
      for (std::int64_t j = begin; j < end; ++j) {
        const float ratio = at(x, j) / scale;
        const float code =
            options_.rounding == Quantized::Rounding::nearest ? std::nearbyint(ratio) : std::floor(ratio + uniform_at(j));
        at(result, j) = std::min(q, std::max(-q, code)) * scale;
      }
    }
    return result;
  }

  Quantized::Options options_;
  int ranks_;
  std::uint64_t seed_;
  std::vector<Vector> residual_;
  Vector mean_residual_;
};

TEST(Quantized, EqualsTheOracleBitForBit) {
  for (const int bits : {8, 4}) {
    for (const int block : {32, 256}) {
      for (const auto rounding : {Quantized::Rounding::nearest, Quantized::Rounding::stochastic}) {
        for (const bool error_feedback : {false, true}) {
          SCOPED_TRACE(::testing::Message() << bits << " bits, block " << block << ", rounding " << static_cast<int>(rounding)
                                            << ", feedback " << error_feedback);
          const Quantized::Options options{bits, block, rounding, error_feedback};
          Rig rig(odd_layout(size), MPI_COMM_WORLD);
          Quantized sync(options, {}, rig.method_context(total_steps, 77));
          Oracle oracle(options, rig.comm->size(), 77);
          const std::int64_t steps = error_feedback && block == 256 ? total_steps : 10;  // without feedback each is on its own
          for (std::int64_t t = 1; t <= steps; ++t) {
            Rig::fill(rig.grads, [&](std::int64_t j) { return gradient(t, rig.comm->rank(), j); });
            EXPECT_TRUE(sync.reduce(rig.context(t, 0)));
            const Vector expected = oracle.reduce(t);
            for (std::size_t j = 0; j < expected.size(); ++j)
              EXPECT_EQ(rig.grads.data()[j], expected[j]) << "coordinate " << j << ", step " << t;
          }
        }
      }
    }
  }
}

// What is missing from the sum of the results is bounded by the residuals: it does not grow with the number of steps.
TEST(Quantized, ErrorFeedbackReturnsWhatRoundingLost) {
  const auto lost_after = [](bool error_feedback, std::int64_t steps) {
    Rig rig(odd_layout(size), MPI_COMM_WORLD);
    Quantized sync({4, 256, Quantized::Rounding::nearest, error_feedback}, {}, rig.method_context(steps));
    std::vector<double> missing(static_cast<std::size_t>(size), 0.0);
    for (std::int64_t t = 1; t <= steps; ++t) {
      for (std::int64_t j = 0; j < size; ++j) {
        for (int rank = 0; rank < rig.comm->size(); ++rank)
          missing[static_cast<std::size_t>(j)] += gradient(1, rank, j) / static_cast<double>(rig.comm->size());
      }
      Rig::fill(rig.grads, [&](std::int64_t j) { return gradient(1, rig.comm->rank(), j); });
      EXPECT_TRUE(sync.reduce(rig.context(t, 0)));
      for (std::int64_t j = 0; j < size; ++j) missing[static_cast<std::size_t>(j)] -= rig.grads.data()[j];
    }
    double squares = 0;
    for (const double m : missing) squares += m * m;
    return std::sqrt(squares);
  };
  EXPECT_GT(lost_after(false, 40), 9 * lost_after(false, 4));
  EXPECT_LT(lost_after(true, 40), 2 * lost_after(true, 4));
}

TEST(Quantized, BytesOfAKnownCase) {
  const ParameterLayout layout = odd_layout(1000);  // four blocks of 256
  const Quantized eight({8, 256}, {}, {layout, cpu_device, 0, 4, 1, 1});
  const Quantized four({4, 256}, {}, {layout, cpu_device, 0, 4, 1, 1});
  EXPECT_DOUBLE_EQ(eight.expected_wire_bytes(1), 2 * 0.75 * 4 * (4 + 256));
  EXPECT_DOUBLE_EQ(four.expected_wire_bytes(1), 2 * 0.75 * 4 * (4 + 128));
}

}  // namespace
}  // namespace scape::testing
