// What the probe of MPI makes of a launcher that works, crashes, hangs, talks nonsense or is not there, on every rank alike.
#include "comm/probe.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace scape::testing {
namespace {

using detail::CollectiveSet;
using detail::MpiPaths;
using detail::probe_mpi;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

CollectiveSet all_but(std::initializer_list<Collective> missing) {
  CollectiveSet set = CollectiveSet().set();
  for (const Collective collective : missing) set.reset(static_cast<std::size_t>(collective));
  return set;
}

class Probe : public ::testing::Test {
 protected:
  void SetUp() override {
    int pid = getpid();
    MPI_Bcast(&pid, 1, MPI_INT, 0, MPI_COMM_WORLD);
    folder_ = std::filesystem::temp_directory_path() / ("scape_probe_" + std::to_string(pid));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    if (rank_ == 0) std::filesystem::create_directory(folder_);
    setenv("SCAPE_MPI_PROBE", "/bin/true", 1);  // the launchers below do not start it
  }
  void TearDown() override {
    for (const char* name : {"SCAPE_MPIEXEC", "SCAPE_MPI_PROBE"}) unsetenv(name);
    MPI_Barrier(MPI_COMM_WORLD);  // the others have read what they wanted
    std::error_code ignored;
    if (rank_ == 0) std::filesystem::remove_all(folder_, ignored);
  }

  // A launcher that is this shell script; $@ are the collectives.
  void launcher(const std::string& script) const { command("SCAPE_MPIEXEC", "shift 4; " + script); }
  void command(const char* variable, const std::string& script) const {
    const std::filesystem::path file = folder_ / variable;
    if (rank_ == 0) {
      std::ofstream(file) << "#!/bin/sh\ncd '" << folder_.string() << "'; " << script << "\n";
      std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    }
    setenv(variable, file.c_str(), 1);
  }
  // Whether the process whose number is in this file of the folder has ended, or does soon.
  [[nodiscard]] bool ends(const char* file) const {
    std::string pid;
    std::getline(std::ifstream(folder_ / file), pid);
    const auto runs = [&] {
      std::string state;
      return static_cast<bool>(std::getline(std::ifstream("/proc/" + pid + "/stat"), state)) &&
             state.find(") Z ") == std::string::npos;
    };
    for (int i = 0; i < 500 && runs(); ++i) std::this_thread::sleep_for(milliseconds(10));
    return !pid.empty() && !runs();
  }
  static MpiPaths probe(milliseconds limit = std::chrono::minutes(1)) { return probe_mpi(MPI_COMM_WORLD, cpu_device, limit); }

  int rank_ = 0;
  std::filesystem::path folder_;  // rank 0's
};

TEST_F(Probe, FindsThatMpiTakesMemoryOfTheHostInsideARunningJob) {
  unsetenv("SCAPE_MPI_PROBE");
  const MpiPaths paths = probe();
  EXPECT_TRUE(paths.direct.all()) << paths.reason;
  EXPECT_EQ(paths.reason, "probed");
}

TEST_F(Probe, StagesWhatCrashesOrIsWrongAndTriesTheRestAgain) {
  launcher(R"(echo ready
    for name; do
      case $name in
        reduce_scatter) echo "$name gives wrong numbers" ;;
        all_gather) kill -9 $$ ;;
        *) echo "$name ok" ;;
      esac
    done)");
  const MpiPaths paths = probe();
  EXPECT_EQ(paths.direct, all_but({Collective::reduce_scatter, Collective::all_gather})) << paths.reason;
  EXPECT_EQ(paths.reason, "probed: reduce_scatter: gives wrong numbers; all_gather: ended by signal 9 (Killed)");
}

TEST_F(Probe, KeepsWhatWorkedBeforeACrash) {
  launcher(R"(echo ready; [ "$1" != all_reduce ] || echo all_reduce ok; exit 3)");
  const MpiPaths paths = probe();
  EXPECT_EQ(paths.direct, CollectiveSet().set(static_cast<std::size_t>(Collective::all_reduce))) << paths.reason;
  EXPECT_THAT(paths.reason, StartsWith("probed: reduce_scatter: ended with status 3; all_gather: ended with status 3; "));
}

TEST_F(Probe, AFaultOfOneRankOutweighsAnOkOfTheOther) {
  launcher(R"(echo ready; for name; do echo "$name ok"; echo "$name fails: MPI_ERR_BUFFER"; echo "$name ok"; done)");
  const MpiPaths paths = probe();
  EXPECT_TRUE(paths.direct.none());
  EXPECT_THAT(paths.reason, HasSubstr("broadcast: fails: MPI_ERR_BUFFER"));
}

