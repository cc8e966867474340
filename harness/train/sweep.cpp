// Running the runs of a sweep.
#include "train/sweep.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>

#include "record/hdf5_recorder.hpp"
#include "scape/error.hpp"
#include "train/run_config.hpp"
#include "train/settings_file.hpp"

namespace scape {

namespace {

// Nothing for a file that is missing or damaged.
std::optional<RunFileState> state_of(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  try {
    return read_run_file_state(file);
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool is_complete(const std::filesystem::path& file, std::int64_t steps) {
  const std::optional<RunFileState> state = state_of(file);
  return state && state->complete && state->planned_steps == steps && state->last_step == steps && std::isfinite(state->last_loss);
}

// What a run file of that name has otherwise; empty: it is this run's, or there is none.
std::string differences(const std::filesystem::path& file, const RunConfig& config, const TokenFileInfo& data, int ranks) {
  const std::optional<RunFileState> state = state_of(file);
  if (!state || (!state->complete && state->last_step == 0)) return "";
  std::string text = config.differences_from_run_file(state->attributes, data, state->complete);
  const auto there = state->attributes.find("ranks");
  if (state->complete && there != state->attributes.end() && there->second != std::to_string(ranks)) {
    text += fmt::format("{}ranks={} there, {} here", text.empty() ? "" : ", ", there->second, ranks);
  }
  return text.empty() ? "" : fmt::format("is {}, with other options: {}", state->complete ? "complete" : "begun", text);
}

std::vector<std::string> command_line(const SweepOptions& options, const PlannedRun& run, const std::filesystem::path& file,
                                      bool replace) {
  std::vector<std::string> words;
  std::istringstream launcher(options.launcher);
  for (std::string word; launcher >> word;) words.push_back(word == "{ranks}" ? std::to_string(options.ranks) : word);
  words.insert(words.end(), {options.program.string(), "train", "--out", file.string(), replace ? "--overwrite" : "--resume"});
  for (const Setting& setting : run.settings) {
    words.emplace_back("--set");
    words.push_back(setting.name + "=" + setting.text);
  }
  return words;
}

// What a signal handler needs: whether the sweep is to stop, and which run with it.
volatile std::sig_atomic_t stop_requested = 0;
volatile std::sig_atomic_t running = 0;  // process id of the launcher
constexpr int cannot_start = 127;

// TERM and USR1 are passed on, and the run stops with a checkpoint; INT comes from a terminal, which sends it to the run itself.
void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    stop_requested = 1;
    if (signal != SIGINT && running > 0) kill(running, SIGTERM);
  };
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) sigaction(signal, &action, nullptr);
}

// Exit status of the command; −n if signal n ended it.
int execute(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) throw Error(ErrorKind::internal, "cannot start a process: " + std::generic_category().message(errno));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // no run outlives its sweep
    if (geteuid() == 0) {              // in a container; Open MPI wants to be told twice
      for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) setenv(name, "1", 0);
    }
    execvp(arguments[0], arguments.data());
    std::fprintf(stderr, "scape sweep: cannot start %s: %s\n", arguments[0], std::generic_category().message(errno).c_str());
    _exit(cannot_start);
  }
  running = child;
  if (stop_requested != 0) kill(child, SIGTERM);  // the signal came before
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  running = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

std::string default_launcher(int ranks) {
  const bool crowded = ranks > static_cast<int>(std::thread::hardware_concurrency());
  return crowded ? "mpirun --quiet --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n {ranks}"
                 : "mpirun --quiet -n {ranks}";
}

int run_sweep(const Registry& registry, const SweepOptions& options) {
  struct Job {
    PlannedRun run;
    std::filesystem::path file;
    std::int64_t steps;
    bool replace;  // the file is another run's, or damaged
  };
  std::vector<Job> jobs;
  std::map<std::string, TokenFileInfo> data;
  int number = 0;
  for (PlannedRun& run : read_sweep(options.file)) {
    run.settings.insert(run.settings.end(), options.overrides.begin(), options.overrides.end());
    const RunConfig config(registry, run.settings);
    if (number++ % options.parts != options.part) continue;
    if (!data.contains(config.train.data)) data[config.train.data] = open_data(config.train).info();
    const std::filesystem::path file = options.folder / (run.name + ".h5");
    const std::string other = differences(file, config, data.at(config.train.data), options.ranks);
    if (!other.empty() && !options.overwrite) {
      throw Error(ErrorKind::usage, fmt::format("{}: {}; give another --out, or --overwrite to replace it", file.string(), other));
    }
    const bool damaged = std::filesystem::exists(file) && !state_of(file);
    jobs.push_back({std::move(run), file, config.train.steps, damaged || !other.empty()});
  }
  std::error_code failure;
  std::filesystem::create_directories(options.folder, failure);
  if (failure) throw Error(ErrorKind::input, options.folder.string() + ": cannot make this folder: " + failure.message());

  stop_on_signals();
  int first_failure = 0;
  std::size_t complete = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const auto& [run, file, steps, replace] = jobs[i];
    const std::string head = fmt::format("[{}/{}] {}", i + 1, jobs.size(), run.name);
    if (!replace && is_complete(file, steps)) {
      fmt::print("{}: complete, kept\n", head);
      ++complete;
      continue;
    }
    fmt::print("{}\n", head);
    std::fflush(stdout);
    int status = execute(command_line(options, run, file, replace));
    if (status == 0 && !is_complete(file, steps)) status = exit_status(ErrorKind::internal);
    if (status == 0) {
      ++complete;
      if (stop_requested == 0 || i + 1 == jobs.size()) continue;
      first_failure = exit_status(ErrorKind::stopped);
      break;
    }
    const bool no_launcher = status == cannot_start;
    const bool killed = status < 0;  // the launcher, by somebody who wants an end
    if (stop_requested != 0) {
      status = exit_status(ErrorKind::stopped);
    } else if (no_launcher) {
      status = exit_status(ErrorKind::input);
    } else if (killed || status > 128) {  // 128 + n is mpirun's way to say that signal n ended a rank
      fmt::print("{}: {} ended by signal {}\n", head, killed ? "its launcher was" : "a rank was", killed ? -status : status - 128);
      status = exit_status(ErrorKind::communication);
    }
    const bool stopped = status == exit_status(ErrorKind::stopped);
    fmt::print("{}: {} with status {}\n", head, stopped ? "stopped" : "failed", status);
    if (first_failure == 0) first_failure = status;
    if (stopped || no_launcher || killed) break;
  }
  fmt::print("{} of {} runs complete in {}\n", complete, jobs.size(), options.folder.string());
  return first_failure;
}

}  // namespace scape
