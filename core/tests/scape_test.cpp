// SCAPE on real ranks: against an oracle in double precision, and the exact checks of the algorithm, each in every combination of
// form, mask_delay, mask_refresh and streams where it could go wrong. A rank that has seen a failure goes on stepping: the others
// may not have seen it, and wait for it in the next collective.
#include "scape/scape.hpp"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "comm/transports.hpp"
#include "methods/mask_gather.hpp"
#include "scape/kernels.hpp"
#include "support/message_of.hpp"
#include "support/rig.hpp"
#include "support/scape_oracle.hpp"

namespace scape::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t total_steps = 100;
constexpr double learning_rate = 0.01;
constexpr float infinity = std::numeric_limits<float>::infinity();

// Matrices and vectors in turn, none of them a multiple of a mask word.
ParameterLayout mixed_layout(std::int64_t size) {
  ParameterLayout layout;
  const std::int64_t vector = size / 9;
  const std::int64_t matrix = (size - 2 * vector) / 2;
  if (matrix > 0) layout.add("w1", {matrix}, TensorRole::matrix);
  if (vector > 0) layout.add("b1", {vector}, TensorRole::vector);
  layout.add("w2", {size - matrix - 2 * vector, 1}, TensorRole::matrix);
  if (vector > 0) layout.add("b2", {vector}, TensorRole::vector);
  return layout;
}

// Decays that a float holds exactly, so that float and double compute with the same ones.
CommonOptions exact_common() {
  return {.beta1 = 0.875, .beta2 = 0.9375, .epsilon = 1e-8, .weight_decay = 0.125, .clip_norm = 1};
}

Scape::Options options_with(double density, std::int64_t delay, std::int64_t refresh, double warmup_fraction = 0) {
  Scape::Options options;
  options.density = {.density = density, .density_warmup = DensityWarmup::geometric, .density_warmup_fraction = warmup_fraction};
  options.mask_delay = delay;
  options.mask_refresh = refresh;
  return options;
}

// Delays each collective by up to 300 µs, differently on every rank: a wrong order of streams then shows.
class SlowTransport final : public Transport {
 public:
  /// after_gather runs on the stream of each all-gather, behind it.
  explicit SlowTransport(std::unique_ptr<Transport> inner, std::function<void()> after_gather = {})
      : inner_(std::move(inner)),
        rng_(std::make_shared<Rng>(99, static_cast<std::uint64_t>(inner_->rank()))),
        after_gather_(std::move(after_gather)) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void all_reduce(void* data, std::int64_t count, DType type, ReduceOp op, const Stream& stream) override {
    pause(stream);
    inner_->all_reduce(data, count, type, op, stream);
  }
  void reduce_scatter_v(const void* input, void* output, std::span<const std::int64_t> counts, DType type, ReduceOp op,
                        const Stream& stream) override {
    pause(stream);
    inner_->reduce_scatter_v(input, output, counts, type, op, stream);
  }
  void all_gather_v(const void* mine, void* all, std::span<const std::int64_t> counts, DType type, const Stream& stream) override {
    pause(stream);
    inner_->all_gather_v(mine, all, counts, type, stream);
    pause(stream);
    if (after_gather_) stream.enqueue(after_gather_);
  }
  void all_to_all_v(const void* send, std::span<const std::int64_t> send_counts, void* receive,
                    std::span<const std::int64_t> receive_counts, DType type, const Stream& stream) override {
    pause(stream);
    inner_->all_to_all_v(send, send_counts, receive, receive_counts, type, stream);
  }
  void broadcast(void* data, std::int64_t count, DType type, int root, const Stream& stream) override {
    pause(stream);
    inner_->broadcast(data, count, type, root, stream);
  }
  void barrier(const Stream& stream) override { inner_->barrier(stream); }
  [[nodiscard]] std::unique_ptr<Transport> duplicate() const override {
    return std::make_unique<SlowTransport>(inner_->duplicate(), after_gather_);
  }

 private:
  void pause(const Stream& stream) {
    stream.enqueue([rng = rng_] { std::this_thread::sleep_for(std::chrono::microseconds(rng->below(300))); });
  }
  std::unique_ptr<Transport> inner_;
  std::shared_ptr<Rng> rng_;
  std::function<void()> after_gather_;
};

// One rank's run of SCAPE.
struct ScapeRun {
  Rig rig;
  Scape method;
  std::int64_t next_step = 1;

  ScapeRun(const ParameterLayout& layout, const Scape::Options& options, const CommonOptions& common,
           Streams streams = Streams::immediate, MPI_Comm world = MPI_COMM_WORLD)
      : rig(layout, world, streams), method(options, common, rig.method_context(total_steps)) {}
  ScapeRun(std::int64_t size, const Scape::Options& options, const CommonOptions& common, Streams streams = Streams::immediate,
           MPI_Comm world = MPI_COMM_WORLD)
      : ScapeRun(mixed_layout(size), options, common, streams, world) {}

  [[nodiscard]] int rank() const { return rig.comm->rank(); }
  [[nodiscard]] int ranks() const { return rig.comm->size(); }
  [[nodiscard]] std::int64_t size() const { return rig.layout.size(); }

  // One step; only the compute stream is waited for, so that a gather of a mask may still be under way. As a backward pass does, it
  // makes the gradients of ranges, the last first, and announces each; in two pieces, so that neighbours join.
  StepResult step(const std::function<float(std::int64_t)>& gradient) {
    rig.stream.synchronize();
    const StepContext context = rig.context(next_step, learning_rate);
    for (auto tensor = rig.layout.tensors().rbegin(); tensor != rig.layout.tensors().rend(); ++tensor) {
      const auto [begin, end] = tensor->range;
      const std::int64_t middle = (begin + 2 * end) / 3;
      for (const Range range : {Range{middle, end}, Range{begin, middle}}) {
        rig.stream.enqueue([&, range] {
          for (std::int64_t j = range.begin; j < range.end; ++j) rig.grads.data()[j] = gradient(j);
        });
        method.gradients_ready(context, range);
      }
    }
    const StepResult result = method.step(context);
    rig.stream.synchronize();
    ++next_step;
    return result;
  }
  StepResult random_step() { return step(random_gradient(next_step)); }
  [[nodiscard]] std::function<float(std::int64_t)> random_gradient(std::int64_t t) const {
    return [t, r = rank()](std::int64_t j) { return 0.1F * normal_at(5, t, r, j); };
  }

  // Values of a piece of state, those of a shard from all ranks.
  [[nodiscard]] std::vector<float> floats(const std::string& name) {
    for (const StateEntry& entry : method.state()) {
      if (entry.name != name) continue;
      const auto* values = reinterpret_cast<const float*>(entry.bytes.data());
      const std::vector<float> mine(values, values + entry.bytes.size() / 4);
      return entry.scope == StateScope::shard ? gathered(mine) : mine;
    }
    throw Error(ErrorKind::internal, "no state entry " + name);
  }
  [[nodiscard]] std::vector<float> gathered(const std::vector<float>& shard) {
    std::vector<std::int64_t> counts;
    for (int r = 0; r < ranks(); ++r) counts.push_back(owned_range(size(), r, ranks()).size());
    Buffer<float> all(size());
    rig.comm_stream.synchronize();
    rig.comm->all_gather_v<float>({const_cast<float*>(shard.data()), static_cast<std::int64_t>(shard.size()), cpu_device}, all,
                                  counts, Stream());
    return {all.data(), all.data() + all.size()};
  }
  [[nodiscard]] std::vector<float> m() { return floats("scape/m"); }
  [[nodiscard]] std::vector<float> carry() { return floats("scape/carry"); }
  [[nodiscard]] std::vector<float> residual() { return floats("scape/residual"); }
  [[nodiscard]] std::vector<bool> mask() const {
    std::vector<bool> bits(static_cast<std::size_t>(size()));
    for (std::size_t j = 0; j < bits.size(); ++j) bits[j] = (method.mask().words.data()[j / 64] >> (j % 64) & 1) != 0;
    return bits;
  }
};

// Why a method with these options is not made.
std::string refusal(const Scape::Options& options) {
  return message_of(ErrorKind::usage, [&] { const ScapeRun run(57, options, exact_common()); });
}

// Parameters and the whole state, to compare and to continue from.
struct Snapshot {
  std::vector<float> params;
  StateBytes state;
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};
Snapshot snapshot(ScapeRun& run) {
  return {run.rig.values(), save(run.method)};
}
void restore(ScapeRun& run, const Snapshot& saved, std::int64_t next_step) {
  std::copy(saved.params.begin(), saved.params.end(), run.rig.params.data());
  load(run.method, saved.state);
  run.next_step = next_step;
}

// A way to make a run.
struct Way {
  const char* name;
  Scape::Options options;
  Streams streams = Streams::immediate;
  std::int64_t piece = 0;  // unless 0: slow collectives, in pieces of so many elements
};

// Every way gives the bits of the first in each step, on all ranks. So does the last way continued from the state of the
// first in each step, after it has refused a gradient that is not finite at bad(t) without a trace.
void expect_equal_bits(const ParameterLayout& layout, const std::vector<Way>& ways,
                       const std::function<std::vector<std::int64_t>(std::int64_t)>& bad, std::int64_t steps = 25) {
  std::vector<std::unique_ptr<ScapeRun>> runs;
  for (const Way& way : ways) {
    runs.push_back(std::make_unique<ScapeRun>(layout, way.options, exact_common(), way.streams));
    if (way.piece == 0) continue;
    runs.back()->rig.comm =
        std::make_unique<Communicator>(std::make_unique<SlowTransport>(detail::make_mpi_transport(MPI_COMM_WORLD, way.piece)));
  }
  for (std::int64_t t = 1; t <= steps; ++t) {
    ScapeRun resumed(layout, ways.back().options, exact_common());
    resumed.random_step();
    restore(resumed, snapshot(*runs[0]), t);
    for (const std::int64_t where : bad(t)) {
      for (const float value : {infinity, std::numeric_limits<float>::quiet_NaN()}) {
        const Snapshot before = snapshot(resumed);
        const auto gradient = resumed.random_gradient(t);
        const bool bad_rank = resumed.rank() == static_cast<int>(t) % resumed.ranks();
        EXPECT_FALSE(resumed.step([&](std::int64_t j) { return j == where && bad_rank ? value : gradient(j); }).applied) << where;
        --resumed.next_step;
        EXPECT_TRUE(snapshot(resumed) == before) << where;
      }
    }
    const StepResult last = resumed.random_step();
    EXPECT_TRUE(last.applied);
    const StepResult first = runs[0]->random_step();
    const Snapshot expected = snapshot(*runs[0]);
    EXPECT_TRUE(snapshot(resumed) == expected) << "resumed, step " << t;
    EXPECT_EQ(last.residual_norm, first.residual_norm) << t;
    EXPECT_TRUE(same_on_all_ranks(expected.params.data(), expected.params.size() * sizeof(float), MPI_COMM_WORLD)) << t;
    for (std::size_t i = 1; i < runs.size(); ++i) {
      EXPECT_TRUE(runs[i]->random_step().applied);
      EXPECT_TRUE(snapshot(*runs[i]) == expected) << ways[i].name << ", step " << t;
    }
  }
}

// |actual − expected| ≤ relative · (|expected| + the largest |expected|, or `terms` if that is larger: the size of the numbers
// that may have cancelled each other).
void expect_close(const std::vector<float>& actual, const ScapeOracle::Vector& expected, double relative, const char* what,
                  double terms = 0) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = terms;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  for (std::size_t j = 0; j < expected.size(); ++j) {
    if (std::abs(actual[j] - expected[j]) <= relative * (std::abs(expected[j]) + largest)) continue;
    ADD_FAILURE() << what << "[" << j << "] is " << actual[j] << ", not " << expected[j] << " (largest " << largest << ")";
    return;
  }
}

// Where m lies, and how the payload travels.
struct Form {
  const char* name;
  ScapeFormKind form;
  ShardedPayload payload;
};
constexpr Form replicated_form{"replicated", ScapeFormKind::replicated, ShardedPayload::reduce_scatter};
constexpr Form sharded_form{"sharded", ScapeFormKind::sharded, ShardedPayload::reduce_scatter};
constexpr Form sharded_all_reduce_form{"sharded_all_reduce", ScapeFormKind::sharded, ShardedPayload::all_reduce};