// The process that hangs is a child of the launcher, as a rank is.
TEST_F(Probe, StagesWhatHangsAndLeavesNoProcess) {
  launcher(R"(echo ready
    for name; do
      if [ $name = all_to_all ]; then sleep 1000 & echo $! >hanging; wait; fi
      echo "$name ok"
    done)");
  const MpiPaths paths = probe(milliseconds(3000));
  EXPECT_EQ(paths.direct, all_but({Collective::all_to_all})) << paths.reason;
  EXPECT_EQ(paths.reason, "probed: all_to_all: no answer in time");
  EXPECT_TRUE(ends("hanging"));
}

// MPI's launcher puts its ranks into process groups of their own.
TEST_F(Probe, LeavesNoRankBehindThatHangs) {
  command("SCAPE_MPI_PROBE", "echo $$ >rank$OMPI_COMM_WORLD_RANK$PMI_RANK; exec sleep 1000");
  const MpiPaths paths = probe(milliseconds(1500));
  EXPECT_TRUE(paths.direct.none());
  EXPECT_EQ(paths.reason, "probed: the probe did not start, no answer in time");
  for (const char* file : {"rank0", "rank1"}) {
    if (!std::filesystem::exists(folder_ / file)) continue;  // a busy machine: not yet started
    EXPECT_TRUE(ends(file)) << file;
  }
}

TEST_F(Probe, StagesEverythingWhenTheProbeTalksNonsense) {
  for (const char* script : {"echo all_reduce ok; head -c 300000 /dev/urandom", "echo; exit 0", "exit 0"}) {
    launcher(script);
    const MpiPaths paths = probe();
    EXPECT_TRUE(paths.direct.none()) << script;
    EXPECT_EQ(paths.reason, "probed: the probe did not start") << script;
  }
  launcher("echo error no such device; exit 1");
  EXPECT_EQ(probe().reason, "probed: the probe did not start: no such device");
  launcher("while :; do echo all_reduce ok; done");
  const MpiPaths endless = probe(milliseconds(300));
  EXPECT_TRUE(endless.direct.none());
  EXPECT_EQ(endless.reason, "probed: the probe did not start, no answer in time");
}

TEST_F(Probe, StagesEverythingWhenNothingCanBeStarted) {
  setenv("SCAPE_MPIEXEC", "/nowhere/mpiexec", 1);
  EXPECT_EQ(probe().reason, "not probed: cannot start /nowhere/mpiexec: No such file or directory");
  EXPECT_TRUE(probe().direct.none());
  setenv("SCAPE_MPI_PROBE", "/nowhere/scape_mpi_probe", 1);
  EXPECT_EQ(probe().reason, "not probed: /nowhere/scape_mpi_probe is not there (SCAPE_MPI_PROBE names another)");
  EXPECT_TRUE(probe().direct.none());
}

TEST_F(Probe, TheProbeIsNoRankOfThisJob) {
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);  // as mpirun and srun do
  setenv("SLURM_PROCID", "0", 1);
  setenv("OMPI_MCA_btl_of_the_user", "kept", 1);
  launcher(R"([ -z "$OMPI_COMM_WORLD_RANK$PMIX_RANK$PMI_RANK$SLURM_PROCID" ] || exit 1
    [ "$OMPI_MCA_btl_of_the_user" = kept ] || exit 2
    [ -n "$OMPI_ALLOW_RUN_AS_ROOT$HOME" ] || exit 3
    echo ready; for name; do echo "$name ok"; done)");
  EXPECT_EQ(probe().reason, "probed");
  for (const char* name : {"SLURM_PROCID", "OMPI_MCA_btl_of_the_user"}) unsetenv(name);
}

TEST_F(Probe, ALibraryThatDoesNotKnowCudaIsNotTried) {
  const auto query = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support"));
  if (query == nullptr || query() != 0) GTEST_SKIP() << "this library may know CUDA";
  launcher("touch started");
  const MpiPaths paths = probe_mpi(MPI_COMM_WORLD, {DeviceKind::cuda, 0});
  EXPECT_TRUE(paths.direct.none());
  EXPECT_EQ(paths.reason, "the MPI library says that it is not CUDA-aware");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "started"));
}

}  // namespace
}  // namespace scape::testing
