// DeMo against its formulas in double with all ranks played at once, and its bytes.
#include "demo.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "rig.hpp"

namespace scape::testing {
namespace {

using Vector = std::vector<double>;

// Chunks of at most 16 within rows of 20, and a vector of 7.
ParameterLayout rows_of_twenty() {
  ParameterLayout layout;
  layout.add("w", {6, 20}, TensorRole::matrix);
  layout.add("b", {7}, TensorRole::vector);
  return layout;
}
std::vector<Range> chunks() {
  std::vector<Range> all;
  for (std::int64_t row = 0; row < 6; ++row) {
    all.push_back({20 * row, 20 * row + 16});
    all.push_back({20 * row + 16, 20 * row + 20});
  }
  all.push_back({120, 127});
  return all;
}

double basis(std::int64_t n, std::int64_t f, std::int64_t i) {
  return std::sqrt((f == 0 ? 1.0 : 2.0) / static_cast<double>(n)) *
         std::cos(std::numbers::pi * (static_cast<double>(i) + 0.5) * static_cast<double>(f) / static_cast<double>(n));
}

// Tᵀ top(T m) of each chunk.
Vector strongest(const Vector& m, std::size_t k) {
  Vector result(m.size());
  for (const Range chunk : chunks()) {
    const std::int64_t n = chunk.size();
    Vector y(static_cast<std::size_t>(n));
    for (std::int64_t f = 0; f < n; ++f) {
      for (std::int64_t i = 0; i < n; ++i)
        y[static_cast<std::size_t>(f)] += basis(n, f, i) * m[static_cast<std::size_t>(chunk.begin + i)];
    }
    std::vector<std::size_t> order(y.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return std::abs(y[a]) > std::abs(y[b]); });
    order.resize(std::min(k, order.size()));
    for (const std::size_t f : order) {
      for (std::int64_t i = 0; i < n; ++i)
        result[static_cast<std::size_t>(chunk.begin + i)] += y[f] * basis(n, static_cast<std::int64_t>(f), i);
    }
  }
  return result;
}

TEST(Demo, EqualsTheOracle) {
  constexpr double rate = 0.01;
  CommonOptions common;
  common.clip_norm = 0;
  for (const std::int64_t k : {1, 3, 16}) {
    Rig rig(rows_of_twenty(), MPI_COMM_WORLD);
    Demo method({16, k, 0.9}, common, rig.method_context(1));
    const auto ranks = static_cast<std::size_t>(rig.comm->size());
    const auto size = static_cast<std::size_t>(rig.layout.size());
    Vector theta(size);
    std::copy_n(rig.params.data(), size, theta.begin());
    std::vector<Vector> momentum(ranks, Vector(size));
    for (std::int64_t t = 1; t <= 100; ++t) {
      Vector sum(size);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        Vector& m = momentum[rank];
        for (std::size_t j = 0; j < size; ++j)
          m[j] = 0.9 * m[j] + normal_at(3, t, static_cast<int>(rank), static_cast<std::int64_t>(j));
        const Vector sent = strongest(m, static_cast<std::size_t>(k));
        for (std::size_t j = 0; j < size; ++j) {
          m[j] -= sent[j];
          sum[j] += sent[j];
        }
      }
      EXPECT_TRUE(rig.step(method, t, rate, [&](std::int64_t j) { return normal_at(3, t, rig.comm->rank(), j); }).applied);
      for (std::size_t j = 0; j < size; ++j) {
        const double decay = j < 120 ? common.weight_decay : 0;
        const double sign = sum[j] > 0 ? 1 : -1;
        theta[j] -= rate * (sign + decay * theta[j]);
        EXPECT_NEAR(rig.params.data()[j], theta[j], 1e-5) << "coordinate " << j << ", step " << t << ", sum " << sum[j];
      }
      const auto* kept = reinterpret_cast<const float*>(method.state()[0].bytes.data());
      const Vector& mine = momentum[static_cast<std::size_t>(rig.comm->rank())];
      for (std::size_t j = 0; j < size; ++j) EXPECT_NEAR(kept[j], mine[j], 1e-4);
    }
  }
}

TEST(Demo, BytesOfAKnownCase) {
  const ParameterLayout layout = rows_of_twenty();
  // 13 chunks; of those with four elements only four coefficients: 3 · 6 · 2 + 3 = 39 and 8 · 6 + 4 · 6 + 7 = 79.
  EXPECT_DOUBLE_EQ(Demo({16, 3, 0.9}, {}, {layout, cpu_device, 0, 4, 1, 1}).expected_wire_bytes(1), 3 * (4 * 39 + 40));
  EXPECT_DOUBLE_EQ(Demo({16, 8, 0.9}, {}, {layout, cpu_device, 0, 4, 1, 1}).expected_wire_bytes(1), 3 * (4 * 79 + 80));
}

}  // namespace
}  // namespace scape::testing
