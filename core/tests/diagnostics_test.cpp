// Diagnostics: small cases that can be followed by hand, with a method that does as it is told; then SCAPE on real ranks, held
// against what it says itself and against c computed anew.
#include "scape/diagnostics.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "scape/scape.hpp"
#include "support/rig.hpp"

namespace scape::testing {
namespace {

using ::testing::ElementsAreArray;

// Uses the mask, candidate and residual that it is given.
class Puppet final : public Optimizer {
 public:
  explicit Puppet(std::int64_t size) : candidate(static_cast<std::size_t>(size)), residual(candidate) {}
  void use(const std::vector<std::int64_t>& coordinates) {
    words.assign((candidate.size() + 63) / 64, 0);
    for (const std::int64_t j : coordinates) words[static_cast<std::size_t>(j / 64)] |= std::uint64_t{1} << j % 64;
  }
  StepResult step(const StepContext& /*context*/) override { return {}; }
  [[nodiscard]] std::vector<StateEntry> state() override { return {}; }
  [[nodiscard]] double expected_wire_bytes(std::int64_t /*step*/) const override { return 0; }
  [[nodiscard]] StepView inspect(const StepContext& /*context*/) const override {
    return {.mask = {words.data(), static_cast<std::int64_t>(words.size()), cpu_device},
            .candidate = {candidate.data(), static_cast<std::int64_t>(candidate.size()), cpu_device},
            .residual = {residual.data(), static_cast<std::int64_t>(residual.size()), cpu_device}};
  }
  std::vector<std::uint64_t> words;
  std::vector<float> candidate, residual;
};

ParameterLayout two_tensors(std::int64_t first, std::int64_t second) {
  ParameterLayout layout;
  layout.add("a", {first}, TensorRole::matrix);
  layout.add("b", {second}, TensorRole::matrix);
  return layout;
}

struct Hand {
  Rig rig;
  Puppet method;
  Diagnostics diagnostics;
  std::int64_t step = 0;

  Hand(const ParameterLayout& layout, std::int64_t every)
      : rig(layout, MPI_COMM_SELF), method(layout.size()), diagnostics(layout, every) {}

