// Dense training with sharded moments on real ranks: the same parameters as with moments everywhere, its bytes, its state.
#include <gtest/gtest.h>

#include <cmath>

#include "scape/scape.hpp"
#include "support/rig.hpp"

namespace scape::testing {
namespace {

constexpr double learning_rate = 0.01;

// A method by name with some options, in a rig of its own.
struct Training {
  Rig rig;
  std::unique_ptr<Optimizer> method;

  Training(const std::string& optimizer, std::int64_t size, const std::vector<Setting>& settings,
           Streams streams = Streams::immediate)
      : rig(odd_layout(size), MPI_COMM_WORLD, streams) {
    Registry registry;
    register_core(registry);
    MethodChoice choice(registry, optimizer, "");
    OptionTable table;
    choice.declare(table);
    for (const Setting& setting : settings) table.set(setting);
    method = choice.make(rig.method_context(100));
  }
  StepResult step(std::int64_t t) {
    const float scale = std::exp(normal_at(6, t, 0, 0)) / std::sqrt(static_cast<float>(rig.layout.size()));  // norms around 1
    return rig.step(*method, t, learning_rate, [&](std::int64_t j) { return scale * normal_at(5, t, rig.comm->rank(), j); });
  }
};

TEST(Zero1, IsTheDenseMethodButForRounding) {
  for (const char* rule : {"adamw", "adams"}) {
    for (const std::int64_t size : {1, 3, 19, 57, 200, 1000}) {  // also with empty shards
      SCOPED_TRACE(std::string(rule) + ", size " + std::to_string(size));
      Training dense(rule, size, {});
      Training sharded("zero1", size, {{"rule", rule, "test"}});
      Training queued("zero1", size, {{"rule", rule, "test"}}, Streams::queued);
      Training bucketed("zero1", size,
                        {{"rule", rule, "test"}, {"overlap", "bucketed", "test"}, {"bucket_megabytes", "2e-4", "test"}},
                        Streams::queued);
      for (std::int64_t t = 1; t <= 50; ++t) {
        const StepResult expected = dense.step(t);
        const StepResult result = sharded.step(t);
        queued.step(t);
        bucketed.step(t);
        EXPECT_TRUE(result.applied);
        EXPECT_EQ(result.density, 1);
        EXPECT_NEAR(result.gradient_norm, expected.gradient_norm, 1e-6 * (1 + expected.gradient_norm));
      }
      const auto theta = sharded.rig.values();
      for (std::size_t j = 0; j < theta.size(); ++j) {
        EXPECT_NEAR(theta[j], dense.rig.values()[j], 1e-5 * (1 + std::abs(theta[j]))) << j;
        EXPECT_NEAR(bucketed.rig.values()[j], theta[j], 1e-5 * (1 + std::abs(theta[j]))) << j;
      }
      EXPECT_EQ(queued.rig.values(), theta);
      EXPECT_TRUE(same_on_all_ranks(theta.data(), theta.size() * sizeof(float), MPI_COMM_WORLD));
    }
  }
}

TEST(Zero1, SendsGradientsParametersAndOneNumber) {
  for (const std::string overlap : {"none", "bucketed"}) {
    Training run("zero1", 1000, {{"overlap", overlap, "test"}, {"bucket_megabytes", "4e-4", "test"}});  // 100 coordinates
    const Traffic before = run.rig.comm->traffic();
    run.step(1);
    const Traffic sent = run.rig.comm->traffic().since(before);
    EXPECT_EQ(sent[Collective::reduce_scatter].payload_bytes, 4000);
    EXPECT_EQ(sent[Collective::all_gather].payload_bytes, 4000);
    EXPECT_EQ(sent[Collective::all_reduce].payload_bytes, 8);
    EXPECT_EQ(sent[Collective::all_gather].calls + sent[Collective::all_reduce].calls, 2);
    EXPECT_EQ(sent[Collective::reduce_scatter].calls > 1, overlap == "bucketed");
    const double share = (run.rig.comm->size() - 1.0) / run.rig.comm->size();
    EXPECT_NEAR(sent.total().wire_bytes, share * (4000 + 4000 + 2 * 8), 1e-9 * 8016);
    EXPECT_NEAR(run.method->expected_wire_bytes(1), sent.total().wire_bytes, 1e-9 * 8016);
  }
}

TEST(Zero1, HoldsOnlyItsShardOfTheMoments) {
  const auto bytes_of_moments = [](const Training& run) {
    std::int64_t bytes = 0;
    for (const StateEntry& entry : run.method->state()) {
      EXPECT_EQ(entry.scope, entry.name == "zero1/steps" ? StateScope::replicated : StateScope::shard) << entry.name;
      if (entry.scope == StateScope::shard) bytes += entry.bytes.size();
    }
    return bytes;
  };
  const Training adamw("zero1", 1000, {});
  const std::int64_t shard = owned_range(1000, adamw.rig.comm->rank(), adamw.rig.comm->size()).size();
  EXPECT_EQ(bytes_of_moments(adamw), 2 * 4 * shard);
  EXPECT_EQ(bytes_of_moments(Training("zero1", 1000, {{"rule", "adams", "test"}})), 4 * shard);
}

TEST(Zero1, RefusesABiasCorrectionThatItsRuleDoesNotHave) {
  try {
    const Training run("zero1", 10, {{"bias_correction", "official", "test"}});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("bias_correction is a choice of rule = adams"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace scape::testing
