// Dense training with sharded moments on real ranks: the same parameters as with moments everywhere, its bytes, its state.
#include <gmock/gmock.h>

#include <cmath>

#include "scape/kernels.hpp"
#include "scape/scape.hpp"
#include "support/message_of.hpp"
#include "support/rig.hpp"

namespace scape::testing {
namespace {

constexpr double learning_rate = 0.01;

// A method by name with some options, in a rig of its own.
struct Training {
  Rig rig;
  std::unique_ptr<Optimizer> method;

  Training(const std::string& optimizer, std::int64_t size, const std::vector<Setting>& settings,
           Streams streams = Streams::immediate, MPI_Comm world = MPI_COMM_WORLD)
      : rig(odd_layout(size), world, streams) {
    Registry registry;
    register_core(registry);
    MethodChoice choice(registry, optimizer, "");
    OptionTable table;
    choice.declare(table);
    for (const Setting& setting : settings) table.set(setting);
    method = choice.make(rig.method_context(100));
  }
  [[nodiscard]] float gradient(std::int64_t t, int rank, std::int64_t j) const {
    const float scale = std::exp(normal_at(6, t, 0, 0)) / std::sqrt(static_cast<float>(rig.layout.size()));  // norms around 1
    return scale * normal_at(5, t, rank, j);
  }
  StepResult step(std::int64_t t, double rate = learning_rate) {
    return rig.step(*method, t, rate, [&](std::int64_t j) { return gradient(t, rig.comm->rank(), j); });
  }
  // θ* of all shards.
  [[nodiscard]] std::vector<float> master() const {
    std::vector<float> all(static_cast<std::size_t>(rig.layout.size()));
    std::vector<std::int64_t> counts;
    for (int r = 0; r < rig.comm->size(); ++r) counts.push_back(owned_range(rig.layout.size(), r, rig.comm->size()).size());
    for (const StateEntry& entry : method->state()) {
      if (entry.name != "zero1/master") continue;
      const auto* mine = reinterpret_cast<const float*>(entry.bytes.data());
      rig.comm->all_gather_v<float>({mine, entry.bytes.size() / 4, cpu_device}, Span<float>(std::span(all)), counts, rig.stream);
    }
    return all;
  }
};

struct Format {
  std::string name;
  QuantFormat format;
};
const std::vector<Format> formats{{"bf16", {.code = QuantCode::bf16}}, {"int8", {.bits = 8}}, {"int4", {.bits = 4}}};

// What the codes of x say, each shard's on its own.
std::vector<float> coded(std::vector<float> x, const QuantFormat& format, int ranks) {
  const QuantKernels& kernels = quant_kernels(cpu_device);
  for (int r = 0; r < ranks; ++r) {
    const Range shard = owned_range(static_cast<std::int64_t>(x.size()), r, ranks);
    const Span<float> part(x.data() + shard.begin, shard.size(), cpu_device);
    Buffer<std::uint8_t> records(quant_bytes(part.size(), format));
    kernels.quantize(part, format, {}, records, {}, Stream());
    kernels.dequantize(records, format, part, Stream());
  }
  return x;
}

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

// For 100 steps the parameters of AdamW on one rank with the mean of what the codes say.
TEST(Zero1, AddsWhatTheCodesOfGradientsSay) {
  for (const auto& [name, format] : formats) {
    for (const std::int64_t size : {1, 3, 19, 57, 1000}) {
      SCOPED_TRACE(name + ", size " + std::to_string(size));
      Training run("zero1", size, {{"payload", name, "test"}});
      Training alone("adamw", size, {}, Streams::immediate, MPI_COMM_SELF);
      const int ranks = run.rig.comm->size();
      for (std::int64_t t = 1; t <= 100; ++t) {
        std::vector<float> sum(static_cast<std::size_t>(size));
        for (int r = 0; r < ranks; ++r) {
          std::vector<float> gradient;
          for (std::int64_t j = 0; j < size; ++j) gradient.push_back(run.gradient(t, r, j));
          gradient = coded(gradient, format, ranks);
          for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += gradient[j];
        }
        const StepResult result = run.step(t);
        const StepResult expected = alone.rig.step(*alone.method, t, learning_rate, [&](std::int64_t j) {
          return sum[static_cast<std::size_t>(j)] / static_cast<float>(ranks);
        });
        EXPECT_NEAR(result.gradient_norm, expected.gradient_norm, 1e-6 * expected.gradient_norm);
      }
      for (std::size_t j = 0; j < static_cast<std::size_t>(size); ++j)
        EXPECT_NEAR(run.rig.values()[j], alone.rig.values()[j], 1e-5 * (1 + std::abs(run.rig.values()[j]))) << j;
    }
  }
}

// Parameters in codes leave θ*, which no gradient here depends on, as it would be without; θ is what the codes say, on every rank.
TEST(Zero1, ParametersAreWhatTheirCodesSay) {
  for (const auto& [name, format] : formats) {
    for (const std::string coding : {"values", "differences"}) {
      for (const std::int64_t size : {1, 3, 19, 57, 1000}) {
        SCOPED_TRACE(name + ", " + coding + ", size " + std::to_string(size));
        const std::vector<Setting> settings{{"parameter_payload", name, "test"}, {"parameter_coding", coding, "test"}};
        Training plain("zero1", size, {});
        Training run("zero1", size, settings);
        Training queued("zero1", size, settings, Streams::queued);
        for (std::int64_t t = 1; t <= 20; ++t) {
          std::vector<float> expected = run.rig.values();
          plain.step(t);
          run.step(t);
          queued.step(t);
          const std::vector<float> master = run.master();
          EXPECT_EQ(master, plain.rig.values()) << "step " << t;
          if (coding == "values") {
            expected = coded(master, format, run.rig.comm->size());
          } else {
            std::vector<float> difference = master;
            for (std::size_t j = 0; j < master.size(); ++j) difference[j] -= expected[j];
            difference = coded(difference, format, run.rig.comm->size());
            for (std::size_t j = 0; j < master.size(); ++j) expected[j] += difference[j];
          }
          EXPECT_EQ(run.rig.values(), expected) << "step " << t;
        }
        EXPECT_EQ(run.rig.values(), queued.rig.values());
        EXPECT_TRUE(same_on_all_ranks(run.rig.params.data(), static_cast<std::size_t>(4 * size), MPI_COMM_WORLD));
      }
    }
  }
}

// Once θ* rests, differences bring θ to it; values of four bits stay where they are.
TEST(Zero1, DifferencesSendLaterWhatRoundingLost) {
  const auto distance_after = [](const std::string& coding) {
    Training run("zero1", 1000, {{"parameter_payload", "int4", "test"}, {"parameter_coding", coding, "test"}});
    for (std::int64_t t = 1; t <= 5; ++t) run.step(t);
    for (std::int64_t t = 6; t <= 15; ++t) run.step(t, 0);
    const std::vector<float> theta = run.rig.values(), master = run.master();
    float largest = 0;
    for (std::size_t j = 0; j < theta.size(); ++j) largest = std::max(largest, std::abs(theta[j] - master[j]));
    return largest;
  };
  EXPECT_GT(distance_after("values"), 0.1F);
  EXPECT_LT(distance_after("differences"), 1e-6F);
}

TEST(Zero1, BytesOfCodes) {
  // Four ranks own 256, 256, 256 and 232 of 1000 coordinates: a block each.
  const std::vector<std::pair<std::string, std::int64_t>> shards{{"bf16", 512}, {"int8", 260}, {"int4", 132}};
  for (const auto& [name, bytes] : shards) {
    Training run("zero1", 1000, {{"payload", name, "test"}, {"parameter_payload", name, "test"}});
    const int ranks = run.rig.comm->size();
    std::int64_t all = 0;
    for (int r = 0; r < ranks; ++r) all += bytes * ((owned_range(1000, r, ranks).size() + 255) / 256);
    if (ranks == 4) {
      EXPECT_EQ(all, 4 * bytes);
    }
    const double share = (ranks - 1.0) / ranks;
    EXPECT_NEAR(run.method->expected_wire_bytes(1), share * (2.0 * static_cast<double>(all) + 16), 1e-9) << name;
    run.step(1);
    const Traffic sent = run.rig.comm->traffic();
    EXPECT_EQ(sent[Collective::all_to_all].payload_bytes, all) << name;
    EXPECT_EQ(sent[Collective::all_gather].payload_bytes, all) << name;
    EXPECT_NEAR(sent.total().wire_bytes, run.method->expected_wire_bytes(1), 1e-9) << name;
  }
}

// A coordinate's bf16 code depends on nothing else, and ranks are added in their order: buckets change no bit.
TEST(Zero1, BucketsOfBf16ChangeNoBit) {
  for (const std::int64_t size : {19, 1000}) {
    const std::vector<Setting> settings{{"payload", "bf16", "test"}, {"parameter_payload", "bf16", "test"}};
    std::vector<Setting> buckets = settings;
    buckets.push_back({"overlap", "bucketed", "test"});
    buckets.push_back({"bucket_megabytes", "2e-4", "test"});
    Training whole("zero1", size, settings);
    Training bucketed("zero1", size, buckets, Streams::queued);
    for (std::int64_t t = 1; t <= 20; ++t) {
      whole.step(t);
      const double before = bucketed.rig.comm->traffic().total().wire_bytes;
      bucketed.step(t);
      EXPECT_NEAR(bucketed.rig.comm->traffic().total().wire_bytes - before, bucketed.method->expected_wire_bytes(t), 1e-6);
    }
    EXPECT_EQ(whole.rig.values(), bucketed.rig.values());
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

TEST(Zero1, RefusesWhatCannotBeMeant) {
  const std::vector<std::pair<std::vector<Setting>, std::string>> cases{
      {{{"bias_correction", "official", "test"}}, "bias_correction is a choice of rule = adams"},
      {{{"parameter_coding", "differences", "test"}}, "parameter_coding = differences needs parameter_payload"},
      {{{"overlap", "bucketed", "test"}, {"payload", "int8", "test"}}, "overlap = bucketed needs payload = fp32 or bf16"}};
  for (const auto& [settings, message] : cases) {
    const auto make = [&chosen = settings] { const Training run("zero1", 10, chosen); };
    EXPECT_THAT(message_of(ErrorKind::usage, make), ::testing::HasSubstr(message));
  }
}

}  // namespace
}  // namespace scape::testing
