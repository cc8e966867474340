// When the clock stops a run.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>

#include "train/stop.hpp"

namespace scape {
namespace {

// Pretends to be a Slurm job that began and ends so many seconds from now.
class Job {
 public:
  Job(std::int64_t begins, std::int64_t ends) {
    const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    setenv("SLURM_JOB_START_TIME", std::to_string(now + begins).c_str(), 1);
    setenv("SLURM_JOB_END_TIME", std::to_string(now + ends).c_str(), 1);
  }
  ~Job() {
    unsetenv("SLURM_JOB_START_TIME");
    unsetenv("SLURM_JOB_END_TIME");
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
};

TEST(TimeLimit, IsNoneUnlessAskedFor) {
  const TimeLimit limit(0, 120);
  EXPECT_EQ(limit.reached(), StopReason::none);
  EXPECT_FALSE(limit.seconds_left());
}

TEST(TimeLimit, CountsFromItsConstruction) {
  EXPECT_NEAR(*TimeLimit(3, 120).seconds_left(), 180, 5);
  EXPECT_EQ(TimeLimit(1e-15, 120).reached(), StopReason::time_limit);
  EXPECT_EQ(TimeLimit(1e300, 120).reached(), StopReason::none);
}

TEST(TimeLimit, LeavesAMarginBeforeTheJobEnds) {
  {
    const Job hour(-3000, 600);
    EXPECT_NEAR(*TimeLimit(0, 120).seconds_left(), 480, 5);
    EXPECT_NEAR(*TimeLimit(1, 120).seconds_left(), 60, 5);  // the earlier of the two
    EXPECT_FALSE(TimeLimit(0, 0).seconds_left());
    EXPECT_EQ(TimeLimit(0, 120).reached(), StopReason::none);
  }
  const Job nearly_over(-3500, 100);
  EXPECT_EQ(TimeLimit(0, 120).reached(), StopReason::job_end);
}

TEST(TimeLimit, TakesATenthOfAShortJob) {
  const Job minute(-1, 59);
  EXPECT_NEAR(*TimeLimit(0, 120).seconds_left(), 53, 5);
}

TEST(StopSignal, HearsSignalsWhileItLives) {
  const StopSignal stop;
  EXPECT_FALSE(stop.requested());
  std::raise(SIGUSR1);
  EXPECT_TRUE(stop.requested());
}

}  // namespace
}  // namespace scape
