// 1-bit Adam against an oracle in plain loops that plays all ranks at once, and its bytes.
#include "onebit_adam.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "rig.hpp"
#include "scape/scape.hpp"

namespace scape::testing {
namespace {

using Vector = std::vector<float>;
constexpr std::int64_t size = 200;
constexpr std::int64_t total_steps = 100;
constexpr std::int64_t warmup_steps = 20;  // a fifth
constexpr double learning_rate = 0.01;

// Multiples of 1/2, so that sums are exact in any order; none for some coordinates.
float gradient(std::int64_t t, int rank, std::int64_t j) {
  return j % 10 == 3 ? 0.0F : coarse_normal_at(3, t, rank, j);
}

// Pieces: parts of tensors in shards.
std::vector<Range> pieces_of(const ParameterLayout& layout, int ranks) {
  std::vector<Range> pieces;
  for (int r = 0; r < ranks; ++r) {
    for (const ParameterTensor& tensor : layout.tensors()) {
      const Range part = intersect(tensor.range, owned_range(layout.size(), r, ranks));
      if (!part.empty()) pieces.push_back(part);
    }
  }
  return pieces;
}

Vector signs(const Vector& x, const Vector& v, const std::vector<Range>& pieces) {
  Vector result(x.size(), 0.0F);
  for (const Range piece : pieces) {
    double squares = 0;
    double n = 0;
    for (auto j = static_cast<std::size_t>(piece.begin); j < static_cast<std::size_t>(piece.end); ++j) {
      if (v[j] > 0) squares += static_cast<double>(x[j]) * x[j];
      if (v[j] > 0) n += 1;
    }
    const auto scale = static_cast<float>(std::sqrt(squares / n));
    for (auto j = static_cast<std::size_t>(piece.begin); j < static_cast<std::size_t>(piece.end); ++j) {
      if (v[j] > 0) result[j] = std::copysign(scale, x[j] == 0 ? 1.0F : x[j]);
    }
  }
  return result;
}

TEST(OneBitAdam, EqualsTheOracle) {
  CommonOptions common;
  common.clip_norm = 0;
  Rig rig(odd_layout(size), MPI_COMM_WORLD);
  OneBitAdam method({0.2}, common, rig.method_context(total_steps));
  const auto ranks = static_cast<std::size_t>(rig.comm->size());
  const std::vector<Range> pieces = pieces_of(rig.layout, rig.comm->size());
  const auto b1 = static_cast<float>(common.beta1);
  const auto b2 = static_cast<float>(common.beta2);
  Vector theta = rig.values();
  Vector m(size), v(size), shard_error(size);
  std::vector<Vector> error(ranks, Vector(size));
  for (std::int64_t t = 1; t <= total_steps; ++t) {
    Vector mean(size, 0.0F);
    if (t <= warmup_steps) {
      for (std::size_t j = 0; j < theta.size(); ++j) {
        for (std::size_t rank = 0; rank < ranks; ++rank)
          mean[j] += gradient(t, static_cast<int>(rank), static_cast<std::int64_t>(j));
        mean[j] /= static_cast<float>(ranks);
        m[j] = b1 * m[j] + (1 - b1) * mean[j];
        v[j] = b2 * v[j] + (1 - b2) * (mean[j] * mean[j]);
      }
    } else {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        Vector c(size);
        for (std::size_t j = 0; j < c.size(); ++j) {
          c[j] = b1 * m[j] + (1 - b1) * gradient(t, static_cast<int>(rank), static_cast<std::int64_t>(j)) + error[rank][j];
        }
        const Vector sent = signs(c, v, pieces);
        for (std::size_t j = 0; j < c.size(); ++j) {
          mean[j] += sent[j];
          error[rank][j] = v[j] > 0 ? c[j] - sent[j] : 0;
        }
      }
      for (std::size_t j = 0; j < mean.size(); ++j) mean[j] = mean[j] / static_cast<float>(ranks) + shard_error[j];
      m = signs(mean, v, pieces);
      for (std::size_t j = 0; j < mean.size(); ++j) shard_error[j] = v[j] > 0 ? mean[j] - m[j] : 0;
    }
    const double m_scale = 1 / (1 - std::pow(common.beta1, t));
    const double v_scale = 1 / (1 - std::pow(common.beta2, std::min(t, warmup_steps)));
    for (std::size_t j = 0; j < theta.size(); ++j) {
      const bool matrix = static_cast<std::int64_t>(j) < rig.layout.runs()[0].range.end;
      const double decay = matrix ? common.weight_decay : 0;
      theta[j] = static_cast<float>(
          theta[j] - learning_rate * (m_scale * m[j] / (std::sqrt(v_scale * v[j]) + common.epsilon) + decay * theta[j]));
    }
    EXPECT_TRUE(rig.step(method, t, learning_rate, [&](std::int64_t j) { return gradient(t, rig.comm->rank(), j); }).applied);
    EXPECT_EQ(std::memcmp(method.state()[0].bytes.data(), m.data(), m.size() * sizeof(float)), 0) << "m, step " << t;
    const Vector& mine = error[static_cast<std::size_t>(rig.comm->rank())];
    EXPECT_EQ(std::memcmp(method.state()[2].bytes.data(), mine.data(), mine.size() * sizeof(float)), 0) << "e, step " << t;
    for (std::size_t j = 0; j < theta.size(); ++j)
      EXPECT_NEAR(rig.params.data()[j], theta[j], 2e-6 * static_cast<double>(t)) << "coordinate " << j << ", step " << t;
  }
}

TEST(OneBitAdam, BytesOfAKnownCase) {
  ParameterLayout layout;
  layout.add("w", {16, 15}, TensorRole::matrix);
  layout.add("b", {16}, TensorRole::vector);
  // 256 coordinates, four shards of 64; the last one holds 48 of the matrix and the vector.
  const OneBitAdam method({0.5}, {}, {layout, cpu_device, 0, 4, 10, 1});
  EXPECT_DOUBLE_EQ(method.expected_wire_bytes(5), 1.5 * 4 * 256);
  EXPECT_DOUBLE_EQ(method.expected_wire_bytes(6), 1.5 * (3 * (4 + 8) + (4 + 6) + (4 + 2)));
}

}  // namespace
}  // namespace scape::testing
