// A watchdog on several ranks: quiet when all is well, and naming the collective and the ranks when it is not. How it ends a job
// whose process is killed or suspended is tested with the program (resume_test.sh).
#include <gmock/gmock.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "train/watchdog.hpp"

namespace scape {
namespace {

// What the watchdog said, on the rank that said it.
class Verdict {
 public:
  void operator()(const std::string& text) {
    {
      const std::lock_guard lock(mutex_);
      text_ = text;
    }
    changed_.notify_all();
  }
  std::string wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !text_.empty(); });
    return text_;
  }
  std::string now() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
};

TEST(Watchdog, IsQuietWhenAllIsWell) {
  const auto comm = make_communicator("auto", MPI_COMM_WORLD, cpu_device);
  Verdict verdict;
  for (int round = 0; round < 3; ++round) {
    Watchdog watchdog(MPI_COMM_WORLD, {.silence_seconds = 25, .hang_minutes = 10}, {{"test", comm.get()}}, std::ref(verdict));
    float value = 1;
    comm->all_reduce(Span<float>(std::span(&value, 1)), ReduceOp::sum, Stream());
    watchdog.finish();
  }
  EXPECT_EQ(verdict.now(), "");
}

TEST(Watchdog, NamesTheCollectiveAndWhoIsMissing) {
  const auto comm = make_communicator("auto", MPI_COMM_WORLD, cpu_device);
  if (comm->size() == 1) GTEST_SKIP() << "one rank waits for nobody";
  for (const bool queued : {false, true}) {
    Verdict verdict;
    Watchdog watchdog(MPI_COMM_WORLD, {.silence_seconds = 25, .hang_minutes = 0.6 / 60}, {{"tests", comm.get()}},
                      std::ref(verdict));
    const Stream stream = queued ? Stream(cpu_device) : Stream();
    std::vector<float> values(4, 1);
    const int late = comm->size() - 1;
    // The last rank waits until rank 0 has given its verdict; a watchdog that never does hangs the test.
    if (comm->rank() == late) MPI_Recv(nullptr, 0, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    std::thread judge;
    if (comm->rank() == 0) {
      judge = std::thread([&] {
        const std::string text = verdict.wait();
        EXPECT_THAT(text, testing::HasSubstr("all_reduce number"));
        EXPECT_THAT(text, testing::HasSubstr("of the tests has not finished for"));
        EXPECT_THAT(text, testing::EndsWith("not there yet: rank " + std::to_string(late)));
        MPI_Send(nullptr, 0, MPI_INT, late, 0, MPI_COMM_WORLD);
      });
    }
    comm->all_reduce(Span<float>(std::span(values)), ReduceOp::sum, stream);
    stream.synchronize();
    if (judge.joinable()) judge.join();
    watchdog.finish();
    EXPECT_EQ(values[0], static_cast<float>(comm->size()));
  }
}

TEST(Progress, CountsCollectivesAndNamesTheUnfinished) {
  const auto comm = make_communicator("auto", MPI_COMM_WORLD, cpu_device);
  const Stream stream(cpu_device);
  std::vector<float> values(4, 1);
  std::mutex gate;
  gate.lock();
  stream.enqueue([&] { const std::lock_guard pass(gate); });
  comm->all_reduce(Span<float>(std::span(values)), ReduceOp::sum, stream);
  comm->broadcast(Span<float>(std::span(values)), 0, stream);
  EXPECT_EQ(comm->progress().queued, 2);
  EXPECT_EQ(comm->progress().unfinished, 1);
  EXPECT_EQ(comm->progress().kind, Collective::all_reduce);
  gate.unlock();
  stream.synchronize();
  EXPECT_EQ(comm->progress().unfinished, 0);
  EXPECT_EQ(comm->progress().queued, 2);
}

}  // namespace
}  // namespace scape
