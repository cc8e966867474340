// Run files: what is written can be read, what cannot be written is said, and a resumed run has every step once.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <fstream>
#include <sstream>

#include "message_of.hpp"
#include "record/hdf5.hpp"
#include "record/hdf5_recorder.hpp"
#include "record_support.hpp"

namespace scape {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::record_sample;
using testing::sample_diagnostics;
using testing::sample_info;
using testing::sample_step;
using testing::TemporaryFolder;

std::vector<double> column(const std::filesystem::path& path, const std::string& group, const std::string& name) {
  return hdf5::File(path, hdf5::Mode::read).group(group).dataset(name).read();
}

std::optional<OptionValue> attribute(const std::filesystem::path& path, const std::string& name) {
  return hdf5::File(path, hdf5::Mode::read).attribute(name);
}

void record_steps(Recorder& recorder, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step) record_sample(recorder, step);
}

TEST(RunFile, HoldsEveryValueUnderItsColumn) {
  const TemporaryFolder folder;
  const auto path = folder / "new/folders/run.h5";
  Hdf5Recorder recorder(path);
  recorder.begin(sample_info());
  EXPECT_EQ(attribute(path, "status"), OptionValue(std::string("running")));
  EXPECT_EQ(attribute(path, "complete"), std::nullopt);
  record_steps(recorder, 1, 30);
  recorder.evaluate({.step = 30, .tokens = 30720, .loss = 2.5, .seconds = 0.75});
  recorder.end({});

  for (std::int64_t i = 0; i < 30; ++i) {
    const auto t = static_cast<double>(i + 1);
    const auto at = [&](const char* name) { return column(path, "steps", name)[static_cast<std::size_t>(i)]; };
    EXPECT_EQ(at("step"), t);
    EXPECT_EQ(at("loss"), 5 / t);
    EXPECT_EQ(at("skipped"), i % 10 == 9 ? 1 : 0);
    EXPECT_EQ(at("communication_seconds"), 0.125);
    EXPECT_EQ(at("all_reduce_payload_bytes"), 1000 * t);
    EXPECT_EQ(at("all_gather_wire_bytes"), 7.5 * t);
    EXPECT_EQ(at("wire_bytes"), 1508 * t);
    EXPECT_EQ(at("collective_calls"), 3);
    EXPECT_EQ(at("backlog"), 2 * t);
    EXPECT_TRUE(std::isnan(at("residual_norm")));
  }
  EXPECT_THAT(column(path, "validation", "loss"), ElementsAre(2.5));
  EXPECT_THAT(column(path, "diagnostics", "step"), ElementsAre(10, 20, 30));
  EXPECT_THAT(column(path, "diagnostics", "share_previous"), ElementsAre(0.5, 0.75, 0.5, 0.75, 0.5, 0.75));
  EXPECT_THAT(column(path, "diagnostics", "residual_norm"), ElementsAre(10, 10, 20, 20, 30, 30));
  EXPECT_THAT(column(path, "diagnostics", "energy_overlap"), Each(::testing::IsNan()));
  const std::vector<double> gradients = column(path, "diagnostics", "gradient_histogram");
  ASSERT_EQ(gradients.size(), 3U * 2 * GradientBins::count);
  EXPECT_EQ(gradients[(2 * 2 + 1) * GradientBins::count + 41], 30);  // third record, second tensor
  EXPECT_EQ(std::count(gradients.begin(), gradients.end(), 0.0), static_cast<std::ptrdiff_t>(gradients.size() - 6));
  EXPECT_EQ(attribute(path, "density"), OptionValue(0.01));
  EXPECT_EQ(attribute(path, "seed"), OptionValue(std::int64_t{7}));
  EXPECT_EQ(attribute(path, "overlap"), OptionValue(false));
  EXPECT_EQ(attribute(path, "oversubscribed"), OptionValue(true));
  EXPECT_EQ(attribute(path, "complete"), OptionValue(true));

  const RunFileState state = read_run_file_state(path);
  EXPECT_TRUE(state.complete);
  EXPECT_EQ(state.status, "complete");
  EXPECT_EQ(state.last_step, 30);
  EXPECT_EQ(state.last_loss, 5.0 / 30);
  EXPECT_EQ(state.planned_steps, 100);
  EXPECT_EQ(state.attributes.at("density"), "0.01");
  EXPECT_EQ(state.attributes.at("overlap"), "false");
}