  std::vector<TensorDiagnostics> next(const std::vector<std::int64_t>& mask) {
    method.use(mask);
    ++step;
    const StepContext context = rig.context(step, 0.1);
    if (diagnostics.due(context)) diagnostics.keep_gradients(context, {0, rig.layout.size()});
    return diagnostics.after_step(context, method);
  }
};

template <std::size_t N>
std::vector<std::int64_t> leading(const std::array<std::int64_t, N>& counts, std::size_t n) {
  for (std::size_t i = n; i < N; ++i) EXPECT_EQ(counts[i], 0) << i;
  return {counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(n)};
}

const std::vector<std::int64_t> everything{0, 1, 2, 3, 4, 5, 6, 7};

TEST(Diagnostics, BinsOfGradients) {
  EXPECT_EQ(GradientBins::of(0.0F), 0);
  EXPECT_EQ(GradientBins::of(-0.0F), 0);
  EXPECT_EQ(GradientBins::of(1e-38F), 1);
  EXPECT_EQ(GradientBins::of(1.5e-12F), 1);
  EXPECT_EQ(GradientBins::of(1.0F), 49);
  EXPECT_EQ(GradientBins::of(-1.7F), 49);
  EXPECT_EQ(GradientBins::of(1.8F), 50);
  EXPECT_EQ(GradientBins::of(9999.0F), 64);
  EXPECT_EQ(GradientBins::of(1e30F), 64);
  EXPECT_EQ(GradientBins::lower_edge(0), 0);
  EXPECT_DOUBLE_EQ(GradientBins::lower_edge(1), 1e-12);
  EXPECT_DOUBLE_EQ(GradientBins::lower_edge(49), 1);
  for (std::int64_t bin = 1; bin < GradientBins::count; ++bin)
    EXPECT_EQ(GradientBins::of(static_cast<float>(1.01 * GradientBins::lower_edge(bin))), bin);
}

TEST(Diagnostics, BinsOfAges) {
  const std::vector<std::int64_t> ages{0, 1, 2, 3, 4, 7, 8, 1000, std::int64_t{1} << 40};
  const std::vector<std::int64_t> bins{0, 1, 2, 2, 3, 3, 4, 10, 31};
  for (std::size_t i = 0; i < ages.size(); ++i) EXPECT_EQ(AgeBins::of(ages[i]), bins[i]) << ages[i];
  for (std::int64_t bin = 0; bin < AgeBins::count; ++bin)
    EXPECT_EQ(AgeBins::of(static_cast<std::int64_t>(AgeBins::lower_edge(bin))), bin);
}

TEST(Diagnostics, MasksAndAgesByHand) {
  Hand run(two_tensors(4, 4), 1);
  auto record = run.next(everything);  // nothing was chosen yet
  ASSERT_EQ(record.size(), 2U);
  for (const TensorDiagnostics& tensor : record) {
    for (const double x : {tensor.jaccard_previous, tensor.share_previous, tensor.jaccard_first, tensor.share_first})
      EXPECT_TRUE(std::isnan(x));
    EXPECT_THAT(leading(tensor.age_histogram, 1), ElementsAreArray({4}));
  }
  record = run.next({0, 1, 4, 5});
  EXPECT_EQ(record[0].jaccard_previous, 0.5);
  EXPECT_EQ(record[0].share_previous, 1);
  EXPECT_EQ(record[0].jaccard_first, 1);
  record = run.next({1, 2, 4, 5});
  EXPECT_DOUBLE_EQ(record[0].jaccard_previous, 1.0 / 3);
  EXPECT_EQ(record[0].share_previous, 0.5);
  EXPECT_EQ(record[1].jaccard_previous, 1);
  EXPECT_EQ(record[1].share_first, 1);
  EXPECT_THAT(leading(record[0].age_histogram, 3), ElementsAreArray({2, 1, 1}));  // 3 was last on the mask in step 1
  record = run.next({2, 6, 7});                                                   // of another size: the first of its kind
  EXPECT_EQ(record[0].jaccard_previous, 0.5);
  EXPECT_EQ(record[0].share_previous, 1);
  EXPECT_EQ(record[0].share_first, 1);
  EXPECT_EQ(record[1].jaccard_previous, 0);
  EXPECT_THAT(leading(record[0].age_histogram, 3), ElementsAreArray({1, 1, 2}));
  EXPECT_THAT(leading(record[1].age_histogram, 2), ElementsAreArray({2, 2}));
  record = run.next({0, 1, 2});
  EXPECT_DOUBLE_EQ(record[0].jaccard_first, 1.0 / 3);
  EXPECT_DOUBLE_EQ(record[0].share_first, 1.0 / 3);
  EXPECT_EQ(record[1].jaccard_first, 0);
  EXPECT_TRUE(std::isnan(record[1].share_first));  // no coordinate of b is on the mask
  for (int i = 0; i < 11; ++i) record = run.next({0, 1, 2});
  EXPECT_THAT(leading(record[1].age_histogram, 5), ElementsAreArray({0, 0, 0, 0, 4}));  // last used in steps 3 and 4, now is 16
}

TEST(Diagnostics, EnergyNormsAndGradientsByHand) {
  Hand run(two_tensors(4, 4), 1);
  run.method.candidate = {3, -4, 1, 0, 0, 0, 0, 0};
  run.method.residual = {3, 0, -4, 0, 0, 0, 0, 2};
  const std::vector<float> gradient{0, 1, -1, 1e-20F, 0, 0, 0, 1000};
  Rig::fill(run.rig.grads, [&](std::int64_t j) { return gradient[static_cast<std::size_t>(j)]; });
  auto record = run.next({1, 2, 4});
  EXPECT_DOUBLE_EQ(record[0].energy_overlap, 17.0 / 25);
  EXPECT_DOUBLE_EQ(record[0].topk_norm, std::sqrt(17.0));
  EXPECT_EQ(record[0].residual_norm, 5);
  EXPECT_TRUE(std::isnan(record[1].energy_overlap));
  EXPECT_EQ(record[1].topk_norm, 0);
  EXPECT_EQ(record[1].residual_norm, 2);
  EXPECT_EQ(record[0].gradient_histogram[0], 1);
  EXPECT_EQ(record[0].gradient_histogram[1], 1);
  EXPECT_EQ(record[0].gradient_histogram[49], 2);
  EXPECT_EQ(record[1].gradient_histogram[0], 3);
  EXPECT_EQ(record[1].gradient_histogram[61], 1);
  EXPECT_EQ(run.next(everything)[0].energy_overlap, 1);
}

// Tensors that begin and end inside of mask words, and masks that touch the words' ends.
TEST(Diagnostics, TensorsNeedNotFitWords) {
  Hand run(two_tensors(70, 130), 1);
  run.method.candidate.assign(200, 1);
  run.next({0, 63, 64, 69, 70, 127, 128, 199});
  const auto record = run.next({0, 64, 69, 71, 127, 198, 199});
  EXPECT_DOUBLE_EQ(record[0].jaccard_previous, 3.0 / 4);
  EXPECT_DOUBLE_EQ(record[0].share_previous, 1);
  EXPECT_DOUBLE_EQ(record[1].jaccard_previous, 2.0 / 6);
  EXPECT_DOUBLE_EQ(record[1].topk_norm, 2);
  EXPECT_EQ(record[1].age_histogram[0], 4);
  EXPECT_EQ(record[1].age_histogram[1], 2);
  EXPECT_EQ(record[1].age_histogram[2], 124);  // never on a mask: as if last in step 0
}

TEST(Diagnostics, RecordsWhenDueFollowsAlwaysAndContinues) {
  const std::vector<std::vector<std::int64_t>> masks{everything, {0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}};
  Hand off(two_tensors(4, 4), 0);
  EXPECT_TRUE(off.next(everything).empty());
  EXPECT_TRUE(off.diagnostics.state().empty());

  Hand every(two_tensors(4, 4), 1);
  Hand third(two_tensors(4, 4), 3);
  Hand resumed(two_tensors(4, 4), 3);
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const auto expected = every.next(masks[i]);
    const auto record = third.next(masks[i]);
    EXPECT_EQ(record.size(), i % 3 == 2 ? 2U : 0U);
    if (i == 3) {
      const auto from = third.diagnostics.state();
      const auto to = resumed.diagnostics.state();
      ASSERT_EQ(from.size(), to.size());
      for (std::size_t e = 0; e < from.size(); ++e) std::copy_n(from[e].bytes.data(), from[e].bytes.size(), to[e].bytes.data());
      resumed.step = third.step;
    }
    const auto continued = i > 3 ? resumed.next(masks[i]) : record;
    for (std::size_t tensor = 0; tensor < record.size(); ++tensor) {
      for (const TensorDiagnostics& mine : {record[tensor], continued[tensor]}) {
        EXPECT_EQ(mine.age_histogram, expected[tensor].age_histogram);
        EXPECT_THAT(mine.jaccard_previous, ::testing::NanSensitiveDoubleEq(expected[tensor].jaccard_previous));
        EXPECT_THAT(mine.share_first, ::testing::NanSensitiveDoubleEq(expected[tensor].share_first));
      }
    }
  }
}

TEST(Diagnostics, OfAMethodThatShowsNothingOnlyGradients) {
  class Dense final : public Optimizer {
    StepResult step(const StepContext& /*context*/) override { return {}; }
    [[nodiscard]] std::vector<StateEntry> state() override { return {}; }
    [[nodiscard]] double expected_wire_bytes(std::int64_t /*step*/) const override { return 0; }
  } method;
  Rig rig(two_tensors(4, 4), MPI_COMM_SELF);
  Diagnostics diagnostics(rig.layout, 1);
  const StepContext context = rig.context(1, 0.1);
  EXPECT_THROW((void)diagnostics.after_step(context, method), Error);  // gradients were not kept
  diagnostics.keep_gradients(context, {0, 8});
  const auto record = diagnostics.after_step(context, method);
  EXPECT_EQ(record[0].gradient_histogram[0], 4);
  EXPECT_TRUE(std::isnan(record[0].share_previous) && std::isnan(record[0].energy_overlap) && std::isnan(record[0].residual_norm));
  EXPECT_THAT(leading(record[0].age_histogram, 0), ::testing::IsEmpty());
}

// SCAPE on all ranks, watched or not.
struct Watched {
  std::vector<float> params;
  StateBytes state;
  std::vector<std::vector<TensorDiagnostics>> records;
  std::vector<StepResult> results;
};

constexpr std::int64_t steps = 12;

std::vector<float> floats(Optimizer& method, const std::string& name) {
  for (const StateEntry& entry : method.state()) {
    const auto* values = reinterpret_cast<const float*>(entry.bytes.data());
    if (entry.name == name) return {values, values + entry.bytes.size() / 4};
  }
  throw Error(ErrorKind::internal, "no state entry " + name);
}

Watched watch(std::int64_t every, Streams streams) {
  ParameterLayout layout;
  layout.add("w1", {30, 10}, TensorRole::matrix);
  layout.add("w2", {211}, TensorRole::matrix);
  layout.add("b", {17}, TensorRole::vector);
  Rig rig(layout, MPI_COMM_WORLD, streams);
  const CommonOptions common{.beta1 = 0.875};
  ScapeOptions options;
  options.density = {.density = 0.1, .density_warmup = DensityWarmup::none};
  options.backlog_scaling = BacklogScaling::sqrt;  // for the ages that it keeps
  Scape method(options, common, rig.method_context(steps));
  Diagnostics diagnostics(layout, every);
  Watched watched;
  for (std::int64_t t = 1; t <= steps; ++t) {
    std::vector<float> c;  // as this rank will make it
    const std::vector<float> m = floats(method, "scape/m");
    const std::vector<float> e = floats(method, "scape/residual");
    for (std::int64_t j = 0; j < layout.size(); ++j) {
      const float g = normal_at(5, t, rig.comm->rank(), j);
      rig.grads.data()[j] = g;
      c.push_back(0.875F * m[static_cast<std::size_t>(j)] + 0.125F * g + e[static_cast<std::size_t>(j)]);
    }
    const StepContext context = rig.context(t, 0.01);
    for (auto tensor = layout.tensors().rbegin(); tensor != layout.tensors().rend(); ++tensor) {
      if (diagnostics.due(context)) diagnostics.keep_gradients(context, tensor->range);
      method.gradients_ready(context, tensor->range);
    }
    watched.results.push_back(method.step(context));
    rig.stream.synchronize();
    const auto record = diagnostics.after_step(context, method);
    EXPECT_EQ(record.empty(), every == 0 || t % every != 0 || rig.comm->rank() != 0);
    for (std::size_t i = 0; i < record.size(); ++i) {
      const Range range = layout.tensors()[i].range;
      std::vector<double> squares;
      double sent = 0;
      std::int64_t k = 0;
      for (std::int64_t j = range.begin; j < range.end; ++j) {
        const double square = std::pow(static_cast<double>(c[static_cast<std::size_t>(j)]), 2);
        squares.push_back(square);
        if ((method.mask().words.data()[j / 64] >> j % 64 & 1) != 0) sent += square, ++k;
      }
      std::sort(squares.rbegin(), squares.rend());
      double best = 0;
      for (std::int64_t r = 0; r < k; ++r) best += squares[static_cast<std::size_t>(r)];
      double all = 0;
      for (const double square : squares) all += square;
      EXPECT_NEAR(record[i].energy_overlap, sent / best, 1e-5) << "step " << t << ", tensor " << i;
      EXPECT_LE(record[i].energy_overlap, 1 + 1e-12);
      EXPECT_NEAR(record[i].topk_norm, std::sqrt(sent), 1e-5);
      EXPECT_NEAR(record[i].residual_norm, std::sqrt(std::max(0.0, all - sent)), 1e-4);
      std::int64_t counted = 0;
      for (const std::int64_t count : record[i].gradient_histogram) counted += count;
      EXPECT_EQ(counted, range.size());
      EXPECT_EQ(record[i].age_histogram[0], k);
      std::array<std::int64_t, AgeBins::count> ages{};  // the method's: those of the next step
      for (const StateEntry& entry : method.state()) {
        if (entry.name != "scape/ages") continue;
        const auto* age = reinterpret_cast<const std::uint16_t*>(entry.bytes.data());
        for (std::int64_t j = range.begin; j < range.end; ++j) ++ages[static_cast<std::size_t>(AgeBins::of(age[j] - 1))];
      }
      EXPECT_EQ(record[i].age_histogram, ages);
    }
    watched.records.push_back(record);
  }
  rig.comm_stream.synchronize();
  watched.params = rig.values();
  watched.state = save(method);
  return watched;
}

TEST(Diagnostics, OfScapeAgreeWithItAndChangeNothing) {
  for (const Streams streams : {Streams::immediate, Streams::queued}) {
    const Watched without = watch(0, streams);
    const Watched with = watch(1, streams);
    EXPECT_TRUE(with.params == without.params);
    EXPECT_TRUE(with.state == without.state);
    for (std::size_t t = 0; t < steps; ++t) {
      const auto& record = with.records[t];
      if (record.empty()) continue;
      double common = 0;
      double count = 0;
      double squares = 0;
      for (const TensorDiagnostics& tensor : record) {
        common += tensor.share_previous * static_cast<double>(tensor.age_histogram[0]);
        count += static_cast<double>(tensor.age_histogram[0]);
        squares += std::pow(tensor.residual_norm, 2);
      }
      if (t > 0) {
        EXPECT_NEAR(common / count, with.results[t].mask_overlap, 1e-12);
        EXPECT_EQ(record[2].share_first, 1) << "vectors are always on the mask";
      }
      EXPECT_NEAR(std::sqrt(squares), with.results[t].residual_norm, 1e-5);
    }
  }
}

}  // namespace
}  // namespace scape::testing
