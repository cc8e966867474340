// The dense mean on real ranks: its two payloads against plain loops, its buckets, its bytes.
#include <gtest/gtest.h>

#include <bit>

#include "methods/dense.hpp"
#include "support/rig.hpp"

namespace scape::testing {
namespace {

// To the nearest number of 8 significant bits, even in a tie.
float bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U);
}

// The gradients after one reduce; tensors are announced from the last to the first, as in a backward pass.
struct Mean {
  Rig rig;
  double expected_wire_bytes = 0;

  Mean(std::int64_t size, const Dense::Options& options, std::int64_t t, Streams streams)
      : rig(odd_layout(size), MPI_COMM_WORLD, streams) {
    Dense dense(options, {}, rig.method_context(1));
    Rig::fill(rig.grads, [&](std::int64_t j) { return normal_at(3, t, rig.comm->rank(), j); });
    const StepContext context = rig.context(1, 0);
    for (auto tensor = rig.layout.tensors().rbegin(); tensor != rig.layout.tensors().rend(); ++tensor)
      dense.gradients_ready(context, tensor->range);
    EXPECT_TRUE(dense.reduce(context));
    rig.stream.synchronize();
    expected_wire_bytes = dense.expected_wire_bytes(1);
    EXPECT_NEAR(rig.comm->traffic().total().wire_bytes, expected_wire_bytes, 1e-6);
  }
  [[nodiscard]] std::vector<float> values() const { return {rig.grads.data(), rig.grads.data() + rig.grads.size()}; }
};

const BucketOptions at_once;
const BucketOptions small_buckets{Overlap::bucketed, 2e-4};  // 50 coordinates

TEST(Dense, Bf16IsTheRoundedMeanOfRoundedGradientsWhateverTheBuckets) {
  for (const std::int64_t size : {1, 3, 19, 57, 300, 1000}) {
    for (std::int64_t t = 1; t <= 10; ++t) {
      const Mean whole(size, {at_once, PayloadType::bf16}, t, Streams::immediate);
      const Mean bucketed(size, {small_buckets, PayloadType::bf16}, t, Streams::queued);
      std::vector<float> expected;
      for (std::int64_t j = 0; j < size; ++j) {
        float sum = 0;
        for (int r = 0; r < whole.rig.comm->size(); ++r) sum += bf16(normal_at(3, t, r, j));
        expected.push_back(bf16(sum / static_cast<float>(whole.rig.comm->size())));
      }
      EXPECT_EQ(whole.values(), expected) << "size " << size << ", step " << t;
      EXPECT_EQ(bucketed.values(), expected) << "size " << size << ", step " << t;
    }
  }
}

TEST(Dense, Fp32IsTheMeanToRounding) {
  for (const std::int64_t size : {1, 3, 19, 57, 1000}) {
    for (const BucketOptions& buckets : {at_once, small_buckets}) {
      const Mean mean(size, {buckets, PayloadType::fp32}, 1, Streams::queued);
      for (std::int64_t j = 0; j < size; ++j) {
        double sum = 0, magnitudes = 0;
        for (int r = 0; r < mean.rig.comm->size(); ++r) {
          sum += normal_at(3, 1, r, j);
          magnitudes += std::abs(normal_at(3, 1, r, j));
        }
        EXPECT_NEAR(mean.values()[static_cast<std::size_t>(j)], sum / mean.rig.comm->size(), 3e-7 * magnitudes) << j;
      }
      EXPECT_TRUE(same_on_all_ranks(mean.rig.grads.data(), static_cast<std::size_t>(4 * size), MPI_COMM_WORLD));
    }
  }
}

TEST(Dense, BytesOfAKnownCase) {
  const ParameterLayout layout = odd_layout(1000);  // four blocks of 256
  const MethodContext context{layout, cpu_device, 0, 4, 1, 1};
  EXPECT_DOUBLE_EQ(Dense({}, {}, context).expected_wire_bytes(1), 1.5 * 4000);
  EXPECT_DOUBLE_EQ(Dense({at_once, PayloadType::bf16}, {}, context).expected_wire_bytes(1), 1.5 * 4 * 512);
}

}  // namespace
}  // namespace scape::testing
