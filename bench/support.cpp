// main() of the benchmark programs, and timing on several ranks.
#include "support.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "scape/build_info.hpp"
#include "scape/communicator.hpp"
#include "scape/error.hpp"
#include "scape/rng.hpp"

namespace scape::bench {

namespace {

bool failed = false;

class Silence final : public benchmark::BenchmarkReporter {
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// What a reader of the JSON file needs to repeat the run.
void add_context() {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  benchmark::AddCustomContext("ranks", std::to_string(ranks));
  benchmark::AddCustomContext("scape_version", std::string(build_info::version));
  benchmark::AddCustomContext("compiler", std::string(build_info::compiler));
  benchmark::AddCustomContext("build_type", std::string(build_info::build_type));
  benchmark::AddCustomContext("native", build_info::native ? "true" : "false");
  for (const Device device : devices()) benchmark::AddCustomContext(to_string(device), device_name(device));
}

}  // namespace

int run(int argc, char** argv, const std::function<void(std::vector<std::string> arguments)>& declare, std::string_view help) {
  if (std::find(argv, argv + argc, std::string_view("--help")) != argv + argc) {
    std::printf(
        "%.*sGoogle Benchmark's flags, of which the most useful are\n"
        "--benchmark_list_tests, --benchmark_filter=REGEX, --benchmark_min_time=SECONDS,\n"
        "--benchmark_out=FILE (JSON), --benchmark_repetitions=N, --benchmark_counters_tabular=true\n",
        static_cast<int>(help.size()), help.data());
    return 0;
  }
  const MpiSession mpi(argc, argv);
  const int rank = world_rank();
  try {
    std::vector<char*> arguments(argv, argv + argc);
    char no_file[] = "--benchmark_out=";  // overrides flag and environment
    if (rank != 0) arguments.push_back(no_file);
    int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    benchmark::Initialize(&count, arguments.data());
    declare({arguments.begin() + 1, arguments.begin() + count});
    add_context();
    Silence silence;
    if (rank == 0) {
      benchmark::RunSpecifiedBenchmarks();
    } else {
      benchmark::RunSpecifiedBenchmarks(&silence);
    }
    benchmark::Shutdown();
    return failed ? 1 : 0;
  } catch (const Error& error) {
    const bool on_all_ranks = error.kind() == ErrorKind::usage;
    if (rank == 0 || !on_all_ranks) std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    if (!on_all_ranks) MPI_Abort(MPI_COMM_WORLD, exit_status(error.kind()));
    return exit_status(error.kind());
  }
}

void require_no_arguments(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) throw Error(ErrorKind::usage, "unknown argument '" + arguments.front() + "', see --help");
}

void fail(benchmark::State& state, const std::string& message) {
  failed = true;
  state.SkipWithError(message.c_str());
}

std::vector<Device> devices() {
  std::vector<Device> devices{cpu_device};
  const int gpus = device_count(DeviceKind::cuda);
  if (gpus > 0) devices.push_back({DeviceKind::cuda, world_rank() % gpus});
  return devices;
}

Stream stream_on(Device device) {
  return device.kind == DeviceKind::cpu ? Stream() : Stream(device);
}

std::span<const float> normal_values(std::int64_t n) {
  static std::vector<float> values;
  static Rng random(1);
  while (static_cast<std::int64_t>(values.size()) < n) values.push_back(random.normal());
  return std::span(values).first(static_cast<std::size_t>(n));
}

double slowest(double seconds) {
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

void require_same_iterations(const benchmark::State& state) {
  std::array<std::int64_t, 2> bounds{state.max_iterations, -state.max_iterations};
  MPI_Allreduce(MPI_IN_PLACE, bounds.data(), 2, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  require(bounds[0] == -bounds[1], ErrorKind::internal, "the ranks disagree about the number of iterations");
}

}  // namespace scape::bench
