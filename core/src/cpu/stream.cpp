// CPU streams and events.
//
// Each record of an event is a moment of its own; when the queue gets there, it publishes the time and, for a broken stream,
// the exception. A wait holds the moment that is the latest when it is called, so recording again neither prolongs nor ends it.
#include "cpu/stream.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "scape/error.hpp"

namespace scape::detail {

namespace {

using Clock = std::chrono::steady_clock;

// One record of an event: reached once, by the stream it was recorded on.
class Moment {
 public:
  void reach(std::exception_ptr failure) {
    {
      const std::lock_guard lock(mutex_);
      time_ = Clock::now();
      failure_ = std::move(failure);
      reached_ = true;
    }
    changed_.notify_all();
  }
  void await() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
    if (failure_) std::rethrow_exception(failure_);
  }
  [[nodiscard]] bool reached() const {
    const std::lock_guard lock(mutex_);
    return reached_;
  }
  [[nodiscard]] Clock::time_point time() const {
    const std::lock_guard lock(mutex_);
    require(reached_, ErrorKind::internal, "seconds_between: an event has not happened yet");
    return time_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;
  Clock::time_point time_;
  std::exception_ptr failure_;
};

// What an event needs of a CPU stream beyond enqueue(): a record must be published even when the stream is broken.
class CpuStream : public StreamBackend {
 public:
  [[nodiscard]] Device device() const override { return cpu_device; }
  virtual void record(std::shared_ptr<Moment> moment) = 0;
};

class CpuEvent final : public EventBackend {
 public:
  void record(StreamBackend& stream) override {
    auto* cpu_stream = dynamic_cast<CpuStream*>(&stream);
    require(cpu_stream != nullptr, ErrorKind::internal, "Event::record: a CPU event on a stream of another device");
    auto moment = std::make_shared<Moment>();
    {
      const std::lock_guard lock(mutex_);
      latest_ = moment;
    }
    cpu_stream->record(std::move(moment));
  }
  [[nodiscard]] std::function<void()> host_wait() const override {
    return [moment = latest()] {
      if (moment) moment->await();
    };
  }
  [[nodiscard]] bool ready() const override {
    const auto moment = latest();
    return !moment || moment->reached();
  }
  [[nodiscard]] double seconds_since(const EventBackend& begin) const override {
    const auto* other = dynamic_cast<const CpuEvent*>(&begin);
    require(other != nullptr, ErrorKind::internal, "seconds_between: events of different devices");
    const auto from = other->latest();
    const auto to = latest();
    require(from && to, ErrorKind::internal, "seconds_between: an event was never recorded");
    return std::chrono::duration<double>(to->time() - from->time()).count();
  }

 private:
  // Null before the first record.
  [[nodiscard]] std::shared_ptr<Moment> latest() const {
    const std::lock_guard lock(mutex_);
    return latest_;
  }

  mutable std::mutex mutex_;
  std::shared_ptr<Moment> latest_;
};

class ImmediateStream final : public CpuStream {
 public:
  void enqueue(std::function<void()> operation) override { operation(); }
  void wait(const EventBackend& event) override { event.synchronize(); }
  void synchronize() override {}
  void record(std::shared_ptr<Moment> moment) override { moment->reach(nullptr); }
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
  void wait(const EventBackend& event) override { enqueue(event.host_wait()); }
  void record(std::shared_ptr<Moment> moment) override {
    push([this, moment = std::move(moment)] { moment->reach(failure_); });
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
      std::function<void()> task = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      std::exception_ptr failure;
      try {
        task();
      } catch (...) {
        failure = std::current_exception();
      }
      task = nullptr;  // what it captured may use this stream while it is destroyed
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
