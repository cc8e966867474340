// Laws that every registered method must obey, on any number of ranks. The registry is the list: every optimizer, every rule with
// the dense sync, every sync with AdamW; each with its defaults and with every value of each of its options in turn.
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "rig.hpp"
#include "scape/baselines.hpp"
#include "scape/kernels.hpp"

namespace scape::testing {
namespace {

constexpr std::int64_t total_steps = 60;
constexpr double learning_rate = 0.05;
const std::vector<std::int64_t> all_sizes{1, 3, 19, 57, 1000};

const Registry& registry() {
  static const Registry all = [] {
    Registry made;
    register_core(made);
    register_baselines(made);
    return made;
  }();
  return all;
}

using Settings = std::vector<std::pair<std::string, std::string>>;

struct Case {
  std::string optimizer;
  std::string sync;  // empty for a complete method
  Settings settings;
  bool variant = false;  // one of several settings of a method: fewer sizes will do

  [[nodiscard]] std::string name() const {
    std::string text = optimizer + (sync.empty() ? "" : "_" + sync);
    for (const auto& [option, value] : settings) text += "_" + option + "_" + value;
    std::replace_if(
        text.begin(), text.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
    return text;
  }
  [[nodiscard]] std::vector<std::int64_t> sizes() const { return variant ? std::vector<std::int64_t>{19, 1000} : all_sizes; }
  [[nodiscard]] Case with(const Settings& more) const {
    Case changed = *this;
    changed.settings.insert(changed.settings.end(), more.begin(), more.end());
    return changed;
  }
};

void PrintTo(const Case& method, std::ostream* out) {
  *out << method.name();
}

// Names of the method's own options, not those that all methods share, with what each accepts.
std::vector<std::pair<std::string, std::string>> own_options(const Case& method) {
  CommonOptions common;
  OptionTable shared;
  common.declare(shared);
  MethodChoice choice(registry(), method.optimizer, method.sync);
  OptionTable table;
  choice.declare(table);
  std::vector<std::pair<std::string, std::string>> own;
  for (const OptionTable::Option& option : table.options()) {
    if (!shared.contains(option.name)) own.emplace_back(option.name, option.accepts);
  }
  return own;
}

bool has_option(const Case& method, const std::string& name) {
  const auto own = own_options(method);
  return std::any_of(own.begin(), own.end(), [&](const auto& option) { return option.first == name; });
}

// Values to try for an option: every one of a choice; for numbers those listed here.
std::vector<std::string> values_of(const std::string& option, const std::string& accepts) {
  static const std::map<std::string, std::vector<std::string>> numbers{
      {"density", {"0.02", "0.3", "1"}}, {"density_warmup_fraction", {"0", "0.5"}},
      {"density_warmup_steps", {"5"}},   {"mask_delay", {"0", "3"}},
      {"mask_refresh", {"2"}},           {"radius_period", {"1", "5"}},
      {"powersgd_rank", {"1", "3"}},     {"demo_topk", {"2", "64"}},
      {"demo_decay", {"0.9"}},           {"onebit_warmup_fraction", {"0.1", "0.5"}},
      {"momentum_correction", {"0.5"}},  {"bucket_megabytes", {"0.0001"}},
      {"backlog_cap", {"1", "5"}},       {"oktopk_threshold_period", {"1"}},
      {"oktopk_region_period", {"3"}},   {"oktopk_balance", {"1"}},
  };
  if (const auto known = numbers.find(option); known != numbers.end()) return known->second;
  std::vector<std::string> values;
  if (accepts.find(" | ") == std::string::npos) return values;
  std::istringstream words(accepts);
  for (std::string word; words >> word;) {
    if (word != "|") values.push_back(word);
  }
  return values;
}

std::vector<Case> base_cases() {
  std::vector<Case> cases;
  for (const auto& method : registry().optimizers.all()) cases.push_back({method.name, "", {}, false});
  for (const auto& method : registry().rules.all()) cases.push_back({method.name, "dense", {}, false});
  for (const auto& method : registry().syncs.all()) {
    if (method.name != "dense") cases.push_back({"adamw", method.name, {}, false});
  }
  for (std::size_t i = cases.size(); i-- > 0;) {
    if (has_option(cases[i], "form")) cases.push_back(cases[i].with({{"form", "sharded"}}));
  }
  // Small models: a density at which something is selected and something is not.
  for (Case& method : cases) {
    if (has_option(method, "density")) method = method.with({{"density", "0.3"}});
  }
  return cases;
}

// Whether the method takes these settings together.
bool accepts(const Case& method) {
  const ParameterLayout layout = odd_layout(57);
  MethodChoice choice(registry(), method.optimizer, method.sync);
  OptionTable table;
  choice.declare(table);
  for (const auto& [option, value] : method.settings) table.set({option, value, method.name()});
  try {
    static_cast<void>(choice.make({layout, cpu_device, 0, 1, total_steps, 1}));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return false;
  }
  return true;
}

// A value that the method refuses needs a companion: the first value of another option that lets it pass.
Case with_companion(const Case& method) {
  if (accepts(method)) return method;
  for (const auto& [option, texts] : own_options(method)) {
    for (const std::string& value : values_of(option, texts)) {
      if (accepts(method.with({{option, value}}))) return method.with({{option, value}});
    }
  }
  return method;  // its tests will say that it is refused
}

// On more than four ranks each method with its defaults: what options mean does not depend on the number of ranks.
std::vector<Case> all_cases() {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks > 4) return base_cases();
  std::vector<Case> cases;
  for (const Case& base : base_cases()) {
    cases.push_back(base);
    if (!base.settings.empty() && base.settings[0].first == "form") continue;  // tests of the core try its options
    for (const auto& [option, texts] : own_options(base)) {
      for (const std::string& value : values_of(option, texts)) {
        Settings settings{{option, value}};
        if (option == "bucket_megabytes") settings.emplace_back("overlap", "bucketed");  // or it says nothing
        if (option == "backlog_cap") settings.emplace_back("backlog_scaling", "linear");
        if (option == "normaliser") settings.emplace_back("clip", "local");  // clips what a block's V is made of, too
        cases.push_back(with_companion(base.with(settings)));
        cases.back().variant = true;
      }
    }
  }
  return cases;
}

// A method in a rig.
class Training {
 public:
  Training(const Case& method, std::int64_t size, MPI_Comm world = MPI_COMM_WORLD, Streams streams = Streams::immediate)
      : Training(method, odd_layout(size), world, streams) {}
  Training(const Case& method, const ParameterLayout& layout, MPI_Comm world, Streams streams)
      : rig(layout, world, streams), choice_(registry(), method.optimizer, method.sync) {
    choice_.declare(table_);
    for (const auto& [option, value] : method.settings) table_.set({option, value, method.name()});
    restart();
  }
  // The method anew, with the present parameters.
  void restart() { optimizer = choice_.make(rig.method_context(total_steps)); }

