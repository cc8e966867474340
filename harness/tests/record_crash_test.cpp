// Killed writers and full disks, in child processes: the file must open and hold every step up to the last flush.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "record/hdf5.hpp"
#include "record/hdf5_recorder.hpp"
#include "record_support.hpp"
#include "scape/error.hpp"
#include "scape/rng.hpp"

namespace scape {
namespace {

using ::testing::HasSubstr;
using testing::record_sample;
using testing::sample_diagnostics;
using testing::sample_info;
using testing::sample_step;
using testing::TemporaryFolder;

// Runs `body` in a child process; its result is the child's exit status.
template <class Body>
pid_t start(Body body) {
  const pid_t child = fork();
  if (child == 0) std::exit(body());  // with the exit handlers of HDF5
  return child;
}

int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

// Number of rows recorded in a group; every column of each row has the values that were recorded, which `expected` gives.
template <class Expected>
std::int64_t check_group(const hdf5::Group& group, const std::vector<Column>& schema, Expected expected) {
  std::vector<std::vector<double>> columns;
  for (const Column& column : schema) columns.push_back(group.dataset(column.name).read());
  const auto rows =
      static_cast<std::size_t>(std::count_if(columns[0].begin(), columns[0].end(), [](double step) { return step >= 0; }));
  for (std::size_t row = 0; row < rows; ++row) {
    const std::vector<double> values = expected(static_cast<std::int64_t>(row));
    auto value = values.begin();
    for (std::size_t i = 0; i < schema.size(); ++i) {
      const std::size_t elements = columns[i].size() / columns[0].size();
      for (std::size_t e = 0; e < elements; ++e) {
        EXPECT_THAT(columns[i].at(row * elements + e), ::testing::NanSensitiveDoubleEq(*value++))
            << schema[i].name << ", row " << row;
      }
    }
    EXPECT_EQ(value, values.end());
  }
  return static_cast<std::int64_t>(rows);
}

// Number of recorded steps. Diagnostics reach as far.
std::int64_t check_rows(const std::filesystem::path& path) {
  const hdf5::File file(path, hdf5::Mode::read);
  const std::int64_t rows = check_group(file.group("steps"), step_columns(sample_info().extra),
                                        [](std::int64_t row) { return step_values(sample_step(row + 1)); });
  const std::int64_t every = sample_info().diagnostics_every;
  EXPECT_EQ(check_group(file.group("diagnostics"), diagnostics_columns(2),
                        [&](std::int64_t row) { return diagnostics_values(sample_diagnostics(every * (row + 1))); }),
            rows / every);
  return rows;
}

RunInfo long_run() {
  RunInfo info = sample_info();
  info.planned_steps = 4000;
  return info;
}

// Records all planned steps and then waits; `after` is called after each step.
template <class After>
[[noreturn]] void record_forever(const std::filesystem::path& path, After after) {
  Hdf5Recorder recorder(path);
  recorder.begin(long_run());
  for (std::int64_t step = 1; step <= long_run().planned_steps; ++step) {
    record_sample(recorder, step);
    after(step);
  }
  for (;;) pause();
}

TEST(KilledRun, KeepsEveryStepUpToTheLastFlush) {
  const TemporaryFolder folder;
  Rng random(20240701);
  for (int trial = 0; trial < 8; ++trial) {
    const auto last = static_cast<std::int64_t>(1 + random.below(600));
    const auto path = folder / fmt::format("{}.h5", trial);
    const pid_t child = start([&]() -> int {
      record_forever(path, [=](std::int64_t step) {
        if (step == last) std::raise(SIGKILL);
      });
    });
    ASSERT_EQ(WTERMSIG(status_of(child)), SIGKILL);
    EXPECT_EQ(check_rows(path), last - last % Hdf5Recorder::steps_between_flushes);
    EXPECT_EQ(read_run_file_state(path).status, "running");
  }
}

// Killed from outside, wherever the writer is just then, inside a flush too; then continued.
TEST(KilledRun, KilledAtAnyMomentOpensAndCanBeContinued) {
  const TemporaryFolder folder;
  Rng random(42);
  for (int trial = 0; trial < 50; ++trial) {
    const auto path = folder / fmt::format("{}.h5", trial);
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = start([&]() -> int {
      record_forever(path, [&](std::int64_t /*step*/) {
        if (::write(pipe_ends[1], "s", 1) != 1) std::exit(1);
      });
    });
    const auto wanted = static_cast<std::int64_t>(1 + random.below(700));
    std::int64_t seen = 0;
    for (char byte = 0; seen < wanted && ::read(pipe_ends[0], &byte, 1) == 1;) ++seen;
    kill(child, SIGKILL);
    ASSERT_EQ(WTERMSIG(status_of(child)), SIGKILL);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    const std::int64_t rows = check_rows(path);
    EXPECT_GT(rows, seen - Hdf5Recorder::steps_between_flushes);

    RunInfo info = long_run();
    info.first_step = rows + 1;
    Hdf5Recorder recorder(path, ExistingFile::append);
    recorder.begin(info);
    record_sample(recorder, rows + 1);
    recorder.end({});
    EXPECT_EQ(read_run_file_state(path).last_step, rows + 1);
  }
}

TEST(FullDisk, IsAnErrorThatNamesTheFileAndLeavesAReadableOne) {
  const TemporaryFolder folder;
  const auto path = folder / "run.h5";
  const auto message = folder / "message";
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1024}, rlim_t{1} << 20}) {
    std::filesystem::remove(path);
    const pid_t child = start([&]() -> int {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit file_size{limit, limit};
      setrlimit(RLIMIT_FSIZE, &file_size);
      Hdf5Recorder recorder(path);
      bool begun = false;
      try {
        recorder.begin(sample_info());
        begun = true;
        for (std::int64_t step = 1; step <= 100000; ++step) record_sample(recorder, step);
      } catch (const Error& error) {
        const bool named = std::string(error.what()).starts_with(path.string()) &&
                           std::string(error.what()).find("File too large") != std::string::npos;
        if (!named) fmt::print(stderr, "{}\n", error.what());
        return error.kind() == ErrorKind::input && named && begun == (limit > 1024) ? 0 : 2;
      }
      return 1;
    });
    EXPECT_EQ(status_of(child), 0) << limit;
    EXPECT_EQ(std::filesystem::exists(path), limit > 1024);  // nothing half-written
  }
  EXPECT_GE(check_rows(path), Hdf5Recorder::steps_between_flushes);
}

}  // namespace
}  // namespace scape
