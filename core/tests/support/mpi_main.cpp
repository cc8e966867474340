// main() of test programs that run on several MPI ranks. Every rank runs every test; rank 0 prints, the others only what fails.
// An exception ends the program, and with it all ranks, instead of leaving the others waiting in a collective.
#include <gmock/gmock.h>

#include <cstdio>
#include <memory>

#include "scape/communicator.hpp"

namespace {

class FailuresOnly final : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "[rank %d] %s.%s at %s:%d\n%s\n", rank_, test != nullptr ? test->test_suite_name() : "",
                 test != nullptr ? test->name() : "", result.file_name() != nullptr ? result.file_name() : "", result.line_number(),
                 result.summary());
  }

 private:
  int rank_;
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
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return failed;
}