  // Noisy least squares: the rank's gradient of Σ ½ h (θ − θ*)² plus noise that differs by rank.
  StepResult step(std::int64_t t) {
    return rig.step(*optimizer, t, learning_rate, [&](std::int64_t j) {
      return curvature(j) * (rig.params.data()[j] - target(j)) + 0.1F * normal_at(5, t, rig.comm->rank(), j);
    });
  }
  [[nodiscard]] double loss() const {
    double sum = 0;
    for (std::int64_t j = 0; j < rig.params.size(); ++j) sum += 0.5 * curvature(j) * std::pow(rig.params.data()[j] - target(j), 2);
    return sum;
  }
  [[nodiscard]] double wire_bytes() const { return rig.comm->traffic().total().wire_bytes; }
  // What the owners keep of the parameters, where the ranks compute with its code only; the parameters themselves otherwise.
  [[nodiscard]] std::vector<float> master() const {
    std::vector<float> values = rig.values();
    for (const StateEntry& entry : optimizer->state()) {
      if (!entry.name.ends_with("/master")) continue;
      const auto mine = static_cast<int>(entry.bytes.size() / 4);
      std::vector<int> counts(static_cast<std::size_t>(rig.comm->size())), begins(counts.size());
      MPI_Allgather(&mine, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD);
      std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
      MPI_Allgatherv(entry.bytes.data(), mine, MPI_FLOAT, values.data(), counts.data(), begins.data(), MPI_FLOAT, MPI_COMM_WORLD);
    }
    return values;
  }

  Rig rig;
  std::unique_ptr<Optimizer> optimizer;

