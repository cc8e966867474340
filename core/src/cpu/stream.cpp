// CPU streams and events.
//
// An event counts its records; reaching record n in the queue publishes "n reached" with the time and, for a broken
// stream, the exception. A wait remembers the count at the time of the call, so recording again does not prolong it.
#include "cpu/stream.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "scape/error.hpp"

namespace scape::detail {

namespace {

using Clock = std::chrono::steady_clock;

class EventState {
 public:
  std::uint64_t announce() {
    const std::lock_guard lock(mutex_);
    return ++recorded_;
  }
  void reach(std::uint64_t record, std::exception_ptr failure) {
    {
      const std::lock_guard lock(mutex_);
      if (record <= reached_) return;
      reached_ = record;
      time_ = Clock::now();
      failure_ = std::move(failure);
    }
    changed_.notify_all();
  }
  [[nodiscard]] std::uint64_t recorded() const {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  void await(std::uint64_t record) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= record; });
    if (failure_) std::rethrow_exception(failure_);
  }
  [[nodiscard]] bool ready() const {
    const std::lock_guard lock(mutex_);
    return reached_ == recorded_;
  }
  [[nodiscard]] Clock::time_point time() const {
    const std::lock_guard lock(mutex_);
    require(reached_ > 0 && reached_ == recorded_, ErrorKind::internal, "seconds_between: an event has not happened yet");
    return time_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::uint64_t recorded_ = 0;
  std::uint64_t reached_ = 0;
  Clock::time_point time_;
  std::exception_ptr failure_;
};

// What an event needs of a CPU stream beyond enqueue(): a record must be published even when the stream is broken.
class CpuStream : public StreamBackend {
 public:
  [[nodiscard]] Device device() const override { return cpu_device; }
  virtual void record(std::shared_ptr<EventState> event, std::uint64_t record) = 0;
};

class CpuEvent final : public EventBackend {
 public:
  void record(StreamBackend& stream) override {
    auto* cpu_stream = dynamic_cast<CpuStream*>(&stream);
    require(cpu_stream != nullptr, ErrorKind::internal, "Event::record: a CPU event on a stream of another device");
    const std::uint64_t record = state_->announce();
    cpu_stream->record(state_, record);
  }
  void synchronize() const override { state_->await(state_->recorded()); }
  [[nodiscard]] bool ready() const override { return state_->ready(); }
  [[nodiscard]] double seconds_since(const EventBackend& begin) const override {
    const auto* other = dynamic_cast<const CpuEvent*>(&begin);
    require(other != nullptr, ErrorKind::internal, "seconds_between: events of different devices");
    return std::chrono::duration<double>(state_->time() - other->state_->time()).count();
  }
  [[nodiscard]] const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

const CpuEvent& as_cpu_event(const EventBackend& event) {
  const auto* cpu_event = dynamic_cast<const CpuEvent*>(&event);
  require(cpu_event != nullptr, ErrorKind::internal, "Stream::wait: an event of another device on a CPU stream");
  return *cpu_event;
}

class ImmediateStream final : public CpuStream {
 public:
  void enqueue(std::function<void()> operation) override { operation(); }
  void wait(const EventBackend& event) override { event.synchronize(); }
  void synchronize() override {}
  void record(std::shared_ptr<EventState> event, std::uint64_t record) override { event->reach(record, nullptr); }
};

class QueuedStream final : public CpuStream {
 public:
  QueuedStream() : worker_([this] { run(); }) {}
  QueuedStream(const QueuedStream&) = delete;
  QueuedStream& operator=(const QueuedStream&) = delete;
  ~QueuedStream() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  void enqueue(std::function<void()> operation) override {
    push([this, operation = std::move(operation)] {
      if (!failure_) operation();
    });
  }
  void wait(const EventBackend& event) override {
    enqueue([state = as_cpu_event(event).state(), record = as_cpu_event(event).state()->recorded()] { state->await(record); });
  }
  void record(std::shared_ptr<EventState> event, std::uint64_t record) override {
    push([this, event = std::move(event), record] { event->reach(record, failure_); });
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void push(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    changed_.notify_all();
  }
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> task = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      std::exception_ptr failure;
      try {
        task();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      busy_ = false;
      if (failure && !failure_) failure_ = failure;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  bool closing_ = false;
  std::exception_ptr failure_;  // written by the worker under the lock; the worker reads it without
  std::thread worker_;          // last: starts when everything else is there
};

}  // namespace

std::shared_ptr<StreamBackend> make_immediate_stream() {
  return std::make_shared<ImmediateStream>();
}
std::shared_ptr<StreamBackend> make_queued_stream() {
  return std::make_shared<QueuedStream>();
}
std::shared_ptr<EventBackend> make_cpu_event() {
  return std::make_shared<CpuEvent>();
}

}  // namespace scape::detail
