// bench_methods: one optimizer step of every method in the registry, without a model: random gradients, time by phase, bytes.
// The time of a step is what the compute stream takes; what is then still under way on the communication stream would hide
// behind the next backward pass and is not counted.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "scape/baselines.hpp"
#include "scape/error.hpp"
#include "support.hpp"

namespace scape::bench {

namespace {

using Clock = std::chrono::steady_clock;

// Untimed steps, and the length of the run as far as schedules know: warm-ups, which are fractions of it, are over when timing
// begins, and delayed masks are in use.
constexpr std::int64_t warmup_steps = 8;

// A method by the names that the `scape` program knows it by.
struct Named {
  std::string optimizer, sync;
  [[nodiscard]] std::string label() const { return sync.empty() ? optimizer : optimizer + "+" + sync; }
};

// Every complete method; every rule with the dense sync; every other sync with the first rule.
std::vector<Named> all_methods(const Registry& registry) {
  std::vector<Named> methods;
  for (const auto& method : registry.optimizers.all()) methods.push_back({method.name, ""});
  for (const auto& rule : registry.rules.all()) methods.push_back({rule.name, "dense"});
  for (const auto& sync : registry.syncs.all()) {
    if (sync.name != "dense") methods.push_back({registry.rules.all().front().name, sync.name});
  }
  return methods;
}

constexpr std::int64_t columns = 256;
constexpr std::int64_t least_parameters = 2 * 8 * columns;

// Eight matrices of 256 columns and eight vectors, at most `parameters` coordinates in all, and fewer by less than 2048.
ParameterLayout make_layout(std::int64_t parameters) {
  const std::int64_t rows = parameters / (8 * columns) - 1;
  ParameterLayout layout;
  for (int i = 0; i < 8; ++i) layout.add("matrix" + std::to_string(i), {rows, columns}, TensorRole::matrix);
  for (int i = 0; i < 8; ++i) layout.add("vector" + std::to_string(i), {columns}, TensorRole::vector);
  return layout;
}

// The method with the settings that it has. Adds the names of all its options to `known`.
MethodChoice choose(const Registry& registry, const Named& name, const std::vector<Setting>& settings,
                    std::vector<std::string>& known) {
  MethodChoice choice(registry, name.optimizer, name.sync);
  OptionTable table;
  choice.declare(table);
  for (const OptionTable::Option& option : table.options()) known.push_back(option.name);
  for (const Setting& setting : settings) {
    if (table.contains(setting.name)) table.set(setting);
  }
  return choice;
}

class Experiment {
 public:
  Experiment(const MethodChoice& choice, const ParameterLayout& layout, Communicator& comm, Device device)
      : layout_(layout),
        comm_(comm),
        stream_(stream_on(device)),
        comm_stream_(device),
        theta_(layout.size(), device),
        gradient_(layout.size(), device),
        scratch_(layout.size(), device),
        method_(choice.make({layout, device, comm.rank(), comm.size(), warmup_steps, 1})) {
    const auto values = normal_values(layout.size() + comm.rank());  // each rank's gradient begins elsewhere in the list
    copy(gradient_.span(), values.last(static_cast<std::size_t>(layout.size())), stream_);
    stream_.synchronize();
  }

  // Seconds of the compute stream. The gradient is a fresh copy: methods use it as scratch.
  double step() {
    copy(scratch_.span(), gradient_, stream_);
    stream_.synchronize();
    MPI_Barrier(MPI_COMM_WORLD);
    const auto begin = Clock::now();
    const StepResult result = method_->step({theta_, scratch_, layout_, comm_, stream_, comm_stream_, telemetry_, ++t_, 1e-4});
    stream_.synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    comm_stream_.synchronize();
    require(result.applied, ErrorKind::internal, "bench_methods: a step was refused");
    expected_bytes_ += method_->expected_wire_bytes(t_);
    return seconds;
  }

  [[nodiscard]] Telemetry::Seconds take_phases() { return telemetry_.take(); }
  [[nodiscard]] double take_expected_bytes() { return std::exchange(expected_bytes_, 0); }

