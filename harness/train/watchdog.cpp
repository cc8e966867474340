// The watchdog's threads.
#include "train/watchdog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "scape/error.hpp"

namespace scape {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int beat_milliseconds = 500;
constexpr int beat = 1;  // tags
constexpr int last = 2;
constexpr int verdict = 3;

double seconds_since(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  [[nodiscard]] int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// A message that is sent again and again, each time only when the one before has left.
class Sender {
 public:
  Sender(MPI_Comm comm, int to) : comm_(comm), to_(to) {}
  void send(std::vector<std::int64_t> message) {
    int left = 1;
    if (request_ != MPI_REQUEST_NULL) MPI_Test(&request_, &left, MPI_STATUS_IGNORE);
    if (left == 0) return;
    message_ = std::move(message);
    MPI_Isend(message_.data(), static_cast<int>(message_.size()), MPI_INT64_T, to_, beat, comm_, &request_);
  }
  void send_last() {
    if (request_ != MPI_REQUEST_NULL) MPI_Wait(&request_, MPI_STATUS_IGNORE);
    MPI_Send(nullptr, 0, MPI_INT64_T, to_, last, comm_);
  }

 private:
  MPI_Comm comm_;
  int to_;
  std::vector<std::int64_t> message_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace

class Watchdog::Thread {
 public:
  Thread(MPI_Comm world, const WatchdogOptions& options, std::vector<Watched> watched,
         std::function<void(const std::string&)> give_up)
      : options_(options), watched_(std::move(watched)), give_up_(std::move(give_up)), wake_(::eventfd(0, EFD_CLOEXEC)) {
    MPI_Comm_dup(world, &comm_);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &ranks_);
    std::array<char, MPI_MAX_PROCESSOR_NAME> host{};
    int length = 0;
    MPI_Get_processor_name(host.data(), &length);
    hosts_.resize(static_cast<std::size_t>(ranks_) * host.size());
    MPI_Allgather(host.data(), static_cast<int>(host.size()), MPI_CHAR, hosts_.data(), static_cast<int>(host.size()), MPI_CHAR,
                  comm_);
    open_neighbours();
    heard_.assign(static_cast<std::size_t>(ranks_), Clock::now());
    reports_.assign(static_cast<std::size_t>(ranks_), {});
    stuck_.resize(static_cast<std::size_t>(ranks_) * watched_.size());
    for (const int other : partners()) senders_.emplace_back(comm_, other);
    thread_ = std::thread([this] { watch(); });
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { stop(); }

  void finish() {
    MPI_Barrier(comm_);  // all are here
    stop();
    for (Sender& sender : senders_) sender.send_last();
    for (const int other : partners()) {  // takes what is still on the way
      while (receive(other) != last) {
      }
    }
    MPI_Barrier(comm_);  // nobody watches any more: processes may end
    MPI_Comm_free(&comm_);
  }

 private:
  // A collective that a rank has not left, and since when rank 0 knows.
  struct Stuck {
    std::int64_t number = 0;
    Clock::time_point since;
  };

  void stop() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

  // Whom this rank exchanges messages with.
  [[nodiscard]] std::vector<int> partners() const {
    if (rank_ != 0) return {0};
    std::vector<int> others(static_cast<std::size_t>(ranks_ - 1));
    std::iota(others.begin(), others.end(), 1);
    return others;
  }

  // Handles on the other processes of this node.
  void open_neighbours() {
    MPI_Comm node = MPI_COMM_NULL;
    MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    int size = 0;
    MPI_Comm_size(node, &size);
    const std::array<int, 2> mine{rank_, static_cast<int>(getpid())};
    std::vector<int> all(2 * static_cast<std::size_t>(size));
    MPI_Allgather(mine.data(), 2, MPI_INT, all.data(), 2, MPI_INT, node);
    MPI_Comm_free(&node);
    for (std::size_t i = 0; i < all.size(); i += 2) {
      if (all[i] == rank_) continue;
      FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, all[i + 1], 0)));
      if (process.get() < 0) continue;  // an old kernel, or another name space of processes: silence will tell
      neighbours_.push_back({all[i], std::move(process)});
    }
  }

  [[nodiscard]] std::string name(int rank) const {
    return fmt::format("rank {} on {}", rank, &hosts_[static_cast<std::size_t>(rank) * MPI_MAX_PROCESSOR_NAME]);
  }

