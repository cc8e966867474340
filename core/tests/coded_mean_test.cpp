// The two-phase mean of coded vectors on real ranks: its formula and what it conserves, bit for bit where fp32 allows it.
#include "scape/coded_mean.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/rig.hpp"

namespace scape::testing {
namespace {

constexpr QuantFormat formats[] = {{.code = QuantCode::bf16}, {.code = QuantCode::e5m2}, {.bits = 8, .block = 256}};
using Floats = std::vector<float>;

struct Exchange {
  std::unique_ptr<Communicator> comm = make_communicator("auto", MPI_COMM_WORLD, cpu_device);
  Stream stream;
  Floats mean, lost, lost_of_shard;
  Range shard;

  // For a vector that is shorter than the longest one.
  Exchange(const QuantFormat& format, Floats x) : mean(x.size()), lost(x.size()) {
    const auto n = static_cast<std::int64_t>(x.size());
    CodedMean coded(format, n + 300, comm->rank(), comm->size(), cpu_device);
    shard = coded.shard(n);
    lost_of_shard.resize(static_cast<std::size_t>(shard.size()));
    coded.code(Span<float>(x), {}, Span<float>(lost), stream);
    coded.scatter(*comm, stream);
    coded.reduce({}, {}, Span<float>(lost_of_shard), stream);
    coded.gather(*comm, stream);
    coded.decode(Span<float>(mean), stream);
    const double wire = comm->traffic().total().wire_bytes;
    EXPECT_NEAR(wire, coded.expected_wire_bytes(n), 1e-9 * wire);
    EXPECT_NEAR(wire, 2.0 * (comm->size() - 1) / comm->size() * static_cast<double>(quant_bytes(n, format)), 1e-9 * wire);
  }
};

TEST(CodedMean, IsItsFormulaAndLosesNothing) {
  for (const QuantFormat& format : formats) {
    for (const std::size_t n : {1U, 3U, 255U, 257U, 1000U, 5000U}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(format.code)) + ", " + std::to_string(n));
      int rank = 0;
      MPI_Comm_rank(MPI_COMM_WORLD, &rank);
      Floats x(n);
      for (std::size_t j = 0; j < n; ++j) x[j] = std::exp(3 * normal_at(1, 0, rank, static_cast<std::int64_t>(j))) - 1;
      const Exchange exchange(format, x);
      EXPECT_TRUE(same_on_all_ranks(exchange.mean.data(), n * sizeof(float), MPI_COMM_WORLD));

      std::vector<std::uint8_t> records(static_cast<std::size_t>(quant_bytes(static_cast<std::int64_t>(n), format)));
      Floats mine(n);
      const QuantKernels& kernels = quant_kernels(cpu_device);
      kernels.quantize(Span<float>(x), format, {}, Span<std::uint8_t>(records), {}, exchange.stream);
      kernels.dequantize(Span<std::uint8_t>(records), format, Span<float>(mine), exchange.stream);
      for (std::size_t j = 0; j < n; ++j) EXPECT_EQ(exchange.lost[j], x[j] - mine[j]);

      // All ranks' numbers: what went in, its codes, and what was lost.
      const auto ranks = static_cast<std::size_t>(exchange.comm->size());
      const auto gathered = [&](const Floats& values) {
        Floats all(ranks * n);
        exchange.comm->all_gather<float>(Span<const float>(values.data(), static_cast<std::int64_t>(n), cpu_device),
                                         Span<float>(all), exchange.stream);
        return all;
      };
      const Floats inputs = gathered(x), codes = gathered(mine), lost = gathered(exchange.lost);
      for (std::int64_t j = exchange.shard.begin; j < exchange.shard.end; ++j) {
        const auto i = static_cast<std::size_t>(j);
        float sum = 0;
        double before = 0, after = 0, size = 0;
        for (std::size_t r = 0; r < ranks; ++r) {
          sum += codes[r * n + i];
          before += inputs[r * n + i];
          after += lost[r * n + i];
          size += std::abs(inputs[r * n + i]);
        }
        const float mean = sum / static_cast<float>(ranks);
        const float lost_of_mean = exchange.lost_of_shard[static_cast<std::size_t>(j - exchange.shard.begin)];
        EXPECT_EQ(lost_of_mean, mean - exchange.mean[i]);
        EXPECT_EQ(exchange.mean[i] + lost_of_mean, mean);
        after += static_cast<double>(ranks) * (static_cast<double>(exchange.mean[i]) + lost_of_mean);
        if (ranks == 1 && format.code != QuantCode::integer) {
          EXPECT_EQ(after, before);
        } else {
          EXPECT_NEAR(after, before, 0x1p-23 * static_cast<double>(ranks) * size);
        }
      }
    }
  }
}

TEST(CodedMean, ShowsOnEveryRankWhatIsNotFiniteOnOne) {
  for (const QuantFormat& format : formats) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      int rank = 0, ranks = 1;
      MPI_Comm_rank(MPI_COMM_WORLD, &rank);
      MPI_Comm_size(MPI_COMM_WORLD, &ranks);
      Floats x(600, 1.0F);
      if (rank == ranks - 1) x[300] = bad;
      const Exchange exchange(format, x);
      for (std::size_t j = 0; j < x.size(); ++j) {
        EXPECT_EQ(std::isnan(exchange.mean[j]), format.code == QuantCode::bf16 ? j == 300 : j / 256 == 1) << j;
      }
    }
  }
}

}  // namespace
}  // namespace scape::testing
