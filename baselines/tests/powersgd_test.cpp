// PowerSGD: exact where a matrix has the rank asked for, an oracle in double beside it, and its bytes.
#include "powersgd.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "rig.hpp"

namespace scape::testing {
namespace {

constexpr std::int64_t rows = 24;
constexpr std::int64_t columns = 15;

ParameterLayout matrix_and_vector() {
  ParameterLayout layout;
  layout.add("w", {rows, 3, columns / 3}, TensorRole::matrix);  // a matrix of its first dimension
  layout.add("b", {7}, TensorRole::vector);
  return layout;
}

float low_rank(int rank, std::int64_t j, std::int64_t terms) {
  float sum = 0;
  for (std::int64_t k = 0; k < terms; ++k) sum += normal_at(3, k, 0, j / columns) * normal_at(4, k, rank, j % columns);
  return sum;
}

// The mean over the ranks of matrices that share r left factors has rank r: one power iteration finds it exactly.
TEST(PowerSgd, AMatrixOfTheRankIsExactInOneStep) {
  for (const std::int64_t r : {1, 2, 4}) {
    Rig rig(matrix_and_vector(), MPI_COMM_WORLD);
    PowerSgd sync({r, true, true}, {}, rig.method_context(1));
    Rig::fill(rig.grads, [&](std::int64_t j) { return low_rank(rig.comm->rank(), j, r); });
    EXPECT_TRUE(sync.reduce(rig.context(1, 0)));
    for (std::int64_t j = 0; j < rig.layout.size(); ++j) {
      double mean = 0;
      for (int rank = 0; rank < rig.comm->size(); ++rank) mean += low_rank(rank, j, r) / static_cast<double>(rig.comm->size());
      EXPECT_NEAR(rig.grads.data()[j], mean, 2e-4) << "rank " << r << ", coordinate " << j;
    }
  }
}

// Every step from the method's own state, in double and for all ranks at once: rounding may not add up over steps.
TEST(PowerSgd, EqualsTheOracle) {
  constexpr std::int64_t r = 2;
  Rig rig(matrix_and_vector(), MPI_COMM_WORLD);
  PowerSgd sync({r, true, true}, {}, rig.method_context(100));
  const auto n = static_cast<std::size_t>(rows * columns);
  const auto ranks = static_cast<std::size_t>(rig.comm->size());
  using Matrix = std::vector<double>;
  const auto at = [](std::int64_t row, std::int64_t column) { return static_cast<std::size_t>(row * columns + column); };
  for (std::int64_t t = 1; t <= 100; ++t) {
    const auto entries = sync.state();
    const auto* old_q = reinterpret_cast<const float*>(entries[0].bytes.data());
    Matrix q(old_q, old_q + r * columns);
    std::vector<float> errors(ranks * static_cast<std::size_t>(rig.layout.size()));
    MPI_Allgather(entries[1].bytes.data(), static_cast<int>(rig.layout.size()), MPI_FLOAT, errors.data(),
                  static_cast<int>(rig.layout.size()), MPI_FLOAT, MPI_COMM_WORLD);
    std::vector<Matrix> a(ranks);
    Matrix mean(n);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto* error = errors.data() + static_cast<std::ptrdiff_t>(rank) * rig.layout.size();
      a[rank].assign(error, error + n);
      for (std::size_t j = 0; j < n; ++j) {
        a[rank][j] += normal_at(8, t, static_cast<int>(rank), static_cast<std::int64_t>(j));
        mean[j] += a[rank][j] / static_cast<double>(ranks);
      }
    }
    // P = mean A · Q with orthonormal columns, Q = mean Aᵀ · P.
    Matrix p(static_cast<std::size_t>(r * rows));
    const auto column_of = [](Matrix& m, std::int64_t k, std::int64_t length) { return m.data() + k * length; };
    for (std::int64_t k = 0; k < r; ++k) {
      double* p_k = column_of(p, k, rows);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) p_k[i] += mean[at(i, j)] * column_of(q, k, columns)[j];
      }
      for (std::int64_t earlier = 0; earlier < k; ++earlier) {
        double product = 0;
        for (std::int64_t i = 0; i < rows; ++i) product += p_k[i] * column_of(p, earlier, rows)[i];
        for (std::int64_t i = 0; i < rows; ++i) p_k[i] -= product * column_of(p, earlier, rows)[i];
      }
      double norm = 0;
      for (std::int64_t i = 0; i < rows; ++i) norm += p_k[i] * p_k[i];
      for (std::int64_t i = 0; i < rows; ++i) p_k[i] /= std::sqrt(norm);
    }
    std::fill(q.begin(), q.end(), 0.0);
    Matrix estimate(n);
    for (std::int64_t k = 0; k < r; ++k) {
      for (std::int64_t j = 0; j < columns; ++j) {
        for (std::int64_t i = 0; i < rows; ++i) column_of(q, k, columns)[j] += mean[at(i, j)] * column_of(p, k, rows)[i];
        for (std::int64_t i = 0; i < rows; ++i) estimate[at(i, j)] += column_of(p, k, rows)[i] * column_of(q, k, columns)[j];
      }
    }