  void give_up(const std::string& what) {
    if (std::exchange(gave_up_, true)) return;
    if (give_up_) return give_up_(what);
    fmt::print(stderr, "scape train: {}; ending the job\n", what);
    std::fflush(stderr);
    // The others would take this rank, which is about to leave, for dead, and say so.
    std::vector<MPI_Request> sent(static_cast<std::size_t>(ranks_), MPI_REQUEST_NULL);
    for (int other = 0; other < ranks_; ++other) {
      if (other != rank_) MPI_Isend(nullptr, 0, MPI_INT64_T, other, verdict, comm_, &sent[static_cast<std::size_t>(other)]);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * beat_milliseconds));
    MPI_Abort(MPI_COMM_WORLD, exit_status(ErrorKind::communication));
  }

  void watch() {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    for (const auto& [rank, process] : neighbours_) polled.push_back({process.get(), POLLIN, 0});
    Clock::time_point awake = Clock::now(), resumed = awake;
    while (!stopping_) {
      ::poll(polled.data(), polled.size(), beat_milliseconds);
      if (stopping_) return;
      // If this very process was held up (suspended, swapped), the others' silence says nothing: begin anew.
      if (const double held_up = seconds_since(awake); held_up > options_.silence_seconds / 2) {
        held_up_ = held_up;
        resumed = Clock::now();
        heard_.assign(heard_.size(), Clock::now());
      } else if (seconds_since(resumed) > options_.silence_seconds) {
        held_up_ = 0;
      }
      awake = Clock::now();
      receive_all();
      for (std::size_t i = 1; i < polled.size(); ++i) {
        if ((polled[i].revents & POLLIN) == 0) continue;
        polled[i].fd = -1;
        const std::string other = name(neighbours_[i - 1].first);
        give_up(held_up_ == 0 ? other + " has died"
                              : fmt::format("{} was held up for {:.0f} s, and {} has ended", name(rank_), held_up_, other));
      }
      const std::vector<std::int64_t> report = this->report();
      if (rank_ == 0) {
        reports_[0] = report;
        look_for_hangs();
      }
      for (Sender& sender : senders_) sender.send(report);
      for (const int other : partners()) {
        const double silent = seconds_since(heard_[static_cast<std::size_t>(other)]);
        if (silent > options_.silence_seconds)
          give_up(fmt::format("{} has given no sign of life for {:.0f} s", name(other), silent));
      }
    }
  }

  // For each watched communicator: Progress as three numbers.
  [[nodiscard]] std::vector<std::int64_t> report() const {
    std::vector<std::int64_t> numbers;
    for (const Watched& watched : watched_) {
      const Communicator::Progress progress = watched.communicator->progress();
      numbers.insert(numbers.end(), {progress.queued, progress.unfinished, static_cast<std::int64_t>(progress.kind)});
    }
    return numbers;
  }

  void receive_all() {
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, verdict, comm_, &there, &status);
    if (there != 0) gave_up_ = true;  // another rank has said why, and ends the job
    for (there = 1; there != 0;) {
      MPI_Iprobe(MPI_ANY_SOURCE, beat, comm_, &there, &status);
      if (there != 0) receive(status.MPI_SOURCE);
    }
  }

  // Takes the next message of a rank, and waits for it; returns its tag.
  int receive(int from) {
    std::vector<std::int64_t>& report = reports_[static_cast<std::size_t>(from)];
    report.resize(3 * watched_.size());
    MPI_Status status;
    MPI_Recv(report.data(), static_cast<int>(report.size()), MPI_INT64_T, from, MPI_ANY_TAG, comm_, &status);
    heard_[static_cast<std::size_t>(from)] = Clock::now();
    return status.MPI_TAG;
  }

  // On rank 0.
  void look_for_hangs() {
    if (options_.hang_minutes <= 0) return;
    for (std::size_t c = 0; c < watched_.size(); ++c) {
      for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
        if (reports_[rank].empty()) continue;
        const std::int64_t number = reports_[rank][3 * c + 1];
        Stuck& stuck = stuck_[rank * watched_.size() + c];
        if (number == 0 || number != stuck.number) stuck = {.number = number, .since = Clock::now()};
        if (number == 0 || seconds_since(stuck.since) < 60 * options_.hang_minutes) continue;
        std::vector<int> missing;
        for (int other = 0; other < ranks_; ++other) {
          const std::vector<std::int64_t>& report = reports_[static_cast<std::size_t>(other)];
          if (report.empty() || report[3 * c] < number) missing.push_back(other);
        }
        const char* kind = to_string(static_cast<Collective>(reports_[rank][3 * c + 2]));
        give_up(fmt::format("{} number {} of the {} has not finished for {:.3g} minutes: {}", kind, number, watched_[c].name,
                            seconds_since(stuck.since) / 60,
                            missing.empty() ? "every rank has entered it, the network or the library hangs"
                                            : fmt::format("not there yet: rank {}", fmt::join(missing, ", "))));
        return;
      }
    }
  }

  WatchdogOptions options_;
  std::vector<Watched> watched_;
  std::function<void(const std::string&)> give_up_;
  FileDescriptor wake_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int ranks_ = 1;
  std::vector<char> hosts_;  // [ranks, MPI_MAX_PROCESSOR_NAME]
  std::vector<std::pair<int, FileDescriptor>> neighbours_;
  std::vector<Clock::time_point> heard_;            // of each rank
  std::vector<std::vector<std::int64_t>> reports_;  // of each rank
  std::vector<Stuck> stuck_;                        // [ranks, watched]
  std::vector<Sender> senders_;
  bool gave_up_ = false;
  double held_up_ = 0;  // seconds that this process was kept from running a moment ago; it then accuses no other
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

Watchdog::Watchdog(MPI_Comm world, const WatchdogOptions& options, std::vector<Watched> watched,
                   std::function<void(const std::string&)> give_up) {
  int ranks = 1;
  MPI_Comm_size(world, &ranks);
  if (ranks > 1 && options.silence_seconds > 0)
    thread_ = std::make_unique<Thread>(world, options, std::move(watched), std::move(give_up));
}

Watchdog::~Watchdog() = default;

void Watchdog::finish() {
  if (thread_) thread_->finish();
  thread_.reset();
}

}  // namespace scape