TEST(RunFile, StoppedAndFailedRunsAreNotComplete) {
  const TemporaryFolder folder;
  for (const RunStatus status : {RunStatus::stopped, RunStatus::failed}) {
    const auto path = folder / to_string(status);
    Hdf5Recorder recorder(path);
    recorder.begin(sample_info());
    record_steps(recorder, 1, 3);
    recorder.end({status, "because"});
    EXPECT_EQ(attribute(path, "status"), OptionValue(to_string(status)));
    EXPECT_EQ(attribute(path, "message"), OptionValue(std::string("because")));
    EXPECT_EQ(attribute(path, "complete"), std::nullopt);
    EXPECT_EQ(read_run_file_state(path).last_step, 3);
  }
}

TEST(RunFile, AbandonedRecorderLeavesItsRows) {
  const TemporaryFolder folder;
  const auto path = folder / "run.h5";
  {
    Hdf5Recorder recorder(path);
    recorder.begin(sample_info());
    record_steps(recorder, 1, 7);
  }
  const RunFileState state = read_run_file_state(path);
  EXPECT_EQ(state.last_step, 7);
  EXPECT_EQ(state.last_loss, 5.0 / 7);
  EXPECT_EQ(state.status, "running");
}

TEST(RunFile, GrowsBeyondThePlannedSteps) {
  const TemporaryFolder folder;
  const auto path = folder / "run.h5";
  RunInfo info = sample_info();
  info.planned_steps = 5;
  Hdf5Recorder recorder(path);
  recorder.begin(info);
  for (std::int64_t step = 1; step <= 1500; ++step) {
    recorder.step(sample_step(step));
    if (step % 5 == 0) recorder.evaluate({.step = step, .loss = 1});
  }
  recorder.end({});
  const std::vector<double> loss = column(path, "steps", "loss");
  ASSERT_EQ(loss.size(), 1500U);
  for (std::size_t i = 0; i < loss.size(); ++i) EXPECT_EQ(loss[i], 5 / static_cast<double>(i + 1));
  EXPECT_THAT(column(path, "validation", "loss"), AllOf(::testing::SizeIs(300), Each(1.0)));
}

TEST(RunFile, IsNotOverwrittenUnlessAsked) {
  const TemporaryFolder folder;
  const auto path = folder / "run.h5";
  const auto run = [&](ExistingFile existing, std::int64_t steps) {
    Hdf5Recorder recorder(path, existing);
    recorder.begin(sample_info());
    record_steps(recorder, 1, steps);
    recorder.end({});
  };
  run(ExistingFile::refuse, 5);
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { run(ExistingFile::refuse, 2); }),
              AllOf(HasSubstr(path.string()), HasSubstr("exists")));
  EXPECT_EQ(column(path, "steps", "step").size(), 5U);
  run(ExistingFile::overwrite, 2);
  EXPECT_EQ(column(path, "steps", "step").size(), 2U);
  EXPECT_EQ(attribute(path, "attempt"), OptionValue(std::int64_t{1}));
}