 private:
  static float curvature(std::int64_t j) { return 0.5F + static_cast<float>(j % 5) / 4; }
  static float target(std::int64_t j) { return normal_at(29, 0, 0, j); }

  MethodChoice choice_;
  OptionTable table_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}
void expect_near(const Training& found, const Training& expected, float tolerance) {
  for (std::int64_t j = 0; j < found.rig.params.size(); ++j) {
    EXPECT_NEAR(found.rig.params.data()[j], expected.rig.params.data()[j], tolerance)
        << "coordinate " << j << " of " << found.rig.params.size();
  }
}
bool same_on_all_ranks(const Rig& rig) {
  return testing::same_on_all_ranks(rig.params.data(), static_cast<std::size_t>(rig.params.span().size_bytes()), MPI_COMM_WORLD);
}

class Conformance : public ::testing::TestWithParam<Case> {};

TEST_P(Conformance, ReplicasStayEqualLossFallsAndBytesAreAsDeclared) {
  for (const std::int64_t size : GetParam().sizes()) {
    SCOPED_TRACE("size " + std::to_string(size));
    Training run(GetParam(), size);
    const double first = run.loss();
    for (std::int64_t t = 1; t <= total_steps; ++t) {
      const double before = run.wire_bytes();
      EXPECT_TRUE(run.step(t).applied);
      const double expected = run.optimizer->expected_wire_bytes(t);
      EXPECT_NEAR(run.wire_bytes() - before, expected, 1e-9 * expected) << "step " << t;
      EXPECT_TRUE(same_on_all_ranks(run.rig)) << "step " << t;
    }
    // onebit_adam on a few dozen coordinates over many ranks: one scale for all signs of a shard is too coarse for more
    const double most = GetParam().optimizer == "onebit_adam" ? 0.75 : 0.5;
    EXPECT_LT(run.loss(), most * first);
  }
}

// What a method shows to diagnostics agrees with what it says about its step: the residual's norm, and the density of the mask.
TEST_P(Conformance, WhatItShowsAgreesWithWhatItReports) {
  Training run(GetParam(), 1000);
  for (std::int64_t t = 1; t <= 12; ++t) {
    const StepResult result = run.step(t);
    const StepView view = run.optimizer->inspect(run.rig.context(t, learning_rate));
    if (!view.residual.empty()) {
      ASSERT_EQ(view.residual.size(), 1000);
      double squares = 0;
      for (const float x : view.residual.host()) squares += static_cast<double>(x) * x;
      EXPECT_NEAR(std::sqrt(squares), result.residual_norm, 1e-3 * result.residual_norm + 1e-5) << "step " << t;
    }
    if (!view.mask.empty()) {
      ASSERT_EQ(view.mask.size(), mask_words(1000));
      int count = 0;
      for (const std::uint64_t word : view.mask.host()) count += std::popcount(word);
      EXPECT_DOUBLE_EQ(count / 1000.0, result.density) << "step " << t;
      EXPECT_TRUE(testing::same_on_all_ranks(view.mask.data(), static_cast<std::size_t>(view.mask.size_bytes()), MPI_COMM_WORLD));
    }
  }
}

TEST_P(Conformance, SameBitsInEveryRunAndOnQueuedStreams) {
  for (const std::int64_t size : {19, 1000}) {
    Training first(GetParam(), size);
    Training second(GetParam(), size);
    Training queued(GetParam(), size, MPI_COMM_WORLD, Streams::queued);
    for (std::int64_t t = 1; t <= 8; ++t) {
      for (Training* run : {&first, &second, &queued}) run->step(t);
    }
    EXPECT_TRUE(same_bits(first.rig.values(), second.rig.values()));
    EXPECT_TRUE(same_bits(first.rig.values(), queued.rig.values()));
  }
}

TEST_P(Conformance, StateBroughtToAFreshMethodContinuesWithTheSameBits) {
  for (const std::int64_t size : {3, 57}) {
    Training whole(GetParam(), size);
    Training resumed(GetParam(), size);
    for (std::int64_t t = 1; t <= 16; ++t) {
      whole.step(t);
      resumed.step(t);
      const StateBytes saved = save(*resumed.optimizer);
      resumed.restart();
      load(*resumed.optimizer, saved);
      EXPECT_TRUE(same_bits(whole.rig.values(), resumed.rig.values())) << "size " << size << ", step " << t;
    }
    EXPECT_EQ(save(*whole.optimizer), save(*resumed.optimizer));
  }
}

// A refused step leaves no trace: the run goes on exactly like one that never saw the bad gradient.
TEST_P(Conformance, ABadGradientOnOneRankIsRefusedByAllWithoutATrace) {
  const std::vector<float> bad_values{std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                                      std::numeric_limits<float>::quiet_NaN()};
  for (const std::int64_t size : GetParam().sizes()) {
    Training healthy(GetParam(), size);
    Training run(GetParam(), size);
    for (std::int64_t t = 1; t <= 9; ++t) {
      const std::vector<float> before = run.rig.values();
      const int bad_rank = static_cast<int>(t) % run.rig.comm->size();
      const std::int64_t bad_coordinate = (t * 7 + size - 1) % size;
      const StepResult refused = run.rig.step(*run.optimizer, t, learning_rate, [&](std::int64_t j) {
        const bool bad = run.rig.comm->rank() == bad_rank && j == bad_coordinate;
        return bad ? bad_values[static_cast<std::size_t>(t % 3)] : normal_at(3, t, run.rig.comm->rank(), j);
      });
      EXPECT_FALSE(refused.applied) << "size " << size << ", step " << t;
      EXPECT_TRUE(same_bits(before, run.rig.values()));
      EXPECT_TRUE(run.step(t).applied);
      EXPECT_TRUE(healthy.step(t).applied);
      EXPECT_TRUE(all_finite(run.rig.values()));
      EXPECT_TRUE(same_bits(healthy.rig.values(), run.rig.values())) << "size " << size << ", step " << t;
    }
  }
}

// Rows 0, 5, 6 and from 20 on of the first matrix, like tokens that never occur.
TEST_P(Conformance, RowsWithoutGradientStayAsTheyAre) {
  for (const std::int64_t size : GetParam().variant ? std::vector<std::int64_t>{1000} : std::vector<std::int64_t>{57, 1000}) {
    Training run(GetParam().with({{"weight_decay", "0"}}), size);
    const ParameterTensor& matrix = run.rig.layout.tensor("w1");
    const auto untouched = [&](std::int64_t j) {
      const std::int64_t row = (j - matrix.range.begin) / matrix.shape[1];
      return j < matrix.range.end && (row == 0 || row == 5 || row == 6 || row >= 20);
    };
    const std::vector<float> before = run.rig.values();
    for (std::int64_t t = 1; t <= 100; ++t) {
      run.rig.step(*run.optimizer, t, learning_rate,
                   [&](std::int64_t j) { return untouched(j) ? 0.0F : normal_at(3, t, run.rig.comm->rank(), j); });
    }
    const std::vector<float> after = run.master();
    std::vector<std::int64_t> moved;
    std::int64_t others = 0;
    for (std::int64_t j = 0; j < size; ++j) {
      const auto i = static_cast<std::size_t>(j);
      if (std::memcmp(&before[i], &after[i], sizeof(float)) == 0) continue;
      if (untouched(j)) {
        moved.push_back(j);
      } else {
        ++others;
      }
    }
    EXPECT_THAT(moved, ::testing::IsEmpty()) << "of " << size;
    EXPECT_GT(others, 0);
  }
}

// A block of zeros, the smallest number there is, and a huge one: nothing becomes infinite or no number, here or on another rank.
TEST_P(Conformance, ExtremesStayFinite) {
  Training run(GetParam(), 1000);
  const bool squares = GetParam().name().ends_with("normaliser_block");  // what is too large to square in a float is refused
  for (std::int64_t t = 1; t <= 5; ++t) {
    const StepResult result = run.rig.step(*run.optimizer, t, learning_rate, [&](std::int64_t j) {
      if (j < 300) return j == 7 ? 1e-45F : 0.0F;
      if (j == 301) return 1e-38F;
      return j == 500 ? 3e37F : normal_at(3, t, run.rig.comm->rank(), j);
    });
    EXPECT_NE(result.applied, squares);
    EXPECT_NE(std::isfinite(result.gradient_norm), squares);
    EXPECT_TRUE(all_finite(run.rig.values()));
    EXPECT_TRUE(same_on_all_ranks(run.rig));
  }
}

// Vectors that the ranks hold together have exactly one element for each coordinate, however few there are.
TEST_P(Conformance, ShardsOfTheStateAddUpToTheParameters) {
  for (const std::int64_t size : {1, 3, 57}) {
    Training run(GetParam(), size);
    run.step(1);
    for (const StateEntry& entry : run.optimizer->state()) {
      if (entry.scope != StateScope::shard) continue;
      std::int64_t elements = entry.bytes.size() / size_of(entry.type);
      MPI_Allreduce(MPI_IN_PLACE, &elements, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
      EXPECT_EQ(elements, size) << entry.name;
    }
  }
}

TEST_P(Conformance, OneRankSendsNothing) {
  Training run(GetParam(), 57, MPI_COMM_SELF);
  for (std::int64_t t = 1; t <= 3; ++t) {
    EXPECT_EQ(run.optimizer->expected_wire_bytes(t), 0);
    EXPECT_TRUE(run.step(t).applied);
  }
  EXPECT_EQ(run.wire_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Registry, Conformance, ::testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param.name(); });

// The settings with which a method communicates everything.
const Settings dense_settings{{"density", "1"}, {"quant_bits", "32"}, {"powersgd_rank", "1000"}, {"onebit_warmup_fraction", "1"}};

// Laws about the limits in which a method is the dense one, and about who divides by N. One case a method, in its dense limit.
std::vector<Case> limit_cases() {
  std::vector<Case> cases;
  for (const Case& base : base_cases()) {
    cases.push_back(base);
    for (const auto& [option, value] : dense_settings) {
      if (has_option(base, option)) cases.back() = cases.back().with({{option, value}});
    }
  }
  return cases;
}

class Limits : public ::testing::TestWithParam<Case> {};

void expect_update_of_one_rank(const Case& method) {
  SCOPED_TRACE(method.name());
  for (const std::int64_t size : all_sizes) {
    Training ranks(method, size);
    Training alone(method, size, MPI_COMM_SELF);
    for (std::int64_t t = 1; t <= 4; ++t) {
      for (Training* run : {&ranks, &alone}) run->rig.step(*run->optimizer, t, learning_rate, [](std::int64_t) { return 1.0F; });
    }
    expect_near(ranks, alone, 1e-5F);
  }
}

TEST_P(Limits, EqualGradientsGiveTheUpdateOfOneRank) {
  expect_update_of_one_rank(GetParam());
}
// Below its limit, too, unless the number of owners says what is sent.
TEST(Sparse, EqualGradientsGiveTheUpdateOfOneRank) {
  for (const Case& method : base_cases()) {
    if (method.optimizer != "scape") expect_update_of_one_rank(method);
  }
}

// Two steps, a large gradient and a small one, so that the coefficient of the first shows in the moments of the second.
TEST_P(Limits, NormFiveIsClippedToOneByAFifth) {
  const std::int64_t size = 57;
  const auto direction = [](std::int64_t j) { return normal_at(41, 0, 0, j); };
  double norm = 0;
  for (std::int64_t j = 0; j < size; ++j) norm += std::pow(direction(j), 2);
  norm = std::sqrt(norm);
  const auto scaled_to = [&](double length) {
    return [direction, factor = static_cast<float>(length / norm)](std::int64_t j) { return factor * direction(j); };
  };
  Training clipped(GetParam().with({{"clip_norm", "1"}}), size);
  Training scaled(GetParam().with({{"clip_norm", "0"}}), size);
  const StepResult result = clipped.rig.step(*clipped.optimizer, 1, learning_rate, scaled_to(5));
  EXPECT_NEAR(result.gradient_norm, 5, 0.05);
  scaled.rig.step(*scaled.optimizer, 1, learning_rate, scaled_to(5 / result.gradient_norm));
  const std::vector<float> middle = scaled.rig.values();
  for (Training* run : {&clipped, &scaled}) run->rig.step(*run->optimizer, 2, learning_rate, scaled_to(0.5));
  EXPECT_FALSE(same_bits(middle, scaled.rig.values()));
  expect_near(clipped, scaled, 1e-5F);
}

INSTANTIATE_TEST_SUITE_P(Registry, Limits, ::testing::ValuesIn(limit_cases()), [](const auto& test) { return test.param.name(); });

// Noise of different ranks, so that the mean matters.
void expect_like_dense(const Case& method, const std::string& rule, float tolerance) {
  SCOPED_TRACE(method.name());
  for (const std::int64_t size : all_sizes) {
    Training run(method, size);
    Training dense({rule, "dense", {}, false}, size);
    for (std::int64_t t = 1; t <= 20; ++t) {
      run.step(t);
      dense.step(t);
    }
    expect_near(run, dense, tolerance);
  }
}

TEST(DenseLimit, IsDense) {
  for (const Case& method : limit_cases()) {
    const bool has_limit = std::any_of(dense_settings.begin(), dense_settings.end(),
                                       [&](const auto& setting) { return has_option(method, setting.first); });
    if (!has_limit) continue;
    const bool scape = method.optimizer == "scape";  // its m takes another way round to AdamS's
    const std::string rule = scape ? "adams" : "adamw";
    expect_like_dense(method, rule, scape ? 1e-4F : 1e-6F);
  }
}

// Where gradients leave in buckets, their size changes nothing: not a bit on one or two ranks, rounding on more, where the
// all-reduce of another length may add in another order.
TEST(Buckets, DoNotChangeTheRun) {
  int covered = 0;
  for (const Case& base : base_cases()) {
    const Case bucketed = base.with({{"overlap", "bucketed"}});
    if (!has_option(base, "overlap") || !accepts(bucketed)) continue;
    ++covered;
    SCOPED_TRACE(base.name());
    for (const std::int64_t size : {57, 1000}) {
      Training whole(base, size);
      Training small(bucketed.with({{"bucket_megabytes", "0.0001"}}), size, MPI_COMM_WORLD, Streams::queued);
      Training large(bucketed.with({{"bucket_megabytes", "0.001"}}), size);
      for (std::int64_t t = 1; t <= 20; ++t) {
        for (Training* run : {&whole, &small, &large}) run->step(t);
      }
      const float tolerance = whole.rig.comm->size() <= 2 ? 0.0F : 1e-4F;
      expect_near(small, whole, tolerance);
      expect_near(large, whole, tolerance);
    }
  }
  EXPECT_GE(covered, 4);  // scape, zero1, and dense with each rule
}

// A device that is not there, or that the method has no kernels for, is an error, never another method or device in its place.
TEST(Devices, AMissingOneIsAnError) {
  if (device_count(DeviceKind::cuda) > 0) GTEST_SKIP() << "there is a GPU";
  const ParameterLayout layout = odd_layout(57);
  for (const Case& method : base_cases()) {
    MethodChoice choice(registry(), method.optimizer, method.sync);
    OptionTable table;
    choice.declare(table);
    EXPECT_THROW(static_cast<void>(choice.make({layout, {DeviceKind::cuda, 0}, 0, 1, total_steps, 1})), Error) << method.name();
  }
}

// A sync alone.
struct SyncRun {
  SyncRun(const Case& method, std::int64_t size) : rig(odd_layout(size), MPI_COMM_WORLD) {
    const auto recipe = registry().syncs.find(method.sync)->recipe();
    OptionTable table;
    recipe->declare(table);
    for (const auto& [option, value] : method.settings) {
      if (table.contains(option)) table.set({option, value, method.name()});
    }
    sync = recipe->make({}, rig.method_context(total_steps));
  }
  [[nodiscard]] bool has(const std::string& entry_name) const {
    const auto entries = sync->state();
    return std::any_of(entries.begin(), entries.end(),
                       [&](const StateEntry& entry) { return entry.name.ends_with("/" + entry_name); });
  }
  // Σ over the ranks of what is kept for later, in units of a sum of gradients: a shard's part belongs to the mean.
  [[nodiscard]] std::vector<double> kept() const {
    std::vector<double> sum(static_cast<std::size_t>(rig.layout.size()), 0.0);
    for (const StateEntry& entry : sync->state()) {
      if (!entry.name.ends_with("residual")) continue;
      const auto* values = reinterpret_cast<const float*>(entry.bytes.data());
      const std::int64_t count = entry.bytes.size() / static_cast<std::int64_t>(sizeof(float));
      std::int64_t end = count;
      double factor = 1;
      if (entry.scope == StateScope::shard) {
        MPI_Scan(&count, &end, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        factor = rig.comm->size();
      }
      for (std::int64_t i = 0; i < count; ++i) sum[static_cast<std::size_t>(end - count + i)] += factor * values[i];
    }
    return over_ranks(sum);
  }
  static std::vector<double> over_ranks(std::vector<double> sum) {
    MPI_Allreduce(MPI_IN_PLACE, sum.data(), static_cast<int>(sum.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum;
  }

  Rig rig;
  std::unique_ptr<GradientSync> sync;
};

// What a step takes in comes out or is kept: Σ over ranks of (g + r) = N · mean + Σ r', for every sync that keeps a residual. (With
// momentum correction the momentum adds input of its own.)
TEST(ErrorFeedback, NothingIsLost) {
  std::set<std::string> covered;
  for (const Case& method : all_cases()) {
    if (method.sync.empty()) continue;
    SyncRun run(method, 1000);
    if (!run.has("residual") || run.has("velocity")) continue;
    covered.insert(method.sync);
    SCOPED_TRACE(method.name());
    Rig& rig = run.rig;
    std::vector<double> before = run.kept();
    for (std::int64_t t = 1; t <= 20; ++t) {
      Rig::fill(rig.grads, [&](std::int64_t j) { return normal_at(7, t, rig.comm->rank(), j); });
      const std::vector<double> input = SyncRun::over_ranks({rig.grads.data(), rig.grads.data() + rig.grads.size()});
      EXPECT_TRUE(run.sync->reduce(rig.context(t, learning_rate)));
      const std::vector<double> after = run.kept();
      double lost = 0;
      for (std::size_t j = 0; j < input.size(); ++j) {
        lost =
            std::max(lost, std::abs(before[j] + input[j] - rig.comm->size() * static_cast<double>(rig.grads.data()[j]) - after[j]));
      }
      EXPECT_LT(lost, 1e-4) << "step " << t;
      before = after;
    }
  }
  EXPECT_THAT(covered, ::testing::IsSupersetOf({"oktopk", "powersgd", "radius", "topk", "topk_shared"}));
}

// Random layouts in any order of roles, random options: replicas equal, bytes as declared, finite. SCAPE_TEST_SEED replays one.
TEST(Property, RandomLayoutsAndOptions) {
  const char* given = std::getenv("SCAPE_TEST_SEED");
  const std::uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const std::uint64_t last = given != nullptr ? first : 40;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    Rng rng(seed);
    const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(rng.below(n)); };
    const auto bases = base_cases();
    Case method = bases[pick(bases.size())];
    for (const auto& [option, accepts] : own_options(method)) {
      const auto values = values_of(option, accepts);
      if (!values.empty() && pick(2) == 0) method = method.with({{option, values[pick(values.size())]}});
    }
    ParameterLayout layout;
    const std::size_t tensors = 1 + pick(6);
    for (std::size_t i = 0; i < tensors; ++i) {
      const auto rows = static_cast<std::int64_t>(1 + pick(40));
      if (pick(3) == 0) {
        layout.add("v" + std::to_string(i), {rows}, TensorRole::vector);
      } else {
        layout.add("w" + std::to_string(i), {rows, static_cast<std::int64_t>(1 + pick(30))}, TensorRole::matrix);
      }
    }
    SCOPED_TRACE("SCAPE_TEST_SEED=" + std::to_string(seed) + " " + method.name() + ", " + std::to_string(layout.size()) +
                 " coordinates");
    std::unique_ptr<Training> run;
    try {
      run = std::make_unique<Training>(method, layout, MPI_COMM_WORLD, Streams::immediate);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();  // options that exclude each other
      continue;
    }
    for (std::int64_t t = 1; t <= 10; ++t) {
      const double before = run->wire_bytes();
      EXPECT_TRUE(run->step(t).applied);
      const double expected = run->optimizer->expected_wire_bytes(t);
      EXPECT_NEAR(run->wire_bytes() - before, expected, 1e-9 * expected) << "step " << t;
      EXPECT_TRUE(same_on_all_ranks(run->rig)) << "step " << t;
    }
    EXPECT_TRUE(all_finite(run->rig.values()));
  }
}

}  // namespace
}  // namespace scape::testing
