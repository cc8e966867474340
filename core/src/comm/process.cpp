#include "comm/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <system_error>

extern char** environ;

namespace scape::detail {

namespace {

constexpr std::size_t most_output = 1 << 16;

// This process's environment without what makes it a rank of its job, and with permission for two ranks wherever we are.
std::vector<std::string> environment_of_another_job() {
  constexpr std::array of_this_job{"OMPI_COMM_",
                                   "OMPI_MCA_ess",
                                   "OMPI_MCA_orte_",
                                   "OMPI_MCA_pmix",
                                   "OMPI_MCA_initial_wdir",
                                   "OMPI_UNIVERSE_",
                                   "OMPI_APP_CTX_",
                                   "OMPI_NUM_APP_",
                                   "OMPI_FIRST_",
                                   "OMPI_FILE_LOCATION",
                                   "OMPI_COMMAND",
                                   "OMPI_ARGV",
                                   "PMIX_",
                                   "PMI_",
                                   "PRTE_",
                                   "HYDI_",
                                   "MPI_LOCALRANKID",
                                   "MPI_LOCALNRANKS",
                                   "MV2_COMM_WORLD_",
                                   "SLURM_",
                                   "PBS_",
                                   "LSB_"};
  constexpr std::array added{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1",
                             "OMPI_MCA_mpi_yield_when_idle=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"};
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (std::ranges::none_of(of_this_job, [&](std::string_view prefix) { return text.starts_with(prefix); }))
      kept.emplace_back(text);
  }
  for (const std::string_view entry : added) {
    const std::string_view name = entry.substr(0, entry.find('=') + 1);
    if (std::ranges::none_of(kept, [&](const std::string& other) { return other.starts_with(name); })) kept.emplace_back(entry);
  }
  return kept;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

void check(int code, const std::string& what) {
  if (code != 0) throw std::system_error(code, std::generic_category(), what);
}

}  // namespace

Process::Process(std::vector<std::string> words) {
  std::array<int, 2> ends{};
  check(pipe2(ends.data(), O_CLOEXEC) == 0 ? 0 : errno, "pipe2");
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> environment = environment_of_another_job();
  const int code =
      posix_spawnp(&id_, words.front().c_str(), &files, &attributes, pointers(words).data(), pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  if (code != 0) close(ends[0]);
  check(code, "cannot start " + words.front());
  pipe_ = ends[0];
}

Process::~Process() {
  siginfo_t how{};
  if (!ended(how)) {  // a launcher that is asked to end takes its ranks along, which need not be of its group
    kill(-id_, SIGTERM);
    wait(std::chrono::seconds(5));
  }
  kill(-id_, SIGKILL);
  waitpid(id_, nullptr, 0);
  close(pipe_);
}

// Leaves an ended process a zombie, so that nobody else gets its number.
bool Process::ended(siginfo_t& how) const {
  return waitid(P_PID, static_cast<id_t>(id_), &how, WEXITED | WNOHANG | WNOWAIT) == 0 && how.si_pid == id_;
}

void Process::wait(std::chrono::milliseconds time) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + time;
  constexpr int pause = 10;  // milliseconds
  pollfd readable{.fd = pipe_, .events = POLLIN, .revents = 0};
  siginfo_t how{};
  for (bool last = false; !last && Clock::now() < end;) {
    last = ended(how);  // asked first, so that everything printed is read
    while (Clock::now() < end && poll(&readable, 1, pause) > 0) {
      std::array<char, 4096> part;
      const ssize_t size = ::read(pipe_, part.data(), part.size());
      if (size <= 0) {
        if (!last) poll(nullptr, 0, pause);  // it has closed its output and runs on
        break;
      }
      if (output_.size() < most_output) output_.append(part.data(), static_cast<std::size_t>(size));
    }
  }
}

std::string Process::fault() const {
  siginfo_t how{};
  if (!ended(how)) return "no answer in time";
  if (how.si_code != CLD_EXITED) return "ended by signal " + std::to_string(how.si_status) + " (" + strsignal(how.si_status) + ")";
  return how.si_status == 0 ? "" : "ended with status " + std::to_string(how.si_status);
}

}  // namespace scape::detail
