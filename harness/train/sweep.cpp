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

// Nothing for a file that is missing or damaged: it is made again.
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

void refuse_other_result(const std::filesystem::path& file, const RunConfig& config, int ranks) {
  const std::optional<RunFileState> state = state_of(file);
  if (!state || !state->complete) return;
  std::string differences = config.differences_from_run_file(state->attributes);
  if (const std::string& there = state->attributes.at("ranks"); there != std::to_string(ranks)) {
    differences += fmt::format("{}ranks={} there, {} here", differences.empty() ? "" : ", ", there, ranks);
  }
  if (differences.empty()) return;
  throw Error(ErrorKind::usage,
              fmt::format("{}: is complete, with other options: {}; give another --out, or remove it", file.string(), differences));
}

std::vector<std::string> command_line(const SweepOptions& options, const PlannedRun& run, const std::filesystem::path& file) {
  std::vector<std::string> words;
  std::istringstream launcher(options.launcher);
  for (std::string word; launcher >> word;) words.push_back(word == "{ranks}" ? std::to_string(options.ranks) : word);
  for (const std::string& word : {options.program.string(), std::string("train"), std::string("--out"), file.string(),
                                  std::string("--resume"), std::string("--overwrite")}) {
    words.push_back(word);
  }
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

// Exit status of the command; 128 + n if signal n ended it.
int execute(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) throw Error(ErrorKind::internal, "cannot start a process: " + std::generic_category().message(errno));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // no run outlives its sweep
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
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string default_launcher(int ranks) {
  const bool crowded = ranks > static_cast<int>(std::thread::hardware_concurrency());
  return crowded ? "mpirun --quiet --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n {ranks}"
                 : "mpirun --quiet -n {ranks}";
}

int run_sweep(const Registry& registry, const SweepOptions& options) {
  std::vector<PlannedRun> runs;
  std::vector<std::int64_t> steps;
  int number = 0;
  for (PlannedRun& run : read_sweep(options.file)) {
    run.settings.insert(run.settings.end(), options.overrides.begin(), options.overrides.end());
    const RunConfig config(registry, run.settings);
    if (number++ % options.parts != options.part) continue;
    refuse_other_result(options.folder / (run.name + ".h5"), config, options.ranks);
    runs.push_back(std::move(run));
    steps.push_back(config.train.steps);
  }
  std::error_code failure;
  std::filesystem::create_directories(options.folder, failure);
  if (failure) throw Error(ErrorKind::input, options.folder.string() + ": cannot make this folder: " + failure.message());

  stop_on_signals();
  int first_failure = 0;
  std::size_t complete = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::filesystem::path file = options.folder / (runs[i].name + ".h5");
    const std::string head = fmt::format("[{}/{}] {}", i + 1, runs.size(), runs[i].name);
    if (is_complete(file, steps[i])) {
      fmt::print("{}: complete, kept\n", head);
      ++complete;
      continue;
    }
    fmt::print("{}\n", head);
    std::fflush(stdout);
    int status = execute(command_line(options, runs[i], file));
    if (status == 0 && !is_complete(file, steps[i])) status = exit_status(ErrorKind::internal);
    if (status == 0) {
      ++complete;
      if (stop_requested == 0 || i + 1 == runs.size()) continue;
      first_failure = exit_status(ErrorKind::stopped);
      break;
    }
    if (stop_requested != 0) status = exit_status(ErrorKind::stopped);
    const bool no_launcher = status == cannot_start;
    if (no_launcher) status = exit_status(ErrorKind::input);
    const bool stopped = status == exit_status(ErrorKind::stopped);
    fmt::print("{}: {} with status {}\n", head, stopped ? "stopped" : "failed", status);
    if (first_failure == 0) first_failure = status;
    if (stopped || no_launcher || status > 128) break;
  }
  fmt::print("{} of {} runs complete in {}\n", complete, runs.size(), options.folder.string());
  return first_failure;
}

}  // namespace scape