// Only what is, or once was, a run file is replaced, and only when the new one is there.
TEST(RunFile, ReplacesRunFilesOnlyAndInOnePiece) {
  const TemporaryFolder folder;
  const auto path = folder / "run.h5";
  const auto begin = [&](const std::filesystem::path& where, ExistingFile existing = ExistingFile::overwrite) {
    Hdf5Recorder recorder(where, existing);
    recorder.begin(sample_info());
    record_steps(recorder, 1, 3);
    recorder.end({});
  };
  begin(path);
  std::ofstream(folder / "text") << "a text of its own";
  { hdf5::File(folder / "foreign.h5", hdf5::Mode::create).set_attribute("mine", true); }
  std::filesystem::create_directory(folder / "folder");
  for (const char* other : {"text", "foreign.h5", "folder"}) {
    EXPECT_THAT(message_of(ErrorKind::usage, [&] { begin(folder / other); }), HasSubstr("is no run file, so it is not replaced"));
  }
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { begin("/dev/full"); }), HasSubstr("/dev/full: is no run file"));
  EXPECT_EQ(attribute(folder / "foreign.h5", "mine"), OptionValue(true));

  std::ofstream(folder / "empty");
  begin(folder / "empty");
  std::filesystem::copy_file(path, folder / "damaged");
  std::filesystem::resize_file(folder / "damaged", 1000);
  begin(folder / "damaged");
  EXPECT_TRUE(read_run_file_state(folder / "damaged").complete);

  // One that cannot be made leaves the old one; what a killed process left beside it does not matter.
  std::ofstream(folder / "run.h5.new") << "half a file";
  rlimit usual{};
  getrlimit(RLIMIT_FSIZE, &usual);
  const rlimit small{100'000, usual.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  for (const ExistingFile existing : {ExistingFile::overwrite, ExistingFile::append}) {
    setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_THAT(message_of(ErrorKind::input, [&] { Hdf5Recorder(path, existing).begin(sample_info()); }),
                HasSubstr("run.h5: cannot reserve disk space: File too large"));
    setrlimit(RLIMIT_FSIZE, &usual);
    EXPECT_TRUE(read_run_file_state(path).complete);
    EXPECT_EQ(column(path, "steps", "step").size(), 3U);
    EXPECT_FALSE(std::filesystem::exists(folder / "run.h5.new"));
  }
  begin(path, ExistingFile::append);  // from step 1 on
  EXPECT_EQ(read_run_file_state(path).attempt, 2);
  EXPECT_EQ(read_run_file_state(path).last_step, 3);
}

TEST(RunFile, HasOneWriter) {
  const TemporaryFolder folder;
  const auto path = folder / "run.h5";
  std::array<int, 2> begun{}, tried{};
  ASSERT_EQ(pipe(begun.data()) + pipe(tried.data()), 0);
  char byte = 0;
  const pid_t other = fork();
  if (other == 0) {
    close(tried[1]);
    Hdf5Recorder recorder(path);
    recorder.begin(sample_info());
    record_steps(recorder, 1, 20);
    const bool told = write(begun[1], &byte, 1) == 1 && ::read(tried[0], &byte, 1) == 0;  // until the others have tried
    record_steps(recorder, 21, 40);
    recorder.end({});
    _exit(told ? 0 : 1);
  }
  ASSERT_EQ(::read(begun[0], &byte, 1), 1);
  RunInfo info = sample_info();
  for (const std::int64_t from : {1, 11}) {
    for (const ExistingFile existing : {ExistingFile::overwrite, ExistingFile::append}) {
      info.first_step = from;
      EXPECT_THAT(message_of(ErrorKind::input, [&] { Hdf5Recorder(path, existing).begin(info); }),
                  AllOf(HasSubstr("run.h5: "), HasSubstr("another process has it open")));
    }
  }
  for (const int end : {tried[0], tried[1], begun[0], begun[1]}) close(end);
  int status = 1;
  waitpid(other, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_run_file_state(path).last_step, 40);
  EXPECT_EQ(read_run_file_state(path).attempt, 1);
}

