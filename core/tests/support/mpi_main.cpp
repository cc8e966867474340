// main() of test programs that run on several MPI ranks. Every rank runs every test; rank 0 prints, the others only what fails.
// An exception or a failed ASSERT ends the program, and with it all ranks, instead of leaving the others waiting in a collective.
#include <gmock/gmock.h>

#include <cstdio>
#include <string>

#include "scape/communicator.hpp"

namespace {

class FailuresOnly final : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}
  // The name is noted here: asking googletest for it while it reports a result waits for a lock that it holds.
  void OnTestStart(const testing::TestInfo& test) override { test_ = std::string(test.test_suite_name()) + "." + test.name(); }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s at %s:%d\n%s\n", rank_, test_.c_str(),
                 result.file_name() != nullptr ? result.file_name() : "", result.line_number(), result.summary());
  }

 private:
  int rank_;
  std::string test_;
};

// After the listener that prints the failure.
class EndAfterFatalFailure final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.fatally_failed()) return;
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const scape::MpiSession mpi(argc, argv);
  testing::InitGoogleMock(&argc, argv);
  GTEST_FLAG_SET(catch_exceptions, false);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly(rank));
  }
  listeners.Append(new EndAfterFatalFailure);
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return failed;
}