 private:
  const ParameterLayout& layout_;
  Communicator& comm_;
  Stream stream_, comm_stream_;
  Buffer<float> theta_, gradient_, scratch_;
  std::unique_ptr<Optimizer> method_;
  Telemetry telemetry_;
  std::int64_t t_ = 0;
  double expected_bytes_ = 0;
};

void measure(benchmark::State& state, const MethodChoice& choice, const ParameterLayout& layout, Communicator& comm,
             Device device) {
  require_same_iterations(state);
  Experiment experiment(choice, layout, comm, device);
  for (int i = 0; i < warmup_steps; ++i) experiment.step();
  static_cast<void>(experiment.take_phases());
  static_cast<void>(experiment.take_expected_bytes());
  const Traffic before = comm.traffic();
  for (auto _ : state) state.SetIterationTime(slowest(experiment.step()));

  using benchmark::Counter;
  const CollectiveTraffic traffic = comm.traffic().since(before).total();
  const double expected = experiment.take_expected_bytes();
  if (std::abs(traffic.wire_bytes - expected) > 0.05 * expected) {
    return fail(state,
                "counted " + std::to_string(traffic.wire_bytes) + " bytes, the method's formula says " + std::to_string(expected));
  }
  Telemetry::Seconds phases = experiment.take_phases();
  MPI_Allreduce(MPI_IN_PLACE, phases.data(), static_cast<int>(phases.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  for (const Phase phase : {Phase::compress, Phase::communication, Phase::update}) {
    state.counters[to_string(phase)] = Counter(phases[static_cast<std::size_t>(phase)] / comm.size(), Counter::kAvgIterations);
  }
  state.counters["wire_bytes"] = Counter(traffic.wire_bytes, Counter::kAvgIterations);
  state.counters["dense_bytes"] =
      wire_bytes(Collective::all_reduce, static_cast<double>(layout.size()) * sizeof(float), comm.size());
  state.counters["collectives"] = Counter(static_cast<double>(traffic.calls), Counter::kAvgIterations);
}

struct Arguments {
  std::int64_t parameters = 1 << 20;
  std::vector<std::string> settings;
};

Arguments parse(std::vector<std::string> arguments) {
  Arguments result;
  CLI::App app;
  app.add_option("--parameters", result.parameters)->check(CLI::Range(least_parameters, std::int64_t{1} << 36));
  app.add_option("--set", result.settings);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorKind::usage, error.what());
  }
  return result;
}

void declare(std::vector<std::string> arguments) {
  const Arguments parsed = parse(std::move(arguments));
  Registry registry;
  register_core(registry);
  register_baselines(registry);
  std::vector<Setting> settings;
  for (const std::string& text : parsed.settings) settings.push_back(parse_setting(text, "--set"));

  const auto layout = std::make_shared<const ParameterLayout>(make_layout(parsed.parameters));
  std::vector<std::string> known;
  for (const Device device : devices()) {
    const std::shared_ptr<Communicator> comm = make_communicator("auto", MPI_COMM_WORLD, device);
    for (const Named& name : all_methods(registry)) {
      const auto choice = std::make_shared<const MethodChoice>(choose(registry, name, settings, known));
      const std::string kind = device.kind == DeviceKind::cpu ? "cpu/" : "cuda/";
      benchmark::RegisterBenchmark((kind + name.label() + "/parameters:" + std::to_string(layout->size())).c_str(),
                                   [=](benchmark::State& state) { measure(state, *choice, *layout, *comm, device); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  for (const Setting& setting : settings) {
    if (std::ranges::find(known, setting.name) == known.end()) {
      throw Error(ErrorKind::usage, setting.origin + ": no method has an option '" + setting.name + "'; did you mean '" +
                                        nearest_name(setting.name, known) + "'?");
    }
  }
}

}  // namespace

}  // namespace scape::bench

int main(int argc, char** argv) {
  return scape::bench::run(argc, argv, scape::bench::declare,
                           "--parameters N       coordinates, from 4096 on, rounded down to a multiple of 2048 (1048576)\n"
                           "--set NAME=VALUE     option of the methods that have it, for example density=0.1; may be repeated\n");
}