    Rig::fill(rig.grads, [&](std::int64_t j) { return normal_at(8, t, rig.comm->rank(), j); });
    EXPECT_TRUE(sync.reduce(rig.context(t, 0)));
    for (std::size_t j = 0; j < n; ++j) EXPECT_NEAR(rig.grads.data()[j], estimate[j], 2e-4) << "coordinate " << j << ", step " << t;
    const auto* kept = reinterpret_cast<const float*>(sync.state()[1].bytes.data());
    const Matrix& mine = a[static_cast<std::size_t>(rig.comm->rank())];
    for (std::size_t j = 0; j < n; ++j) EXPECT_NEAR(kept[j], mine[j] - estimate[j], 2e-4) << "coordinate " << j << ", step " << t;
    for (std::int64_t j = rows * columns; j < rig.layout.size(); ++j) {  // the vector is sent in full
      double dense = 0;
      for (int rank = 0; rank < rig.comm->size(); ++rank) dense += normal_at(8, t, rank, j) / static_cast<double>(ranks);
      EXPECT_NEAR(rig.grads.data()[j], dense, 1e-6);
    }
  }
}

// A gradient that vanishes for a step must not leave the factors at zero for ever.
TEST(PowerSgd, RecoversFromAZeroGradient) {
  Rig rig(matrix_and_vector(), MPI_COMM_WORLD);
  PowerSgd sync({2, true, true}, {}, rig.method_context(2));
  Rig::fill(rig.grads, [](std::int64_t) { return 0.0F; });
  EXPECT_TRUE(sync.reduce(rig.context(1, 0)));
  EXPECT_EQ(sync.residual_norm(), 0);
  Rig::fill(rig.grads, [&](std::int64_t j) { return low_rank(0, j, 2); });
  EXPECT_TRUE(sync.reduce(rig.context(2, 0)));
  for (std::int64_t j = 0; j < rows * columns; ++j) EXPECT_NEAR(rig.grads.data()[j], low_rank(0, j, 2), 2e-4);
}

TEST(PowerSgd, BytesOfAKnownCase) {
  const ParameterLayout layout = matrix_and_vector();
  const PowerSgd two({2, true, true}, {}, {layout, cpu_device, 0, 4, 1, 1});
  EXPECT_DOUBLE_EQ(two.expected_wire_bytes(1), 1.5 * 4 * (2 * (24 + 15) + 7));
  const PowerSgd ten({10, true, true}, {}, {layout, cpu_device, 0, 4, 1, 1});  // 10 · 39 > 360: sent in full
  EXPECT_DOUBLE_EQ(ten.expected_wire_bytes(1), 1.5 * 4 * (360 + 7));
}

}  // namespace
}  // namespace scape::testing
