// Signal handlers of a training run.
#include "train/stop_signal.hpp"

#include <array>
#include <csignal>

namespace scape {

namespace {

volatile std::sig_atomic_t stop_requested = 0;  // all that a signal handler may write
constexpr std::array signals{SIGTERM, SIGUSR1, SIGINT};
std::array<struct sigaction, signals.size()> previous;

}  // namespace

StopSignal::StopSignal() {
  stop_requested = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = 1; };
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &action, &previous[i]);
}

StopSignal::~StopSignal() {
  for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &previous[i], nullptr);
}

bool StopSignal::requested() const {
  return stop_requested != 0;
}

}  // namespace scape