Scape::Options in_form(const Form& form, Scape::Options options) {
  options.form = form.form;
  options.sharded_payload = form.payload;
  return options;
}

struct Schedule {
  Form form;
  std::int64_t delay;
  std::int64_t refresh;
  bool bucketed = false;  // the payload in buckets during the backward pass
  friend std::ostream& operator<<(std::ostream& out, const Schedule& s) {
    return out << s.form.name << ", mask_delay " << s.delay << ", mask_refresh " << s.refresh << (s.bucketed ? ", bucketed" : "");
  }
};
class ScapeSchedules : public ::testing::TestWithParam<Schedule> {
 protected:
  [[nodiscard]] Scape::Options options(double density = 0.1, double warmup_fraction = 0) const {
    Scape::Options made = in_form(GetParam().form, options_with(density, GetParam().delay, GetParam().refresh, warmup_fraction));
    if (GetParam().bucketed) made.buckets = {Overlap::bucketed, 40 * 4e-6};  // 40 coordinates
    return made;
  }
  [[nodiscard]] bool is_sharded() const { return GetParam().form.form == ScapeFormKind::sharded; }
};
INSTANTIATE_TEST_SUITE_P(Of, ScapeSchedules,
                         ::testing::Values(Schedule{replicated_form, 0, 1}, Schedule{replicated_form, 1, 1},
                                           Schedule{replicated_form, 2, 1}, Schedule{replicated_form, 5, 1},
                                           Schedule{replicated_form, 0, 3}, Schedule{replicated_form, 1, 3},
                                           Schedule{replicated_form, 2, 3}, Schedule{replicated_form, 5, 3},
                                           Schedule{replicated_form, 1, 1, true}, Schedule{replicated_form, 5, 3, true},
                                           Schedule{sharded_form, 0, 1}, Schedule{sharded_form, 1, 1}, Schedule{sharded_form, 2, 3},
                                           Schedule{sharded_all_reduce_form, 0, 3}, Schedule{sharded_all_reduce_form, 1, 1}),
                         [](const auto& test) {
                           return std::string(test.param.form.name) + "_delay_" + std::to_string(test.param.delay) + "_refresh_" +
                                  std::to_string(test.param.refresh) + (test.param.bucketed ? "_bucketed" : "");
                         });

// ---- the oracle ----

// Size of the elements of a gradient of norm about 2.
float gradient_scale(std::size_t size, std::int64_t t) {
  return 2 * std::exp(normal_at(6, t, 0, 0)) / std::sqrt(static_cast<float>(size));
}

ScapeOracle make_oracle(const ScapeRun& run, const Scape::Options& options, const CommonOptions& common) {
  ScapeOracle::Settings s;
  for (const ParameterTensor& tensor : run.rig.layout.tensors()) {
    const bool matrix = tensor.role == TensorRole::matrix;
    const std::int64_t block = matrix ? tensor.shape.back() : tensor.range.size();
    s.tensors.push_back({static_cast<std::size_t>(tensor.range.begin), static_cast<std::size_t>(tensor.range.end), matrix,
                         static_cast<std::size_t>(block)});
  }
  for (int r = 0; r < run.ranks(); ++r) s.owners.push_back(static_cast<std::size_t>(owned_range(run.size(), r, run.ranks()).begin));
  s.owners.push_back(static_cast<std::size_t>(run.size()));
  s.density = [schedule = options.density](std::int64_t t) {
    const double warmup = schedule.density_warmup_fraction * total_steps;
    return static_cast<double>(t) < warmup ? std::pow(schedule.density, static_cast<double>(t) / warmup) : schedule.density;
  };
  if (options.mask_owner == MaskOwner::tensors) {  // the largest first, each to the rank that has least
    std::vector<std::size_t> order(s.tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return s.tensors[a].end - s.tensors[a].begin > s.tensors[b].end - s.tensors[b].begin;
    });
    std::vector<std::size_t> load(static_cast<std::size_t>(run.ranks()));
    s.tensor_owners.resize(s.tensors.size());
    for (const std::size_t i : order) {
      if (!s.tensors[i].matrix) continue;
      const auto least = std::min_element(load.begin(), load.end());
      s.tensor_owners[i] = static_cast<std::size_t>(least - load.begin());
      *least += s.tensors[i].end - s.tensors[i].begin;
    }
  }
  s.statistic = std::map<MaskStatistic, decltype(s.statistic)>{{MaskStatistic::candidate, ScapeOracle::Settings::candidate},
                                                               {MaskStatistic::gradient, ScapeOracle::Settings::raw_gradient},
                                                               {MaskStatistic::update, ScapeOracle::Settings::update},
                                                               {MaskStatistic::momentum, ScapeOracle::Settings::momentum},
                                                               {MaskStatistic::random, ScapeOracle::Settings::random}}
                    .at(options.mask_statistic);
  s.scope = options.mask_scope == MaskScope::tensor  ? ScapeOracle::Settings::tensor
            : options.mask_scope == MaskScope::shard ? ScapeOracle::Settings::shard
                                                     : ScapeOracle::Settings::global;
  s.random_number = [](std::int64_t t, std::size_t j) {  // the seed of Rig::method_context is 1
    return static_cast<double>(philox(1, std::uint64_t{0x6d61736b} << 32 | static_cast<std::uint64_t>(t), j / 4)[j % 4] >> 8);
  };
  s.sharded = options.form == ScapeFormKind::sharded;
  s.mask_delay = options.mask_delay;
  s.mask_refresh = options.mask_refresh;
  s.beta1 = common.beta1;
  s.beta2 = common.beta2;
  s.epsilon = common.epsilon;
  s.weight_decay = common.weight_decay;
  s.clip_norm = common.clip_norm;
  s.bias_correction = options.bias_correction == BiasCorrection::scape      ? ScapeOracle::Settings::scape
                      : options.bias_correction == BiasCorrection::official ? ScapeOracle::Settings::official
                                                                            : ScapeOracle::Settings::none;
  s.residual_scale = options.residual == ResidualPolicy::keep ? 1 : options.residual == ResidualPolicy::decay ? common.beta1 : 0;
  s.clip_local = options.clip == ClipPolicy::local;
  s.backlog_scaling = options.backlog_scaling == BacklogScaling::none     ? ScapeOracle::Settings::no_scaling
                      : options.backlog_scaling == BacklogScaling::linear ? ScapeOracle::Settings::linear
                                                                          : ScapeOracle::Settings::root;
  s.backlog_cap = options.backlog_cap;
  s.block_normaliser = options.normaliser == Normaliser::block;
  if (options.payload != PayloadType::fp32) {
    s.code = [format = QuantFormat{.code = options.payload == PayloadType::bf16 ? QuantCode::bf16 : QuantCode::e5m2}](
                 ScapeOracle::Vector& values) {
      std::vector<float> x(values.begin(), values.end());
      std::vector<std::uint8_t> records(static_cast<std::size_t>(quant_bytes(std::ssize(x), format)));
      quant_kernels(cpu_device).quantize(Span<float>(x), format, {}, std::span(records), {}, Stream());
      quant_kernels(cpu_device).dequantize(Span<std::uint8_t>(records), format, std::span(x), Stream());
      values.assign(x.begin(), x.end());
    };
  }
  const auto params = run.rig.values();
  return {s, {params.begin(), params.end()}};
}

// Steps the oracle with gradients whose norm varies around 2; they are drawn again where two candidates for the mask are too near
// to each other for a float to tell which is larger, or where the numbers behind a coordinate's ĝ cancel each other but for their
// rounding. With codes they are multiples of 2^−16, so that floats hold p exactly and its code is that of the oracle.
std::vector<ScapeOracle::Vector> gradients_that_floats_tell_apart(ScapeOracle& oracle, std::size_t ranks, std::int64_t t) {
  const std::size_t size = oracle.theta.size();
  const float scale = gradient_scale(size, t);
  std::vector<ScapeOracle::Vector> gradients(ranks, ScapeOracle::Vector(size));
  const ScapeOracle before = oracle;
  for (std::uint64_t seed = 7; seed == 7 || oracle.margin < 3e-5 || learning_rate * oracle.doubt > 2e-6; seed += 1'000'000'007) {
    require(seed < 1'000'000'000'000, ErrorKind::internal, "no gradients that floats tell apart");
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t j = 0; j < size; ++j) {
        gradients[r][j] = scale * normal_at(seed, t, static_cast<int>(r), static_cast<std::int64_t>(j));
        if (oracle.s.code) gradients[r][j] = 0x1p-16 * std::round(0x1p16 * gradients[r][j]);
      }
    }
    oracle = before;
    oracle.step(gradients, learning_rate);
  }
  return gradients;
}

// Runs both for `steps` steps.
void follow_oracle(const ParameterLayout& layout, const Scape::Options& options, const CommonOptions& common, std::int64_t steps) {
  ScapeRun run(layout, options, common);
  const std::int64_t size = layout.size();
  SCOPED_TRACE("size " + std::to_string(size));
  ScapeOracle oracle = make_oracle(run, options, common);
  const auto ranks = static_cast<std::size_t>(run.ranks());
  for (std::int64_t t = 1; t <= steps; ++t) {
    SCOPED_TRACE("step " + std::to_string(t));
    const float scale = gradient_scale(static_cast<std::size_t>(size), t);
    const auto gradients = gradients_that_floats_tell_apart(oracle, ranks, t);
    const auto& mine = gradients[static_cast<std::size_t>(run.rank())];
    const StepResult result = run.step([&](std::int64_t j) { return static_cast<float>(mine[static_cast<std::size_t>(j)]); });
    if (::testing::Test::HasFailure()) continue;  // one failure is enough, but the other ranks still need this one
    EXPECT_TRUE(result.applied);
    EXPECT_EQ(run.mask(), oracle.mask);
    const double norm = oracle.s.clip_local ? oracle.local_norms[static_cast<std::size_t>(run.rank())] : oracle.gradient_norm;
    EXPECT_NEAR(result.gradient_norm, norm, 1e-5 * norm + 5e-6);
    expect_close(run.rig.values(), oracle.theta, 1e-5, "theta");
    expect_close(run.m(), oracle.m, 1e-5, "m", 0.1 * scale);
    const auto& residual = oracle.e[static_cast<std::size_t>(run.rank())];
    expect_close(run.residual(), residual, 1e-5, "residual", 0.1 * scale);
    if (oracle.s.sharded) expect_close(run.carry(), oracle.q, 1e-5, "carry", 0.1 * scale);

    double squares = 0, selected = 0, common_bits = 0;
    for (std::size_t j = 0; j < residual.size(); ++j) {
      squares += residual[j] * residual[j];
      selected += oracle.mask[j] ? 1 : 0;
      common_bits += oracle.mask[j] && oracle.previous_mask[j] ? 1 : 0;
    }
    EXPECT_NEAR(result.residual_norm, std::sqrt(squares), 1e-4 * std::sqrt(squares) + 1e-6);
    EXPECT_DOUBLE_EQ(result.density, selected / static_cast<double>(size));
    if (t == 1) {
      EXPECT_TRUE(std::isnan(result.mask_overlap));
    } else {
      EXPECT_DOUBLE_EQ(result.mask_overlap, common_bits / selected);
    }
  }
}

void follow_oracle(std::int64_t size, const Scape::Options& options, const CommonOptions& common, std::int64_t steps) {
  follow_oracle(mixed_layout(size), options, common, steps);
}

TEST_P(ScapeSchedules, FollowsTheOracle) {
  for (const std::int64_t size : {1, 3, 19, 57}) follow_oracle(size, options(0.1, 0.3), exact_common(), total_steps);
  for (const std::int64_t size : {200, 1000}) follow_oracle(size, options(0.1, 0.3), exact_common(), total_steps);
}