// Crash at step 17 with a checkpoint at 10: each step once, strictly rising, with the number of the attempt that made it.
TEST(RunFile, ResumedRunHasEachStepOnce) {
  const TemporaryFolder folder;
  const auto path = folder / "run.h5";
  {
    Hdf5Recorder recorder(path);
    recorder.begin(sample_info());
    record_steps(recorder, 1, 10);
    recorder.evaluate({.step = 10, .loss = 3});
    record_steps(recorder, 11, 17);
    recorder.evaluate({.step = 17, .loss = 4});
    recorder.end({RunStatus::stopped, "signal 15"});
  }
  RunInfo info = sample_info();
  info.first_step = 11;
  info.ranks = 2;
  Hdf5Recorder recorder(path, ExistingFile::append);
  recorder.begin(info);
  EXPECT_EQ(recorder.attempt(), 2);
  EXPECT_EQ(attribute(path, "status"), OptionValue(std::string("running")));
  EXPECT_EQ(attribute(path, "message"), std::nullopt);
  record_steps(recorder, 11, 20);
  recorder.evaluate({.step = 20, .loss = 2});
  recorder.end({});

  std::vector<double> steps(20);
  std::vector<double> attempts(20, 1);
  for (std::size_t i = 0; i < 20; ++i) steps[i] = static_cast<double>(i + 1);
  std::fill(attempts.begin() + 10, attempts.end(), 2);
  EXPECT_EQ(column(path, "steps", "step"), steps);
  EXPECT_EQ(column(path, "steps", "attempt"), attempts);
  EXPECT_EQ(column(path, "steps", "loss")[16], 5.0 / 17);
  EXPECT_THAT(column(path, "validation", "step"), ElementsAre(10, 20));
  EXPECT_THAT(column(path, "diagnostics", "step"), ElementsAre(10, 20));
  EXPECT_THAT(column(path, "diagnostics", "residual_norm"), ElementsAre(10, 10, 20, 20));
  EXPECT_EQ(attribute(path, "attempt"), OptionValue(std::int64_t{2}));
  EXPECT_EQ(attribute(path, "ranks"), OptionValue(std::int64_t{2}));
  EXPECT_TRUE(read_run_file_state(path).complete);
}

TEST(RunFile, AppendCreatesAMissingFileAndRefusesAGap) {
  const TemporaryFolder folder;
  const auto path = folder / "run.h5";
  {
    Hdf5Recorder recorder(path, ExistingFile::append);
    recorder.begin(sample_info());
    record_steps(recorder, 1, 5);
    recorder.end({RunStatus::stopped, ""});
  }
  RunInfo info = sample_info();
  info.first_step = 9;
  const auto reopen = [&] { Hdf5Recorder(path, ExistingFile::append).begin(info); };
  EXPECT_THAT(message_of(ErrorKind::input, reopen),
              AllOf(HasSubstr(path.string()), HasSubstr("ends at step 5"), HasSubstr("step 9")));
  info.first_step = 6;
  info.extra.clear();
  EXPECT_THAT(message_of(ErrorKind::input, reopen), HasSubstr("columns differ"));
  info = sample_info();
  info.first_step = 6;
  info.tensors.pop_back();
  EXPECT_THAT(message_of(ErrorKind::input, reopen), HasSubstr("diagnostics/jaccard_previous: has rows of another shape"));
  info.diagnostics_every = 0;
  EXPECT_THAT(message_of(ErrorKind::input, reopen), HasSubstr("with diagnostics"));
  EXPECT_EQ(read_run_file_state(path).status, "stopped");
  EXPECT_EQ(read_run_file_state(path).attempt, 1);
}

TEST(RunFile, RefusesRowsThatCannotBeMeant) {
  const TemporaryFolder folder;
  Hdf5Recorder recorder(folder / "run.h5");
  EXPECT_THAT(message_of(ErrorKind::internal, [&] { recorder.step(sample_step(1)); }), HasSubstr("before begin"));
  recorder.begin(sample_info());
  recorder.step(sample_step(4));
  EXPECT_THAT(message_of(ErrorKind::internal, [&] { recorder.step(sample_step(4)); }), HasSubstr("step 4 recorded after step 4"));
  StepRecord record = sample_step(5);
  record.extra.clear();
  EXPECT_THAT(message_of(ErrorKind::internal, [&] { recorder.step(record); }), HasSubstr("columns"));
  recorder.diagnose(sample_diagnostics(10));
  EXPECT_THAT(message_of(ErrorKind::internal, [&] { recorder.diagnose(sample_diagnostics(10)); }),
              HasSubstr("step 10 recorded after"));
  DiagnosticsRecord diagnostics = sample_diagnostics(20);
  diagnostics.tensors.pop_back();
  EXPECT_THAT(message_of(ErrorKind::internal, [&] { recorder.diagnose(diagnostics); }), HasSubstr("columns"));
  RunInfo info = sample_info();
  info.diagnostics_every = 0;
  Hdf5Recorder plain(folder / "plain.h5");
  plain.begin(info);
  EXPECT_FALSE(hdf5::File(folder / "plain.h5", hdf5::Mode::read).contains("diagnostics"));
  EXPECT_THAT(message_of(ErrorKind::internal, [&] { plain.diagnose(sample_diagnostics(10)); }), HasSubstr("not announced"));
  info.attributes.emplace_back("status", std::string("mine"));
  EXPECT_THAT(message_of(ErrorKind::internal, [&] { Hdf5Recorder(folder / "other.h5").begin(info); }), HasSubstr("'status'"));
  EXPECT_FALSE(std::filesystem::exists(folder / "other.h5"));
}

