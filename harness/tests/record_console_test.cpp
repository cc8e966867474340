// Console progress: what it says and how often.
#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>

#include "record/console_recorder.hpp"
#include "record_support.hpp"

namespace scape {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// What a console recorder prints for 100 sample steps of `seconds` each, the last of them an evaluation.
std::string printed(bool terminal, double seconds, const RunOutcome& outcome = {}) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  ConsoleRecorder recorder(out, terminal);
  recorder.begin(testing::sample_info());
  for (int step = 1; step <= 100; ++step) {
    StepRecord record = testing::sample_step(step);
    record.seconds = seconds;
    recorder.step(record);
    if (step == 50) recorder.evaluate({.step = 50, .loss = 2.25, .seconds = 0});
  }
  recorder.end(outcome);
  std::fclose(out);
  std::string result(text, size);
  std::free(text);
  return result;
}

std::int64_t lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(Console, PlainLinesAtMostEveryTenSeconds) {
  const std::string text = printed(false, 0.5);  // 50 s: start, first step, then at 10.5, 20.5, 30.5, 40.5 s, end
  EXPECT_EQ(lines(text), 7) << text;
  EXPECT_THAT(text, StartsWith("sample: 4 ranks (more than cores), 100 steps of 1024 tokens\nstep 1/100  loss 5.000"));
  EXPECT_THAT(text, HasSubstr("step 61/100  loss 0.082  val 2.250  2.05k tokens/s  exposed comm 25%  ETA 0:20  skipped 6\n"));
  EXPECT_THAT(text, EndsWith("complete: 100 of 100 steps in 0:50, loss 0.050, validation 2.250, 10 skipped\n"));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("\r")), Not(HasSubstr("\033"))));
  EXPECT_EQ(lines(printed(false, 0.001)), 3);  // a short run: start, first step, end
}

TEST(Console, TerminalRewritesOneLine) {
  const std::string text = printed(true, 0.5);
  EXPECT_EQ(lines(text), 2);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 101);
  const std::string fast = printed(true, 0.01);  // 1 s at most ten times a second
  EXPECT_LE(std::count(fast.begin(), fast.end(), '\r'), 12);
  EXPECT_THAT(fast, EndsWith("10 skipped\033[K\n"));
}

TEST(Console, ARunThatHasNothingLeftToDoIsComplete) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  ConsoleRecorder recorder(out, false);
  RunInfo info = testing::sample_info();
  info.first_step = info.planned_steps + 1;
  recorder.begin(info);
  recorder.end({});
  std::fclose(out);
  EXPECT_THAT(std::string(text, size), EndsWith("complete: 100 of 100 steps in 0:00\n"));
  std::free(text);
}

TEST(Console, SaysWhyARunEnded) {
  EXPECT_THAT(printed(false, 0.5, {RunStatus::failed, "rank 2 is gone"}), EndsWith("10 skipped: rank 2 is gone\n"));
}

}  // namespace
}  // namespace scape