TEST(ScapeOracleRuns, WithEveryBiasCorrectionDecaysAndClipping) {
  for (const Form& form : {replicated_form, sharded_form}) {
    Scape::Options options = in_form(form, options_with(0.05, 1, 1, 0.1));
    CommonOptions common;  // the defaults of a run
    for (const BiasCorrection correction : {BiasCorrection::scape, BiasCorrection::official, BiasCorrection::none}) {
      options.bias_correction = correction;
      follow_oracle(200, options, common, total_steps);
    }
    common.clip_norm = 0;
    follow_oracle(200, options, common, total_steps);
    follow_oracle(200, options, {.beta1 = 0, .beta2 = 0.5, .epsilon = 1e-3, .weight_decay = 0, .clip_norm = 0.25}, total_steps);
  }
}

// 6., in double: the forms are one algorithm. Their masks are equal and θ and m differ by rounding, as do the mean residual of the
// one and mean residual plus carry of the other.
TEST(ScapeOracleRuns, Check6OfBothFormsAreTheSame) {
  for (const std::int64_t delay : {0, 1, 2}) {
    for (const std::int64_t refresh : {1, 3}) {
      for (const std::size_t ranks : {1, 2, 3, 5}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, mask_delay " + std::to_string(delay) + ", refresh " +
                     std::to_string(refresh));
        ScapeOracle::Settings s;
        s.tensors = {{0, 90, true}, {90, 100, false}, {100, 200, true}};
        for (std::size_t r = 0; r <= ranks; ++r) s.owners.push_back(200 * r / ranks);
        s.density = [](std::int64_t t) { return std::max(0.1, 1 - 0.02 * static_cast<double>(t)); };
        s.mask_delay = delay;
        s.mask_refresh = refresh;
        ScapeOracle::Vector start(200);
        for (std::size_t j = 0; j < start.size(); ++j) start[j] = normal_at(3, 0, 0, static_cast<std::int64_t>(j));
        ScapeOracle one(s, start);
        s.sharded = true;
        ScapeOracle other(s, start);
        const auto expect_same = [](const ScapeOracle::Vector& a, const ScapeOracle::Vector& b, const char* what) {
          for (std::size_t j = 0; j < a.size(); ++j) ASSERT_NEAR(a[j], b[j], 1e-13 * (1 + std::abs(a[j]))) << what << " " << j;
        };
        for (std::int64_t t = 1; t <= 300; ++t) {
          SCOPED_TRACE("step " + std::to_string(t));
          std::vector<ScapeOracle::Vector> g(ranks, ScapeOracle::Vector(200));
          for (std::size_t r = 0; r < ranks; ++r) {
            for (std::size_t j = 0; j < 200; ++j)
              g[r][j] = 0.1 * normal_at(4, t, static_cast<int>(r), static_cast<std::int64_t>(j));
          }
          one.step(g, learning_rate);
          other.step(g, learning_rate);
          ASSERT_EQ(one.mask, other.mask);
          expect_same(one.theta, other.theta, "theta");
          expect_same(one.m, other.m, "m");
          ScapeOracle::Vector kept(200), kept_and_carried = other.q;
          for (std::size_t r = 0; r < ranks; ++r) {
            for (std::size_t j = 0; j < 200; ++j) {
              kept[j] += one.e[r][j] / static_cast<double>(ranks);
              kept_and_carried[j] += other.e[r][j] / static_cast<double>(ranks);
            }
          }
          expect_same(kept, kept_and_carried, "residual");
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(ScapeSchedules, FollowTheOracleWithEveryResidualAndClip) {
  for (const ResidualPolicy residual : {ResidualPolicy::keep, ResidualPolicy::decay, ResidualPolicy::none}) {
    for (const ClipPolicy clip : {ClipPolicy::recovered, ClipPolicy::local}) {
      if (residual == ResidualPolicy::keep && clip == ClipPolicy::recovered) continue;  // above
      if (GetParam().bucketed && clip == ClipPolicy::local) continue;                   // refused
      Scape::Options set = options(0.1, 0.3);
      set.residual = residual;
      set.clip = clip;
      follow_oracle(57, set, exact_common(), total_steps);
      follow_oracle(200, set, exact_common(), total_steps);
    }
  }
  if (GetParam().bucketed) return;
  Scape::Options unclipped = options(0.1, 0.3);
  unclipped.clip = ClipPolicy::local;
  CommonOptions common = exact_common();
  common.clip_norm = 0;
  follow_oracle(200, unclipped, common, total_steps);
}

// ---- masks: what is chosen, by whom, and how it travels ----

constexpr std::array all_statistics{MaskStatistic::candidate, MaskStatistic::gradient, MaskStatistic::update,
                                    MaskStatistic::momentum, MaskStatistic::random};
constexpr std::array all_scopes{MaskScope::tensor, MaskScope::shard, MaskScope::global};
constexpr std::array all_owners{MaskOwner::ranges, MaskOwner::tensors};
constexpr std::array all_codings{MaskCoding::bitmap, MaskCoding::index32, MaskCoding::index16, MaskCoding::elias_fano,
                                 MaskCoding::automatic};

// Made and used in one step, as in the paper, and with several masks on their way.
template <class Check>
void for_each_schedule(Check check, const Form& form = replicated_form) {
  for (const Schedule schedule : {Schedule{form, 0, 1}, Schedule{form, 1, 1}, Schedule{form, 5, 3}}) {
    SCOPED_TRACE(schedule);
    check(in_form(form, options_with(0.1, schedule.delay, schedule.refresh, 0.05)));
  }
}

// Each with every statistic, scope and owner.
template <class Check>
void for_each_choice(Check check, const Form& form = replicated_form) {
  for_each_schedule(
      [&](Scape::Options set) {
        for (const MaskStatistic statistic : all_statistics) {
          for (const MaskScope scope : all_scopes) {
            for (const MaskOwner owner : all_owners) {
              if (set.form == ScapeFormKind::sharded && owner != MaskOwner::ranges) continue;
              SCOPED_TRACE("statistic " + std::to_string(static_cast<int>(statistic)) + ", scope " +
                           std::to_string(static_cast<int>(scope)) + ", owner " + std::to_string(static_cast<int>(owner)));
              set.mask_statistic = statistic;
              set.mask_scope = scope;
              set.mask_owner = owner;
              check(set);
            }
          }
        }
      },
      form);
}

// A large ε: in the first step, where m = e = 0, all updates would otherwise be the same number but for rounding.
TEST(ScapeMasks, FollowTheOracleWithEveryStatisticScopeAndOwner) {
  CommonOptions common = exact_common();
  common.epsilon = 0.0625;
  for (const Form& form : {replicated_form, sharded_form}) {
    for_each_choice(
        [&](const Scape::Options& set) {
          for (const std::int64_t size : {3, 57}) follow_oracle(size, set, common, 8);
          follow_oracle(300, set, common, 12);
        },
        form);
  }
}

TEST(ScapeOracleRuns, UpdateStatisticWithEveryBiasCorrection) {
  CommonOptions common = exact_common();
  common.epsilon = 0.0625;
  Scape::Options set = options_with(0.1, 1, 1, 0.1);
  set.mask_statistic = MaskStatistic::update;
  for (const BiasCorrection correction : {BiasCorrection::scape, BiasCorrection::official, BiasCorrection::none}) {
    set.bias_correction = correction;
    follow_oracle(200, set, common, total_steps);
  }
}

TEST(ScapeOracleRuns, StatisticsOfGradientsThatLeaveInBuckets) {
  CommonOptions common = exact_common();
  common.epsilon = 0.0625;
  Scape::Options set = options_with(0.1, 1, 1, 0.1);
  set.buckets = {Overlap::bucketed, 40 * 4e-6};  // 40 coordinates
  for (const MaskStatistic statistic : {MaskStatistic::gradient, MaskStatistic::update}) {
    set.mask_statistic = statistic;
    follow_oracle(200, set, common, total_steps);
  }
}

TEST(ScapeOracleRuns, StatisticsOfGradientsThatAreClippedOnEachRank) {
  CommonOptions common = exact_common();
  common.epsilon = 0.0625;
  common.clip_norm = 0.25;
  Scape::Options set = options_with(0.1, 1, 1, 0.1);
  set.clip = ClipPolicy::local;
  set.mask_scope = MaskScope::global;
  for (const MaskStatistic statistic : {MaskStatistic::gradient, MaskStatistic::update}) {
    set.mask_statistic = statistic;
    follow_oracle(200, set, common, total_steps);
  }
}

TEST(ScapeMasks, EveryStatisticChoosesDifferently) {
  std::set<std::vector<bool>> masks;
  for (const MaskStatistic statistic : all_statistics) {
    Scape::Options set = options_with(0.1, 0, 1);
    set.mask_statistic = statistic;
    ScapeRun run(1000, set, CommonOptions{});
    for (int i = 0; i < 3; ++i) run.random_step();
    masks.insert(run.mask());
  }
  EXPECT_EQ(masks.size(), all_statistics.size());
}

// A control must not depend on who chooses, nor repeat itself.
TEST(ScapeMasks, RandomMasksAreNewInEveryStepAndTheSameForEveryNumberOfRanks) {
  Scape::Options set = options_with(0.1, 0, 1);
  set.mask_statistic = MaskStatistic::random;
  set.mask_scope = MaskScope::global;
  ScapeRun many(1000, set, exact_common());
  ScapeRun one(1000, set, exact_common(), Streams::immediate, MPI_COMM_SELF);
  std::vector<bool> previous;
  for (int i = 0; i < 5; ++i) {
    many.random_step();
    one.random_step();
    EXPECT_EQ(many.mask(), one.mask());
    EXPECT_NE(many.mask(), previous);
    previous = many.mask();
  }
}

// Ties across ranks: the lowest coordinates of all, whoever owns them. As whole tensors, rank 0 owns the larger w2 and the next
// rank w1, whose coordinates are lower.
TEST(ScapeMasks, GlobalTiesGoToTheLowestCoordinates) {
  ParameterLayout layout;
  layout.add("w1", {200}, TensorRole::matrix);
  layout.add("b", {70}, TensorRole::vector);
  layout.add("w2", {500}, TensorRole::matrix);
  for (const MaskOwner owner : all_owners) {
    Scape::Options set = options_with(0.3, 0, 1);
    set.mask_scope = MaskScope::global;
    set.mask_owner = owner;
    Rig rig(layout, MPI_COMM_WORLD);
    Scape method(set, exact_common(), rig.method_context(total_steps));
    rig.step(method, 1, learning_rate, [](std::int64_t j) { return j == 700 ? 2.0F : j % 2 == 0 ? 1.0F : -1.0F; });
    for (std::int64_t j = 0; j < 770; ++j) {
      // ⌊0.3 · 700⌋ = 210: w1, the largest one in w2, and the first 9 there
      const bool chosen = j < 279 || j == 700;
      EXPECT_EQ((method.mask().words.data()[j / 64] >> j % 64 & 1) != 0, chosen) << j;
    }
  }
}

// before_use: a step ends while its gather is held up. before_forward: it does not.
TEST(ScapeMasks, TheGatherIsWaitedForWhereToldTo) {
  for (const MaskWait wait : {MaskWait::before_use, MaskWait::before_forward}) {
    Scape::Options set = options_with(0.1, 2, 1);
    set.mask_wait = wait;
    ScapeRun run(200, set, exact_common(), Streams::queued);
    const bool held = wait == MaskWait::before_use;
    std::promise<void> release;
    std::atomic<int> gathered = 0;
    run.rig.comm =
        std::make_unique<Communicator>(std::make_unique<SlowTransport>(detail::make_mpi_transport(MPI_COMM_WORLD, 50), [&] {
          if (held) {
            release.get_future().wait();
          } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
          ++gathered;
        }));
    EXPECT_TRUE(run.random_step().applied);
    EXPECT_EQ(gathered, held ? 0 : 1);
    if (held) release.set_value();
    run.rig.comm_stream.synchronize();
    EXPECT_EQ(gathered, 1);
  }
}

// What a device or a form cannot do is refused when the method is made.
TEST(ScapeMasks, RefusesWhatADeviceCannotDo) {
  const ParameterLayout layout = mixed_layout(200);  // with vectors between the matrices
  const MethodContext gpu{layout, {DeviceKind::cuda, 0}, 0, 1, total_steps, 1};
  const auto make = [&](const Scape::Options& set) {
    const MaskChoice choice(set, exact_common(), gpu);
    const MaskGather gather(set, gpu, choice.parts());
  };
  const auto refused = [&](const Scape::Options& set) { return message_of(ErrorKind::usage, [&] { make(set); }); };
  EXPECT_NO_THROW(make({}));
  EXPECT_THAT(refused({.density = {}, .mask_scope = MaskScope::global, .buckets = {}}), HasSubstr("mask_scope = global"));
  EXPECT_THAT(refused({.density = {}, .mask_scope = MaskScope::shard, .buckets = {}}), HasSubstr("mask_scope = shard"));
  EXPECT_THAT(refused({.density = {}, .mask_owner = MaskOwner::tensors, .buckets = {}}), HasSubstr("mask_owner = tensors"));
  EXPECT_THAT(refused({.density = {}, .mask_coding = MaskCoding::index16, .buckets = {}}), HasSubstr("mask_coding"));
}

// How a mask travels, when it is waited for, and queues and slow collectives change no bit of a run; what was counted is what was
// announced.
TEST(ScapeMasks, CodingsAndWaitsChangeNoBit) {
  constexpr int steps = 10;
  for_each_schedule([&](const Scape::Options& common_set) {
    for (const MaskOwner owner : all_owners) {
      for (const MaskScope scope : all_scopes) {
        const auto trajectory = [&](MaskCoding coding, MaskWait wait, Streams streams, bool slow) {
          Scape::Options set = common_set;
          set.mask_owner = owner;
          set.mask_scope = scope;
          set.mask_coding = coding;
          set.mask_wait = wait;
          ScapeRun run(1000, set, exact_common(), streams);
          if (slow) {
            run.rig.comm =
                std::make_unique<Communicator>(std::make_unique<SlowTransport>(detail::make_mpi_transport(MPI_COMM_WORLD, 50)));
          }
          std::vector<std::vector<float>> params;
          for (std::int64_t t = 1; t <= steps; ++t) {
            const double before = run.rig.comm->traffic().total().wire_bytes;
            EXPECT_TRUE(run.random_step().applied);
            const double sent = run.rig.comm->traffic().total().wire_bytes - before;
            EXPECT_NEAR(sent, run.method.expected_wire_bytes(t), 1e-9 * sent)
                << "coding " << static_cast<int>(coding) << ", step " << t;
            params.push_back(run.rig.values());
          }
          return std::pair(params, snapshot(run));
        };
        const auto reference = trajectory(MaskCoding::bitmap, MaskWait::before_use, Streams::immediate, false);
        for (const MaskCoding coding : all_codings) {
          SCOPED_TRACE("owner " + std::to_string(static_cast<int>(owner)) + ", scope " + std::to_string(static_cast<int>(scope)) +
                       ", coding " + std::to_string(static_cast<int>(coding)));
          for (const MaskWait wait : {MaskWait::before_use, MaskWait::before_forward}) {
            EXPECT_TRUE(trajectory(coding, wait, Streams::immediate, false) == reference) << "immediate";
            EXPECT_TRUE(trajectory(coding, wait, Streams::queued, false) == reference) << "queued";
          }
          EXPECT_TRUE(trajectory(coding, MaskWait::before_use, Streams::queued, true) == reference) << "queued and slow";
        }
      }
    }
  });
}

// The bytes of a mask on the wire: those of the formulas for what each owner chose.
TEST(ScapeMasks, CodedMasksTakeTheBytesOfTheirFormulas) {
  ParameterLayout layout;
  layout.add("w", {10000}, TensorRole::matrix);
  layout.add("b", {100}, TensorRole::vector);
  const auto gathered = [&](MaskCoding coding) {
    Scape::Options set = options_with(0.01, 1, 1);
    set.mask_owner = MaskOwner::tensors;  // all of it belongs to rank 0
    set.mask_coding = coding;
    Rig rig(layout, MPI_COMM_WORLD);
    Scape method(set, exact_common(), rig.method_context(total_steps));
    rig.step(method, 1, learning_rate, [&](std::int64_t j) { return normal_at(3, 1, rig.comm->rank(), j); });
    return rig.comm->traffic()[Collective::all_gather].payload_bytes;
  };
  EXPECT_EQ(gathered(MaskCoding::bitmap), 1250);
  EXPECT_EQ(gathered(MaskCoding::index32), 400);
  EXPECT_EQ(gathered(MaskCoding::index16), 204);
  EXPECT_EQ(gathered(MaskCoding::elias_fano), 75 + 32);  // 6 low bits each; 100 + ⌊9999/64⌋ high ones
  EXPECT_EQ(gathered(MaskCoding::automatic), 107);
}

// A refused step, and a save between making and using a mask, with everything that is not the default.
TEST(ScapeMasks, RefuseAndContinueWithEveryChoice) {
  for_each_choice([&](Scape::Options set) {
    set.mask_coding = MaskCoding::automatic;
    ScapeRun whole(200, set, exact_common(), Streams::queued);
    ScapeRun resumed(200, set, exact_common(), Streams::queued);
    for (std::int64_t t = 1; t <= 6; ++t) {
      const Snapshot before = snapshot(resumed);
      const StepResult refused =
          resumed.step([&](std::int64_t j) { return j == 37 && resumed.rank() == t % resumed.ranks() ? infinity : 1.0F; });
      EXPECT_FALSE(refused.applied);
      EXPECT_TRUE(snapshot(resumed) == before) << t;
      ScapeRun fresh(200, set, exact_common(), Streams::queued);
      restore(fresh, before, t);
      resumed.next_step = t;
      for (ScapeRun* run : {&whole, &resumed, &fresh}) EXPECT_TRUE(run->random_step().applied);
      EXPECT_TRUE(snapshot(resumed) == snapshot(whole)) << t;
      EXPECT_TRUE(snapshot(fresh) == snapshot(whole)) << t;
      const Snapshot now = snapshot(whole);
      EXPECT_TRUE(same_on_all_ranks(now.params.data(), now.params.size() * sizeof(float), MPI_COMM_WORLD)) << t;
    }
  });
}

// ---- exact checks: those that the algorithm's specification numbers, and others ----

// 1. d = 1: dense AdamS to rounding.
TEST(ScapeLaws, Check1FullDensityIsDenseAdamS) {
  Registry registry;
  register_core(registry);
  for (const char* correction : {"scape", "official", "none"}) {
    for (const auto& [form, delay] :
         {std::pair{"replicated", 0}, {"replicated", 1}, {"replicated", 5}, {"sharded", 0}, {"sharded", 5}}) {
      std::vector<std::unique_ptr<Optimizer>> methods;
      std::vector<std::unique_ptr<Rig>> rigs;
      for (const char* name : {"scape", "adams"}) {
        MethodChoice choice(registry, name, "");
        OptionTable table;
        choice.declare(table);
        table.set({"bias_correction", correction, "test"});
        if (table.contains("density")) {
          table.set({"density", "1", "test"});
          table.set({"mask_delay", std::to_string(delay), "test"});
          table.set({"form", form, "test"});
        }
        rigs.push_back(std::make_unique<Rig>(mixed_layout(200), MPI_COMM_WORLD));
        methods.push_back(choice.make(rigs.back()->method_context(total_steps)));
      }
      for (std::int64_t t = 1; t <= 50; ++t) {
        std::vector<StepResult> results;
        for (std::size_t i = 0; i < 2; ++i) {
          results.push_back(rigs[i]->step(*methods[i], t, learning_rate,
                                          [&](std::int64_t j) { return 0.2F * normal_at(8, t, rigs[i]->comm->rank(), j); }));
        }
        EXPECT_EQ(results[0].density, 1);
        EXPECT_NEAR(results[0].gradient_norm, results[1].gradient_norm, 1e-5 * results[1].gradient_norm);
      }
      const auto dense = rigs[1]->values();
      expect_close(rigs[0]->values(), {dense.begin(), dense.end()}, 5e-6, "theta");
    }
  }
}

// 2. Without clipping nothing is lost: (m + mean e)_t − (m + mean e)_{t−1} = (1−β1) (mean g_t − m_{t−1}).
TEST_P(ScapeSchedules, Check2MomentumAndResidualTogetherLoseNothing) {
  CommonOptions common = exact_common();
  common.clip_norm = 0;
  ScapeRun run(200, options(), common);
  const auto mean = [&](const std::vector<float>& values) {
    std::vector<double> sum(values.begin(), values.end());
    MPI_Allreduce(MPI_IN_PLACE, sum.data(), static_cast<int>(sum.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (double& x : sum) x /= run.ranks();
    return sum;
  };
  std::vector<double> backlog(200);
  std::vector<float> m(200);
  for (int i = 0; i < 30; ++i) {
    const auto gradient = run.random_gradient(run.next_step);
    std::vector<float> g(200);
    for (std::size_t j = 0; j < g.size(); ++j) g[j] = gradient(static_cast<std::int64_t>(j));
    run.random_step();
    const auto mean_gradient = mean(g);
    auto mean_residual = mean(run.residual());
    if (is_sharded()) {
      const auto carry = run.carry();
      for (std::size_t j = 0; j < carry.size(); ++j) mean_residual[j] += carry[j];
    }
    const auto m_now = run.m();
    for (std::size_t j = 0; j < g.size() && !HasFailure(); ++j) {
      const double now = m_now[j] + mean_residual[j];
      EXPECT_NEAR(now - backlog[j], (1 - common.beta1) * (mean_gradient[j] - m[j]), 1e-6)
          << "step " << i + 1 << ", coordinate " << j;
      backlog[j] = now;
    }
    m = m_now;
  }
}

// 6. The sharded form has the masks of the replicated one, and m and θ but for rounding; with clipping and decay.
void expect_forms_agree(std::int64_t size, const Scape::Options& replicated, const Scape::Options& sharded) {
  ScapeRun one(size, replicated, exact_common());
  ScapeRun other(size, sharded, exact_common());
  ScapeOracle oracle = make_oracle(one, replicated, exact_common());
  for (std::int64_t t = 1; t <= total_steps; ++t) {
    SCOPED_TRACE("size " + std::to_string(size) + ", step " + std::to_string(t));
    const auto gradients = gradients_that_floats_tell_apart(oracle, static_cast<std::size_t>(one.ranks()), t);
    const auto& mine = gradients[static_cast<std::size_t>(one.rank())];
    const auto gradient = [&](std::int64_t j) { return static_cast<float>(mine[static_cast<std::size_t>(j)]); };
    const StepResult expected = one.step(gradient);
    const StepResult result = other.step(gradient);
    const auto theta = one.rig.values();
    const auto m = one.m();
    const auto m_in_shards = other.m();
    if (::testing::Test::HasFailure()) continue;
    EXPECT_EQ(other.mask(), one.mask());
    expect_close(other.rig.values(), {theta.begin(), theta.end()}, 1e-5, "theta");
    expect_close(m_in_shards, {m.begin(), m.end()}, 1e-5, "m");
    EXPECT_NEAR(result.gradient_norm, expected.gradient_norm, 1e-5 * expected.gradient_norm);
    EXPECT_EQ(result.density, expected.density);
  }
}
TEST(ScapeLaws, Check6ShardedFormIsTheReplicatedOneButForRounding) {
  for (const std::int64_t delay : {0, 1, 2}) {
    for (const std::int64_t refresh : {1, 3}) {
      for (const Form& form : {sharded_form, sharded_all_reduce_form}) {
        SCOPED_TRACE(std::string(form.name) + ", mask_delay " + std::to_string(delay) + ", mask_refresh " +
                     std::to_string(refresh));
        const Scape::Options options = options_with(0.1, delay, refresh, 0.3);
        for (const std::int64_t size : {57, 400}) expect_forms_agree(size, options, in_form(form, options));
      }
    }
  }
  const Scape::Options options = options_with(0.03, 1, 1);
  expect_forms_agree(1000, options, in_form(sharded_form, options));
}

TEST(ScapeLaws, OptionsOfTheOtherFormAreRefused) {
  Scape::Options options = options_with(0.1, 1, 1);
  options.sharded_payload = ShardedPayload::all_reduce;
  EXPECT_THAT(refusal(options), HasSubstr("sharded_payload = all_reduce needs form = sharded"));
  options = in_form(sharded_form, options_with(0.1, 1, 1));
  options.mask_owner = MaskOwner::tensors;
  EXPECT_THAT(refusal(options), HasSubstr("mask_owner = tensors needs form = replicated"));
}

// 3. m is 0 off the mask. 4. Off the mask θ changes by the factor 1 − ηλ only. 5. All ranks hold the same bits. And the mask has
// exactly the announced size, holds every vector, and the residual is 0 on it.
TEST_P(ScapeSchedules, Checks3To5MomentumDecayAndReplicasOfEveryStep) {
  const CommonOptions common = exact_common();
  const Scape::Options set = options(0.1, 0.2);
  ScapeRun run(1000, set, common, Streams::queued);
  const float keep = 1 - static_cast<float>(learning_rate) * static_cast<float>(common.weight_decay);
  for (std::int64_t t = 1; t <= 40; ++t) {
    SCOPED_TRACE("step " + std::to_string(t));
    const auto before = run.rig.values();
    const StepResult result = run.random_step();
    const auto after = run.rig.values();
    const auto m = run.m();
    const auto e = run.residual();
    const auto mask = run.mask();
    for (const ParameterTensor& tensor : run.rig.layout.tensors()) {
      for (auto j = static_cast<std::size_t>(tensor.range.begin); j < static_cast<std::size_t>(tensor.range.end) && !HasFailure();
           ++j) {
        if (mask[j]) {
          EXPECT_EQ(e[j], 0) << j;
        } else {
          EXPECT_EQ(tensor.role, TensorRole::matrix) << j;
          EXPECT_EQ(m[j], 0) << j;
          EXPECT_EQ(after[j], keep * before[j]) << j;
        }
      }
    }
    const std::int64_t count = std::count(mask.begin(), mask.end(), true);
    const std::int64_t made = t - set.mask_delay < 1 ? 0 : t - set.mask_delay - (t - set.mask_delay - 1) % set.mask_refresh;
    EXPECT_EQ(count, made < 1 ? 1000 : run.method.mask_count(set.density.at(made + set.mask_delay, total_steps)));
    EXPECT_EQ(run.method.mask().count, count);
    EXPECT_DOUBLE_EQ(result.density, static_cast<double>(count) / 1000);
    std::vector<std::byte> replicated(reinterpret_cast<const std::byte*>(after.data()),
                                      reinterpret_cast<const std::byte*>(after.data() + after.size()));
    for (const StateEntry& entry : run.method.state()) {
      if (entry.scope != StateScope::replicated) continue;
      replicated.insert(replicated.end(), entry.bytes.data(), entry.bytes.data() + entry.bytes.size());
    }
    EXPECT_TRUE(same_on_all_ranks(replicated.data(), replicated.size(), MPI_COMM_WORLD)) << "theta, m or a mask differs";
  }
  const auto residual = run.residual();  // each rank's own
  EXPECT_EQ(same_on_all_ranks(residual.data(), residual.size() * sizeof(float), MPI_COMM_WORLD), run.ranks() == 1);
}

// 7. Neither queues nor slow and uneven collectives change a bit.
TEST_P(ScapeSchedules, Check7StreamsAndSlowCollectivesChangeNoBit) {
  constexpr int steps = 25;
  const auto trajectory = [&](bool queued_compute, bool queued_comm, bool slow) {
    ScapeRun run(500, options(0.1, 0.1), exact_common());
    if (queued_compute) run.rig.stream = Stream(cpu_device);
    if (queued_comm) run.rig.comm_stream = Stream(cpu_device);
    auto transport = detail::make_mpi_transport(MPI_COMM_WORLD, 50);  // in pieces, whose order of additions is their own
    if (slow) transport = std::make_unique<SlowTransport>(std::move(transport));
    run.rig.comm = std::make_unique<Communicator>(std::move(transport));
    std::vector<std::vector<float>> params;
    for (int i = 0; i < steps; ++i) {
      EXPECT_TRUE(run.random_step().applied);
      params.push_back(run.rig.values());
    }
    return std::pair(params, snapshot(run));
  };
  const auto reference = trajectory(false, false, false);
  EXPECT_TRUE(trajectory(false, true, false) == reference) << "communication on a queue";
  EXPECT_TRUE(trajectory(true, true, false) == reference) << "both on queues";
  EXPECT_TRUE(trajectory(true, false, false) == reference) << "compute on a queue";
  EXPECT_TRUE(trajectory(false, true, true) == reference) << "slow communication on a queue";
  EXPECT_TRUE(trajectory(true, true, true) == reference) << "slow communication, both on queues";
}

// 8. Counted bytes are those of the formula.
TEST_P(ScapeSchedules, Check8CountedBytesEqualTheFormula) {
  const Scape::Options set = options(0.1, 0.2);
  ScapeRun run(1000, set, exact_common());
  const double share = (run.ranks() - 1.0) / run.ranks();
  for (std::int64_t t = 1; t <= 30; ++t) {
    const Traffic before = run.rig.comm->traffic();
    const StepResult result = run.random_step();
    const Traffic sent = run.rig.comm->traffic().since(before);
    const bool makes_mask = (t - 1) % set.mask_refresh == 0;
    const std::int64_t payloads = GetParam().bucketed ? 6 : 1;  // both vectors whole, both pieces of both matrices
    const bool scatters = is_sharded() && set.sharded_payload == ShardedPayload::reduce_scatter;
    const double values = result.density * 1000;
    const double mask = makes_mask ? 8 * std::ceil(1000.0 / 64) : 0;
    // Replicated: payload with a flag. Sharded: payload, parameters, and two sums in one collective.
    EXPECT_EQ(sent[Collective::all_reduce].calls, is_sharded() && !scatters ? 2 : payloads) << t;
    EXPECT_EQ(sent[Collective::reduce_scatter].calls, scatters ? 1 : 0) << t;
    EXPECT_EQ(sent[Collective::all_gather].calls, (is_sharded() ? 1 : 0) + (makes_mask ? 1 : 0)) << t;
    EXPECT_EQ(sent.total().calls, (is_sharded() ? 3 : payloads) + (makes_mask ? 1 : 0)) << t;
    const double reduced = (scatters ? 0 : 4 * values) + (is_sharded() ? 16 : 4);
    const double gathered = (is_sharded() ? 4 * values : 0) + mask;
    EXPECT_EQ(static_cast<double>(sent[Collective::all_reduce].payload_bytes), reduced) << t;
    EXPECT_EQ(static_cast<double>(sent[Collective::reduce_scatter].payload_bytes), scatters ? 4 * values : 0) << t;
    EXPECT_EQ(static_cast<double>(sent[Collective::all_gather].payload_bytes), gathered) << t;
    const double wire = share * (2 * reduced + (scatters ? 4 * values : 0) + gathered);
    EXPECT_NEAR(sent.total().wire_bytes, wire, 1e-9 * wire) << t;
    EXPECT_NEAR(run.method.expected_wire_bytes(t), wire, 1e-9 * wire) << t;
  }
}

// Also in and after steps that were refused while the density falls.
TEST_P(ScapeSchedules, Check8CountedBytesEqualTheFormulaAfterRefusedSteps) {
  ScapeRun run(1000, options(0.1, 0.3), exact_common());
  for (std::int64_t t = 1; t <= 40; ++t) {
    const double before = run.rig.comm->traffic().total().wire_bytes;
    const auto gradient = run.random_gradient(t);
    const bool bad = t % 4 == 1 && run.rank() == 0;
    const StepResult result = run.step([&](std::int64_t j) { return bad && j == 500 ? infinity : gradient(j); });
    EXPECT_EQ(result.applied, t % 4 != 1);
    const double sent = run.rig.comm->traffic().total().wire_bytes - before;
    EXPECT_NEAR(run.method.expected_wire_bytes(t), sent, 1e-9 * sent) << t;
  }
}

// 9. A coordinate that enters the mask moves by η (1−β1)/√(1−β2), whatever its backlog.
TEST_P(ScapeSchedules, Check9EnteringCoordinateMovesByOneUnit) {
  CommonOptions common = exact_common();
  common.clip_norm = 0;
  common.weight_decay = 0;
  common.epsilon = 0;
  Scape::Options set = options();
  set.bias_correction = BiasCorrection::none;
  ScapeRun run(200, set, common);
  const double unit = learning_rate * (1 - common.beta1) / std::sqrt(1 - common.beta2);
  std::vector<bool> previous(200, true);
  int entered = 0;
  for (int i = 0; i < 40; ++i) {
    const auto before = run.rig.values();
    run.random_step();
    const auto after = run.rig.values();
    const auto mask = run.mask();
    for (std::size_t j = 0; j < mask.size(); ++j) {
      if (!mask[j] || previous[j]) continue;
      ++entered;
      EXPECT_NEAR(std::abs(after[j] - before[j]), unit, 1e-6) << "step " << i + 1 << ", coordinate " << j;
    }
    previous = mask;
  }
  EXPECT_GT(entered, 20);
}

// 10. Saved after any step, also between the making and the use of a mask, a run continues with the same bits.
TEST_P(ScapeSchedules, Check10ContinuesFromEveryStepWithTheSameBits) {
  constexpr std::int64_t steps = 13;
  for (const Streams streams : {Streams::immediate, Streams::queued}) {
    ScapeRun whole(200, options(0.1, 0.05), exact_common(), streams);
    std::vector<Snapshot> after{snapshot(whole)};
    for (std::int64_t t = 1; t <= steps; ++t) {
      whole.random_step();
      after.push_back(snapshot(whole));
    }
    for (std::int64_t t = 0; t <= steps; ++t) {
      ScapeRun resumed(200, options(0.1, 0.05), exact_common(), streams);
      resumed.random_step();  // what it held before must not matter
      restore(resumed, after[static_cast<std::size_t>(t)], t + 1);
      EXPECT_TRUE(snapshot(resumed) == after[static_cast<std::size_t>(t)]) << "restoring after step " << t;
      while (resumed.next_step <= steps) {
        resumed.random_step();
        EXPECT_TRUE(snapshot(resumed) == after[static_cast<std::size_t>(resumed.next_step - 1)])
            << "saved after step " << t << ", step " << resumed.next_step - 1 << ", "
            << (streams == Streams::queued ? "queued" : "immediate");
      }
    }
  }
}

// Case 5: what is not finite on one rank is refused by all, changes nothing, and the next step is as if it had not been.
TEST_P(ScapeSchedules, RefusesTogetherAndForgetsTheStep) {
  constexpr std::int64_t steps = 12;
  for (const Streams streams : {Streams::immediate, Streams::queued}) {
    ScapeRun whole(200, options(0.1, 0.05), exact_common(), streams);
    ScapeRun disturbed(200, options(0.1, 0.05), exact_common(), streams);
    int refused = 0;
    for (std::int64_t t = 1; t <= steps; ++t) {
      SCOPED_TRACE("step " + std::to_string(t));
      for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
        const int culprit = refused++ % whole.ranks();
        const std::int64_t where = 37 * refused % 200;
        const auto gradient = disturbed.random_gradient(99);
        const Snapshot before = snapshot(disturbed);
        const auto mask_before = t > 1 ? disturbed.mask() : std::vector<bool>();
        const StepResult result =
            disturbed.step([&](std::int64_t j) { return disturbed.rank() == culprit && j == where ? bad : gradient(j); });
        --disturbed.next_step;
        EXPECT_FALSE(result.applied);
        EXPECT_TRUE(std::isnan(result.gradient_norm));
        EXPECT_TRUE(snapshot(disturbed) == before) << bad << " on rank " << culprit;
        if (t == 1) continue;
        EXPECT_EQ(disturbed.mask(), mask_before);
        const MaskView view = disturbed.method.mask();
        for (std::int64_t block = 0, sum = 0; block < view.offsets.size(); ++block) {
          EXPECT_EQ(view.offsets.host()[static_cast<std::size_t>(block)], sum);
          for (std::int64_t w = 8 * block; w < std::min(8 * block + 8, view.words.size()); ++w)
            sum += std::popcount(view.words.data()[w]);
        }
      }
      const StepResult undisturbed = whole.random_step();
      const StepResult result = disturbed.random_step();
      EXPECT_TRUE(result.applied);
      EXPECT_EQ(result.gradient_norm, undisturbed.gradient_norm);
      if (t > 1) {
        EXPECT_EQ(result.mask_overlap, undisturbed.mask_overlap);
      }
      EXPECT_TRUE(snapshot(disturbed) == snapshot(whole));
    }
  }
}

// Finite on every rank, but not as a sum: refused as well. The largest gradients that do not overflow pass, clipped.
TEST_P(ScapeSchedules, SumsThatOverflowAreRefused) {
  CommonOptions common = exact_common();
  common.beta1 = 0;
  ScapeRun run(57, options(), common);
  ASSERT_EQ(run.rig.layout.tensor("b1").range, (Range{22, 28}));  // always on the mask
  run.random_step();
  const Snapshot before = snapshot(run);
  const StepResult result = run.step([](std::int64_t j) { return j == 25 ? std::numeric_limits<float>::max() : 0.0F; });
  EXPECT_EQ(result.applied, run.ranks() == 1);
  if (!result.applied) {
    EXPECT_TRUE(snapshot(run) == before);
  }
  const StepResult large = run.step([](std::int64_t) { return 1e30F; });
  EXPECT_TRUE(large.applied);
  for (const float x : run.rig.values()) EXPECT_TRUE(std::isfinite(x));
}

// Case 7: a gradient of ones on every rank gives the update of one rank.
TEST_P(ScapeSchedules, EqualGradientsGiveTheUpdateOfOneRank) {
  for (const double density : {0.3, 1.0}) {
    ScapeRun many(57, options(density), exact_common());  // one mask word: its owner chooses as one rank would
    ScapeRun one(57, options(density), exact_common(), Streams::immediate, MPI_COMM_SELF);
    for (int i = 0; i < 10; ++i) {
      many.step([](std::int64_t) { return 1.0F; });
      one.step([](std::int64_t) { return 1.0F; });
      const auto expected = one.rig.values();
      expect_close(many.rig.values(), {expected.begin(), expected.end()}, 1e-6, "theta");
      EXPECT_EQ(many.mask(), one.mask());
    }
  }
}

// Case 15: a mean gradient of norm 5 and clip 1: the coefficient is 0.2 for every number of ranks, and the norm is recorded.
TEST(ScapeLaws, ClipsTheMeanGradientByItsNorm) {
  for (const Form& form : {replicated_form, sharded_form, sharded_all_reduce_form}) {
    const CommonOptions common = exact_common();
    ScapeRun run(57, in_form(form, options_with(0.1, 1, 1)), common);
    const auto share = static_cast<float>(run.ranks());  // all of it on the last rank
    const StepResult result =
        run.step([&](std::int64_t j) { return run.rank() == run.ranks() - 1 && j < 25 ? (j % 2 == 0 ? share : -share) : 0.0F; });
    EXPECT_NEAR(result.gradient_norm, 5, 1e-6) << form.name;
    const auto m = run.m();
    for (std::size_t j = 0; j < m.size(); ++j) {
      EXPECT_NEAR(m[j], j < 25 ? (j % 2 == 0 ? 1 : -1) * 0.2 * (1 - common.beta1) : 0, 1e-7) << form.name << " " << j;
    }
  }
}

// Clipped locally: a gradient of norm 5 enters c as one of norm 1 on the rank that has it, before the mean, and its norm is
// recorded.
TEST(ScapeLaws, ClipsTheGradientOfARankByItsOwnNorm) {
  const CommonOptions common = exact_common();
  Scape::Options options = options_with(0.1, 1, 1);
  options.clip = ClipPolicy::local;
  ScapeRun run(57, options, common);
  const bool last = run.rank() == run.ranks() - 1;
  const StepResult result = run.step([&](std::int64_t j) { return j < 25 ? (last ? 1.0F : 0.1F) : 0.0F; });
  EXPECT_NEAR(result.gradient_norm, last ? 5 : 0.5, 1e-6);
  const auto m = run.m();  // everything is on the first mask
  const double mean = (0.2 + (run.ranks() - 1) * 0.1) / run.ranks();
  for (std::size_t j = 0; j < m.size(); ++j) EXPECT_NEAR(m[j], j < 25 ? (1 - common.beta1) * mean : 0, 1e-7) << j;
}

// What leaves the residual: nothing, β1 of it a step, or all.
TEST(ScapeLaws, ResidualIsKeptDecayedOrDropped) {
  const CommonOptions common = exact_common();
  std::vector<std::vector<float>> runs;
  for (const ResidualPolicy residual : {ResidualPolicy::keep, ResidualPolicy::decay, ResidualPolicy::none}) {
    Scape::Options options = options_with(0.1, 1, 1);
    options.residual = residual;
    ScapeRun run(200, options, common);
    for (int i = 0; i < 10; ++i) {
      const auto m = run.m();
      const auto e = run.residual();
      const auto gradient = run.random_gradient(run.next_step);
      const StepResult result = run.random_step();
      const auto now = run.residual();
      const auto mask = run.mask();
      const auto b1 = static_cast<float>(common.beta1);
      const float part = residual == ResidualPolicy::keep ? 1 : residual == ResidualPolicy::decay ? b1 : 0;
      double squares = 0;
      for (std::size_t j = 0; j < now.size(); ++j) {
        const float c = b1 * m[j] + (1 - b1) * gradient(static_cast<std::int64_t>(j)) + e[j];
        EXPECT_FLOAT_EQ(now[j], mask[j] ? 0 : part * c) << j;
        squares += now[j] * now[j];
      }
      EXPECT_NEAR(result.residual_norm, std::sqrt(squares), 1e-5);
    }
    runs.push_back(run.rig.values());
  }
  EXPECT_NE(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

// Ties: all candidates equal, so each owner takes its lowest coordinates of each matrix; and case 4's kind: a gradient that is
// exactly 0 everywhere moves nothing.
TEST_P(ScapeSchedules, TiesAndZerosAreSettledByTheCoordinate) {
  CommonOptions common = exact_common();
  common.weight_decay = 0;
  ScapeRun run(1000, options(), common);
  const auto before = run.rig.values();
  for (std::int64_t t = 0; t <= GetParam().delay; ++t) run.step([](std::int64_t) { return 0.0F; });
  EXPECT_EQ(run.rig.values(), before);
  const auto mask = run.mask();
  for (int r = 0; r < run.ranks(); ++r) {
    for (const ParameterTensor& tensor : run.rig.layout.tensors()) {
      const Range piece = intersect(tensor.range, owned_range(1000, r, run.ranks()));
      const std::int64_t k = tensor.role == TensorRole::vector ? piece.size() : kept_count(0.1, piece.size());
      for (std::int64_t j = piece.begin; j < piece.end; ++j) {
        EXPECT_EQ(mask[static_cast<std::size_t>(j)], j < piece.begin + k) << j;
      }
    }
  }
}

// ---- overlap with the backward pass ----

Scape::Options bucketed(std::int64_t delay, double coordinates) {
  Scape::Options options = options_with(0.1, delay, 1, 0.05);
  options.buckets = {Overlap::bucketed, coordinates * 4e-6};
  return options;
}

// Case 3: the residual of a coordinate and the curve of 20 steps do not depend on the buckets; on one or two ranks no bit does.
TEST(ScapeBuckets, DoNotChangeTheRun) {
  for (const std::int64_t delay : {1, 3}) {
    ScapeRun whole(1000, options_with(0.1, delay, 1, 0.05), exact_common());
    std::vector<std::unique_ptr<ScapeRun>> runs;
    for (const double size : {1e-3, 50.0, 300.0, 1e6}) {
      for (const Streams streams : {Streams::immediate, Streams::queued}) {
        runs.push_back(std::make_unique<ScapeRun>(1000, bucketed(delay, size), exact_common(), streams));
      }
    }
    for (int i = 0; i < 20; ++i) {
      const StepResult expected = whole.random_step();
      const auto theta = whole.rig.values();
      const auto residual = whole.residual();
      for (const auto& run : runs) {
        const StepResult result = run->random_step();
        EXPECT_EQ(run->mask(), whole.mask());
        EXPECT_NEAR(result.residual_norm, expected.residual_norm, 1e-6);
        EXPECT_NEAR(result.gradient_norm, expected.gradient_norm, 1e-6);
        expect_close(run->rig.values(), {theta.begin(), theta.end()}, 1e-5, "theta");
        expect_close(run->residual(), {residual.begin(), residual.end()}, 1e-5, "residual");
        if (whole.ranks() <= 2) {
          EXPECT_TRUE(snapshot(*run) == snapshot(whole));
        }
      }
    }
  }
}

// The payload of a bucket is on its way when the next range is announced, and only the rest is left to step(): in any order of the
// ranges, with the flag beside the first coordinate's bucket or alone.
TEST(ScapeBuckets, LeaveDuringTheBackwardPass) {
  for (const bool forwards : {false, true}) {
    ScapeRun run(1000, bucketed(1, 100), exact_common());
    for (int i = 0; i < 5; ++i) {
      const auto gradient = run.random_gradient(run.next_step);
      Rig::fill(run.rig.grads, gradient);
      const StepContext context = run.rig.context(run.next_step, learning_rate);
      const auto sent = [&, before = run.rig.comm->traffic()] {
        const CollectiveTraffic traffic = run.rig.comm->traffic().since(before)[Collective::all_reduce];
        return std::pair(traffic.calls, traffic.payload_bytes);
      };
      std::int64_t announced = 0;
      for (std::int64_t n = 0; n < 10; ++n) {
        const std::int64_t begin = 100 * (forwards ? n : 9 - n);
        run.method.gradients_ready(context, {begin, begin + 100});
        EXPECT_EQ(sent().first, std::min<std::int64_t>(++announced, 9));
      }
      EXPECT_TRUE(run.method.step(context).applied);
      EXPECT_EQ(sent(), std::pair(std::int64_t{forwards ? 11 : 10}, 4 * (run.method.mask().count + 1)));
      ++run.next_step;
    }
  }
}

// A gradient that is not finite shows in whatever bucket and on whatever side of the mask it is, also where c's part has long left.
TEST(ScapeBuckets, AreRefusedAsAWhole) {
  ScapeRun run(200, bucketed(1, 20), exact_common());
  for (int i = 0; i < 20; ++i) run.random_step();
  for (std::int64_t j = 0; j < 200; ++j) {
    const Snapshot before = snapshot(run);
    const auto gradient = run.random_gradient(run.next_step);
    const bool bad_rank = run.rank() == static_cast<int>(j) % run.ranks();
    const StepResult result = run.step([&](std::int64_t i) { return i == j && bad_rank ? infinity : gradient(i); });
    EXPECT_FALSE(result.applied) << j;
    EXPECT_TRUE(snapshot(run) == before) << j;
    --run.next_step;
  }
  EXPECT_TRUE(run.random_step().applied);
}

TEST(ScapeBuckets, AreRefusedWhereTheyCannotBe) {
  EXPECT_THAT(refusal(bucketed(0, 20)), ::testing::AllOf(::testing::HasSubstr("overlap"), ::testing::HasSubstr("mask_delay")));
  Scape::Options local = bucketed(1, 20);
  local.clip = ClipPolicy::local;
  EXPECT_THAT(refusal(local), ::testing::AllOf(::testing::HasSubstr("overlap"), ::testing::HasSubstr("clip")));
  ScapeRun partly(57, bucketed(1, 20), exact_common());
  const StepContext context = partly.rig.context(1, learning_rate);
  partly.method.gradients_ready(context, {0, 20});
  EXPECT_THROW(partly.method.step(context), Error);
}

// ---- coded payloads ----

constexpr std::array coded_payloads{PayloadType::bf16, PayloadType::fp8};

Scape::Options coded(PayloadType payload, std::int64_t delay = 1, std::int64_t refresh = 1, double warmup_fraction = 0.1) {
  Scape::Options options = options_with(0.1, delay, refresh, warmup_fraction);
  options.payload = payload;
  return options;
}

// Exact check 2 holds with codes: what they lose is in the residual of a rank. And the replicas are equal, the residual's norm is
// recorded, and the bytes are those of the formula.
TEST(ScapePayload, CodesLoseNothing) {
  CommonOptions common = exact_common();
  common.clip_norm = 0;
  for (const PayloadType payload : coded_payloads) {
    for (const std::int64_t delay : {0, 1, 3}) {
      SCOPED_TRACE((payload == PayloadType::bf16 ? "bf16, delay " : "fp8, delay ") + std::to_string(delay));
      const std::int64_t size = 3050;  // more in this rank's shard of the payload when fewer values are sent
      ScapeRun run(size, coded(payload, delay), common, Streams::queued);
      const auto total = [&](const std::vector<float>& values) {
        std::vector<double> sum(values.begin(), values.end());
        MPI_Allreduce(MPI_IN_PLACE, sum.data(), static_cast<int>(sum.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        return sum;
      };
      std::vector<float> m(size);
      std::vector<double> residual(size);
      for (int i = 0; i < 15; ++i) {
        const auto gradient = run.random_gradient(run.next_step);
        std::vector<float> g(size);
        for (std::size_t j = 0; j < g.size(); ++j) g[j] = gradient(static_cast<std::int64_t>(j));
        const Traffic before = run.rig.comm->traffic();
        const StepResult result = run.random_step();
        run.rig.comm_stream.synchronize();
        const Traffic sent = run.rig.comm->traffic().since(before);
        EXPECT_TRUE(result.applied);
        const std::int64_t blocks = (run.method.mask().count + 1 + 255) / 256;
        const std::int64_t bytes = blocks * (payload == PayloadType::bf16 ? 512 : 257);
        EXPECT_EQ(sent[Collective::all_to_all].payload_bytes, bytes);
        EXPECT_EQ(sent[Collective::all_gather].payload_bytes, bytes + mask_words(size) * 8);
        EXPECT_EQ(sent[Collective::all_reduce].calls, 0);
        const double wire = sent.total().wire_bytes;
        EXPECT_NEAR(run.method.expected_wire_bytes(run.next_step - 1), wire, 1e-9 * wire);

        const auto e = run.residual();
        const auto mask = run.mask();
        const auto m_now = run.m();
        const auto g_total = total(g);
        const auto e_total = total(e);
        double squares = 0, returned = 0;
        for (std::size_t j = 0; j < g.size(); ++j) {
          const double in = run.ranks() * common.beta1 * m[j] + (1 - common.beta1) * g_total[j] + residual[j];
          const double out = run.ranks() * static_cast<double>(m_now[j]) + e_total[j];
          EXPECT_NEAR(out, in, 2e-7 * run.ranks()) << "step " << i + 1 << ", coordinate " << j;
          squares += static_cast<double>(e[j]) * e[j];
          if (mask[j]) returned += std::abs(e[j]);
          if (HasFailure()) break;
        }
        EXPECT_GT(returned, 0);
        EXPECT_NEAR(result.residual_norm, std::sqrt(squares), 1e-5 * std::sqrt(squares));
        EXPECT_TRUE(same_on_all_ranks(m_now.data(), m_now.size() * sizeof(float), MPI_COMM_WORLD));
        const auto theta = run.rig.values();
        EXPECT_TRUE(same_on_all_ranks(theta.data(), theta.size() * sizeof(float), MPI_COMM_WORLD));
        m = m_now;
        residual = e_total;
      }
    }
  }
}

// A gradient of numbers that a code holds exactly gives what fp32 gives; others are near.
TEST(ScapePayload, CodesAreNearFp32) {
  for (const PayloadType payload : coded_payloads) {
    CommonOptions common = exact_common();
    common.beta1 = 0;
    ScapeRun exact(500, coded(PayloadType::fp32), common);
    ScapeRun run(500, coded(payload), common);
    for (ScapeRun* one : {&exact, &run}) one->step([](std::int64_t j) { return j % 3 == 0 ? 0.25F : -0.125F; });
    EXPECT_EQ(run.rig.values(), exact.rig.values());
    EXPECT_EQ(run.residual(), exact.residual());

    ScapeRun dense(500, coded(PayloadType::fp32), exact_common());
    ScapeRun near(500, coded(payload), exact_common());
    const auto start = dense.rig.values();
    const auto pull = [](ScapeRun& one) {  // towards 0, with noise of the rank
      const auto theta = one.rig.values();
      const auto noise = one.random_gradient(one.next_step);
      return one.step([&](std::int64_t j) { return theta[static_cast<std::size_t>(j)] + noise(j); });
    };
    double squares = 0, distance = 0;
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(pull(dense).applied);
      EXPECT_TRUE(pull(near).applied);
    }
    for (std::size_t j = 0; j < start.size(); ++j) {
      distance += std::pow(near.rig.values()[j] - dense.rig.values()[j], 2);
      squares += std::pow(dense.rig.values()[j] - start[j], 2);
    }
    EXPECT_LT(std::sqrt(distance), 0.3 * std::sqrt(squares));
  }
}

// Residual policies: dropped means dropped, also what the codes lose.
TEST(ScapePayload, ResidualOfCodesFollowsThePolicy) {
  for (const Form& form : {replicated_form, sharded_form}) {
    for (const PayloadType payload : coded_payloads) {
      for (const ResidualPolicy policy : {ResidualPolicy::decay, ResidualPolicy::none}) {
        Scape::Options options = in_form(form, coded(payload));
        options.residual = policy;
        ScapeRun run(500, options, exact_common());
        for (int i = 0; i < 5; ++i) run.random_step();
        const auto e = run.residual();
        EXPECT_EQ(std::all_of(e.begin(), e.end(), [](float x) { return x == 0; }), policy == ResidualPolicy::none);
      }
    }
  }
}

// Streams, slow collectives, saving and refusing: as with fp32. Each coordinate in turn is not finite, on the mask or off it.
TEST(ScapePayload, CodesChangeNoBitOfWhatMayNotChange) {
  for (const auto& [form, payload] : {std::pair{replicated_form, PayloadType::bf16},
                                      {replicated_form, PayloadType::fp8},
                                      {sharded_form, PayloadType::bf16},
                                      {sharded_form, PayloadType::fp8}}) {
    const Scape::Options set = in_form(form, coded(payload, 2, 1, 0.05));
    expect_equal_bits(mixed_layout(200), {{"immediate", set}, {"queued", set, Streams::queued}, {"slow", set, Streams::queued, 50}},
                      [](std::int64_t t) {
                        return std::vector{7 * t, 100 + 3 * t};
                      });
  }
  Scape::Options both = coded(PayloadType::bf16);
  both.buckets.overlap = Overlap::bucketed;
  EXPECT_THROW(ScapeRun(57, both, exact_common()), Error);
  EXPECT_THROW(ScapeRun(57, in_form(sharded_all_reduce_form, coded(PayloadType::fp8)), exact_common()), Error);
  EXPECT_THROW(ScapeRun(57, in_form(sharded_form, bucketed(1, 20)), exact_common()), Error);
}

// The sharded form's codes: θ, m, e and the carry of 100 steps are the oracle's; and bytes are exact in every scope of masks.
TEST(ScapePayload, CodesOfTheShardedFormFollowTheOracle) {
  for (const PayloadType payload : coded_payloads) {
    for (const auto& [delay, refresh] : {std::pair{0, 1}, {1, 1}, {5, 3}}) {
      SCOPED_TRACE((payload == PayloadType::bf16 ? "bf16, delay " : "fp8, delay ") + std::to_string(delay));
      for (const std::int64_t size : {3, 57, 200}) {
        follow_oracle(size, in_form(sharded_form, coded(payload, delay, refresh, 0.3)), exact_common(), total_steps);
      }
    }
  }
}

TEST(ScapePayload, CodesOfTheShardedFormTakeTheBytesOfTheirFormula) {
  for (const PayloadType payload : coded_payloads) {
    for (const MaskScope scope : all_scopes) {
      Scape::Options set = in_form(sharded_form, coded(payload, 1, 1, 0.05));
      set.mask_scope = scope;
      ScapeRun run(3050, set, exact_common(), Streams::queued);
      for (std::int64_t t = 1; t <= 12; ++t) {
        const Traffic before = run.rig.comm->traffic();
        run.random_step();
        const Traffic sent = run.rig.comm->traffic().since(before);
        const auto mask = run.mask();
        std::int64_t records = 0;  // of 256 values; every owner's part begins with one
        for (int r = 0; r < run.ranks(); ++r) {
          const Range owned = owned_range(3050, r, run.ranks());
          records += (std::count(mask.begin() + owned.begin, mask.begin() + owned.end, true) + 255) / 256;
        }
        EXPECT_EQ(sent[Collective::all_to_all].payload_bytes, records * (payload == PayloadType::bf16 ? 512 : 257));
        EXPECT_EQ(sent[Collective::reduce_scatter].calls, 0);
        const double wire = sent.total().wire_bytes;
        EXPECT_NEAR(run.method.expected_wire_bytes(t), wire, 1e-9 * wire) << t;
      }
    }
  }
}

// ---- extensions beyond the paper ----

Scape::Options scaled(BacklogScaling scaling, double cap, Scape::Options options) {
  options.backlog_scaling = scaling;
  options.backlog_cap = cap;
  return options;
}
Scape::Options in_blocks(Scape::Options options) {
  options.normaliser = Normaliser::block;
  return options;
}
constexpr std::array all_forms{replicated_form, sharded_form, sharded_all_reduce_form};

// Rows of 7 and 13, which shards cut, and vectors.
ParameterLayout layout_of_rows(std::int64_t rows) {
  ParameterLayout layout;
  layout.add("w1", {rows, 7}, TensorRole::matrix);
  layout.add("b1", {rows}, TensorRole::vector);
  layout.add("w2", {2, rows / 2, 13}, TensorRole::matrix);
  layout.add("b2", {11}, TensorRole::vector);
  return layout;
}

TEST(ScapeExtensions, BacklogScalingFollowsTheOracle) {
  for (const Form& form : all_forms) {
    for (const BacklogScaling scaling : {BacklogScaling::linear, BacklogScaling::sqrt}) {
      for (const double cap : {4.5, 20.0}) {
        for (const auto& [delay, refresh] : {std::pair{0, 1}, {1, 1}, {5, 3}}) {
          SCOPED_TRACE(std::string(form.name) + (scaling == BacklogScaling::linear ? ", linear" : ", sqrt") + ", cap " +
                       std::to_string(cap) + ", delay " + std::to_string(delay));
          const Scape::Options set = scaled(scaling, cap, in_form(form, options_with(0.1, delay, refresh, 0.2)));
          for (const std::int64_t size : {3, 200}) follow_oracle(size, set, exact_common(), total_steps);
        }
      }
    }
  }
}

TEST(ScapeExtensions, BlocksFollowTheOracle) {
  for (const Form& form : all_forms) {
    for (const BiasCorrection correction : {BiasCorrection::scape, BiasCorrection::official, BiasCorrection::none}) {
      for (const auto& [delay, refresh] : {std::pair{0, 1}, {1, 1}, {5, 3}}) {
        SCOPED_TRACE(std::string(form.name) + ", correction " + std::to_string(static_cast<int>(correction)) + ", delay " +
                     std::to_string(delay));
        Scape::Options set = in_blocks(in_form(form, options_with(0.1, delay, refresh, 0.2)));
        set.bias_correction = correction;
        follow_oracle(layout_of_rows(14), set, exact_common(), total_steps);
        follow_oracle(19, set, exact_common(), 30);
      }
    }
  }
}

// With other options.
TEST(ScapeExtensions, FollowTheOracleWithOtherOptions) {
  const Scape::Options base = options_with(0.1, 1, 1, 0.2);
  std::vector<Scape::Options> sets{scaled(BacklogScaling::linear, 5, base), in_blocks(base)};
  sets[0].buckets = {Overlap::bucketed, 40 * 4e-6};
  for (Scape::Options& set : std::vector<Scape::Options>{sets[1], scaled(BacklogScaling::sqrt, 9, base)}) {
    set.clip = ClipPolicy::local;
    set.residual = ResidualPolicy::decay;
    set.mask_scope = MaskScope::global;
    sets.push_back(set);
    sets.push_back(in_form(sharded_form, set));
    sets.back().mask_statistic = MaskStatistic::momentum;
  }
  sets.push_back(in_form(sharded_form, scaled(BacklogScaling::linear, 5, coded(PayloadType::bf16))));
  sets.push_back(in_form(sharded_form, in_blocks(coded(PayloadType::fp8))));
  for (std::size_t i = 0; i < sets.size(); ++i) {
    SCOPED_TRACE("set " + std::to_string(i));
    follow_oracle(layout_of_rows(14), sets[i], exact_common(), total_steps);
  }
}

// The limits in which scaling is off: a cap of 1, and density 1, where nothing waits (and SCAPE is AdamS: check 1). Bit for bit.
TEST(ScapeExtensions, BacklogScalingIsOffAtCap1AndAtDensity1) {
  for (const Form& form : all_forms) {
    for (const BacklogScaling scaling : {BacklogScaling::linear, BacklogScaling::sqrt}) {
      for (const auto& [density, cap] : {std::pair{0.1, 1.0}, {1.0, 50.0}, {0.1, 50.0}}) {
        const Scape::Options set = in_form(form, options_with(density, 1, 1));
        ScapeRun off(200, set, exact_common());
        ScapeRun run(200, scaled(scaling, cap, set), exact_common());
        for (int i = 0; i < 30; ++i) {
          off.random_step();
          run.random_step();
        }
        const bool has_limit = density == 1 || cap == 1;
        EXPECT_EQ(run.rig.values() == off.rig.values(), has_limit) << density << " " << cap;
        EXPECT_EQ(run.m(), off.m());
        EXPECT_EQ(run.residual(), off.residual());
      }
    }
  }
}

// As check 9: a coordinate that enters the mask after a steps moves min(a, cap), or its root, times η (1−β1)/√(1−β2).
TEST(ScapeExtensions, EnteringCoordinateMovesByItsAge) {
  CommonOptions common = exact_common();
  common.clip_norm = 0;
  common.weight_decay = 0;
  common.epsilon = 0;
  const double unit = learning_rate * (1 - common.beta1) / std::sqrt(1 - common.beta2);
  for (const Form& form : all_forms) {
    for (const BacklogScaling scaling : {BacklogScaling::linear, BacklogScaling::sqrt}) {
      Scape::Options set = scaled(scaling, 6, in_form(form, options_with(0.1, 1, 1)));
      set.bias_correction = BiasCorrection::none;
      ScapeRun run(200, set, common);
      std::vector<int> age(200, 1);
      std::set<int> seen;
      for (int i = 0; i < 60; ++i) {
        const auto before = run.rig.values();
        run.random_step();
        const auto after = run.rig.values();
        const auto mask = run.mask();
        for (std::size_t j = 0; j < mask.size(); ++j) {
          if (mask[j] && age[j] > 1) {
            const double steps = std::min(age[j], 6);
            EXPECT_NEAR(std::abs(after[j] - before[j]), unit * (scaling == BacklogScaling::linear ? steps : std::sqrt(steps)), 1e-6)
                << "step " << i + 1 << ", coordinate " << j << ", age " << age[j];
            seen.insert(age[j]);
          }
          age[j] = mask[j] ? 1 : age[j] + 1;
        }
      }
      EXPECT_GT(seen.size(), 8U);
      EXPECT_GT(*seen.rbegin(), 10);
    }
  }
}

// Blocks leave a backlog its size: two coordinates of a row that enter together move as far as their backlogs are large. AdamS
// moves both by one unit.
TEST(ScapeExtensions, BlocksLeaveABacklogItsSize) {
  CommonOptions common = exact_common();
  common.weight_decay = 0;
  common.clip_norm = 0;
  for (const bool blocks : {false, true}) {
    for (const Form& form : all_forms) {
      ParameterLayout layout;
      layout.add("w", {1, 64}, TensorRole::matrix);  // one mask word: rank 0 owns all
      Scape::Options set = in_form(form, options_with(3.0 / 64, 0, 1));
      set.mask_refresh = 4;  // coordinates 0 … 2, which are chosen in step 1 from equal ones, stay until step 4
      if (blocks) set.normaliser = Normaliser::block;
      ScapeRun run(layout, set, common);
      const auto gradient = [](std::int64_t j) { return j == 40 ? 4.0F : j == 50 ? 3.0F : j == 60 ? 2.0F : 1.0F; };
      run.step([](std::int64_t) { return 1.0F; });
      for (int i = 0; i < 3; ++i) run.step(gradient);
      const auto before = run.rig.values();
      run.step(gradient);
      const auto moved = [&](std::size_t j) { return run.rig.values()[j] - before[j]; };
      EXPECT_TRUE(run.mask()[40] && run.mask()[50] && run.mask()[60]);
      EXPECT_NEAR(moved(40) / moved(60), blocks ? 17.0 / 9 : 1, 1e-3);  // (1 + 4 · 4)/(1 + 4 · 2)
      EXPECT_NEAR(moved(50) / moved(60), blocks ? 13.0 / 9 : 1, 1e-3);
    }
  }
}

// Queues and slow collectives, a refused step on any rank, a save in any step: no bit changes. What was sent is what was announced,
// also after steps that were refused while the density fell.
TEST(ScapeExtensions, ChangeNoBitOfWhatMayNotChange) {
  for (const Form& form : all_forms) {
    const Scape::Options base = in_form(form, options_with(0.1, 2, 1, 0.2));
    for (const Scape::Options& set : {scaled(BacklogScaling::linear, 5, base), in_blocks(base)}) {
      expect_equal_bits(layout_of_rows(14),
                        {{"immediate", set}, {"queued", set, Streams::queued}, {"slow", set, Streams::queued, 1 << 20}},
                        [](std::int64_t t) { return std::vector{8 * t}; });
    }
  }
}

// A mean square that a float cannot hold is refused like a gradient that is not finite.
TEST(ScapeExtensions, MeanSquaresThatOverflowAreRefused) {
  for (const Form& form : all_forms) {
    ScapeRun run(57, in_blocks(in_form(form, options_with(0.1, 1, 1))), exact_common());
    run.random_step();
    const Snapshot before = snapshot(run);
    EXPECT_FALSE(run.step([&](std::int64_t j) { return j == 40 && run.rank() == 0 ? 1e20F : 0.0F; }).applied);
    EXPECT_TRUE(snapshot(run) == before);
    EXPECT_TRUE(run.step([](std::int64_t) { return 1e15F; }).applied);
    for (const float x : run.rig.values()) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(ScapeExtensions, TakeTheBytesOfTheirFormulas) {
  for (const Form& form : all_forms) {
    const Scape::Options set = in_form(form, options_with(0.1, 1, 1, 0.1));
    const ParameterLayout layout = layout_of_rows(14);
    ScapeRun plain(layout, set, exact_common());
    ScapeRun aged(layout, scaled(BacklogScaling::sqrt, 5, set), exact_common());
    ScapeRun blocks(layout, in_blocks(set), exact_common());
    for (std::int64_t t = 1; t <= 20; ++t) {
      std::vector<Traffic> sent;
      for (ScapeRun* run : {&plain, &aged, &blocks}) {
        const Traffic before = run->rig.comm->traffic();
        run->random_step();
        sent.push_back(run->rig.comm->traffic().since(before));
        const double wire = sent.back().total().wire_bytes;
        EXPECT_NEAR(run->method.expected_wire_bytes(t), wire, 1e-9 * wire);
        EXPECT_EQ(sent.back().total().calls, sent.front().total().calls) << "no more collectives";
      }
      EXPECT_EQ(sent[1].total().payload_bytes, sent[0].total().payload_bytes);
      const std::int64_t added = (14 + 1 + 14 + 1) * (form.form == ScapeFormKind::replicated ? 4 : 8);
      EXPECT_EQ(sent[2].total().payload_bytes, sent[0].total().payload_bytes + added);
      EXPECT_EQ(sent[2][Collective::all_reduce].payload_bytes, sent[0][Collective::all_reduce].payload_bytes + added);
    }
  }
}

TEST(ScapeExtensions, AreRefusedWhereTheyCannotBe) {
  const Scape::Options set = options_with(0.1, 1, 1);
  EXPECT_THAT(refusal(in_blocks(scaled(BacklogScaling::linear, 5, set))),
              ::testing::AllOf(HasSubstr("backlog_scaling"), HasSubstr("normaliser")));
  EXPECT_THAT(refusal(in_blocks(bucketed(1, 20))), ::testing::AllOf(HasSubstr("overlap"), HasSubstr("normaliser")));
  EXPECT_THAT(refusal(in_blocks(coded(PayloadType::bf16))), ::testing::AllOf(HasSubstr("payload"), HasSubstr("normaliser")));
}

// ---- memory of the host ----

Scape::Options offloaded(Offload what, Scape::Options options, std::int64_t piece = 64) {
  options.offload = what;
  options.offload_piece = piece;
  return options;
}

// Where e and θ lie changes no bit, whatever the parts in which they come; nor does a checkpoint taken there and used here. The
// layout has parts that end within a tensor, a row and a mask word.
TEST(ScapeOffload, ChangesNoBit) {
  std::vector<Scape::Options> sets;
  for (const Form& form : all_forms) {
    const Scape::Options base = in_form(form, options_with(0.1, 2, 1, 0.2));
    sets.insert(sets.end(), {base, in_form(form, options_with(0.1, 0, 3)), scaled(BacklogScaling::sqrt, 5, base), in_blocks(base)});
    sets.push_back(base);
    sets.back().residual = ResidualPolicy::decay;
  }
  sets.push_back(in_form(replicated_form, coded(PayloadType::fp8)));
  sets.push_back(in_form(sharded_form, coded(PayloadType::bf16)));
  sets.push_back(in_form(sharded_form, coded(PayloadType::fp8)));
  sets.back().residual = ResidualPolicy::none;
  sets.push_back(bucketed(2, 40));
  for (const Scape::Options& set : sets) {
    expect_equal_bits(
        layout_of_rows(32),
        {{"none", set},
         {"residual", offloaded(Offload::residual, set, 100)},
         {"residual, queued", offloaded(Offload::residual, set), Streams::queued},
         {"replica, in one piece", offloaded(Offload::replica, set, 1 << 20)},
         {"replica, slow", offloaded(Offload::replica, set), Streams::queued, 1 << 20},
         {"replica", offloaded(Offload::replica, set)}},
        [](std::int64_t t) { return std::vector{50 * t}; }, 10);
  }
}

TEST_P(ScapeSchedules, StateHasOneEntryOfEachNameAndTheSizeOfTheParameters) {
  ScapeRun run(200, options(), exact_common());
  const std::int64_t shard = owned_range(200, run.rank(), run.ranks()).size();
  std::vector<std::string> names;
  for (const StateEntry& entry : run.method.state()) {
    names.push_back(entry.name);
    const bool residual = entry.name == "scape/residual";
    const bool in_shards = is_sharded() && (entry.name == "scape/m" || entry.name == "scape/carry");
    if (in_shards || residual || entry.name == "scape/m") {
      EXPECT_EQ(entry.bytes.size(), 4 * (in_shards ? shard : 200)) << entry.name;
    }
    EXPECT_EQ(entry.scope, residual ? StateScope::per_rank : in_shards ? StateScope::shard : StateScope::replicated) << entry.name;
  }
  EXPECT_EQ(std::count(names.begin(), names.end(), "scape/carry"), is_sharded() ? 1 : 0);
  const std::size_t entries = names.size();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()) - names.begin(), static_cast<std::ptrdiff_t>(entries));
}

}  // namespace
}  // namespace scape::testing