TEST(RunFile, NamesWhatCannotBeWrittenOrRead) {
  const TemporaryFolder folder;
  std::ofstream(folder / "text") << "not HDF5";
  const auto begin = [](const std::filesystem::path& path, ExistingFile existing = ExistingFile::refuse) {
    return message_of(ErrorKind::input, [&] { Hdf5Recorder(path, existing).begin(sample_info()); });
  };
  EXPECT_THAT(begin(folder / "text/run.h5"), HasSubstr("text: cannot create the folder: Not a directory"));
  EXPECT_THAT(begin("/proc/run.h5"), HasSubstr("/proc/run.h5: cannot create the file: "));
  EXPECT_THAT(begin(folder / "text", ExistingFile::append), HasSubstr("text: cannot open the file: file signature not found"));
  const auto state = [&](const std::string& name) {
    return message_of(ErrorKind::input, [&] { static_cast<void>(read_run_file_state(folder / name)); });
  };
  EXPECT_THAT(state("missing"), HasSubstr("missing: cannot open the file: No such file or directory"));
  EXPECT_THAT(state("text"), HasSubstr("file signature not found"));
  { hdf5::File(folder / "foreign", hdf5::Mode::create).set_attribute("schema_version", std::int64_t{99}); }
  EXPECT_THAT(state("foreign"), HasSubstr("not a run file of schema version 1"));
}

// results/README.md prints the schema; when this fails, its table is to become what is expected here.
TEST(RunFile, ReadmeShowsTheColumnsThatAreWritten) {
  std::ifstream file(RESULTS_README);
  std::stringstream readme;
  readme << file.rdbuf();
  const auto table = [](const std::vector<Column>& columns, const std::string& head = "column") {
    std::string text = "| " + head + " | type | unit | origin | meaning |\n|---|---|---|---|---|\n";
    for (const Column& c : columns) {
      text += fmt::format("| {} | {} | {} | {} | {} |\n", c.name, to_string(c.type), c.unit, to_string(c.origin), c.meaning);
    }
    return text + "\n";  // an empty line: the table has no further rows
  };
  EXPECT_THAT(readme.str(), HasSubstr(table(step_columns())));
  EXPECT_THAT(readme.str(), HasSubstr(table(validation_columns())));
  EXPECT_THAT(readme.str(), HasSubstr(table(diagnostics_columns(1), "column of /diagnostics")));
  EXPECT_THAT(readme.str(), HasSubstr(fmt::format("Schema version {}.", run_schema_version)));
}

TEST(Columns, HaveDistinctNames) {
  std::vector<std::string> names;
  for (const Column& c : step_columns()) names.push_back(c.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

class Counting final : public Recorder {
 public:
  Counting(int& ends, bool throws) : ends_(ends), throws_(throws) {}
  void begin(const RunInfo& /*info*/) override {}
  void step(const StepRecord& /*record*/) override {}
  void evaluate(const ValidationRecord& /*record*/) override {}
  void end(const RunOutcome& /*outcome*/) override {
    ++ends_;
    if (throws_) throw Error(ErrorKind::input, "disk full");
  }

 private:
  int& ends_;
  bool throws_;
};

TEST(TeeRecorder, EndsAllEvenIfOneThrows) {
  int ends = 0;
  std::vector<std::unique_ptr<Recorder>> recorders;
  recorders.push_back(std::make_unique<Counting>(ends, true));
  recorders.push_back(std::make_unique<Counting>(ends, false));
  TeeRecorder tee(std::move(recorders));
  EXPECT_EQ(message_of(ErrorKind::input, [&] { tee.end({}); }), "disk full");
  EXPECT_EQ(ends, 2);
}

}  // namespace
}  // namespace scape
