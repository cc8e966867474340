// Streams and events of the CPU: order, waits between queues, failures, and what recording again means.
#include "scape/stream.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "backend.hpp"
#include "scape/error.hpp"
#include "scape/telemetry.hpp"

namespace scape {
namespace {

// An operation that lasts until it is opened.
class Gate {
 public:
  [[nodiscard]] std::function<void()> operation() const {
    return [opened = opened_] { opened.wait(); };
  }
  void open() { promise_.set_value(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_ = promise_.get_future().share();
};

void fail() {
  throw std::runtime_error("broken on purpose");
}

TEST(Stream, ImmediateRunsOnTheCallerBeforeTheCallReturns) {
  const Stream stream;
  std::thread::id where;
  stream.enqueue([&] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_THROW(stream.enqueue(fail), std::runtime_error);
  EXPECT_NO_THROW(stream.synchronize());
  EXPECT_EQ(stream.device(), cpu_device);
  EXPECT_EQ(stream.native(), nullptr);
}

TEST(Stream, QueuedRunsInOrderOnOneOtherThread) {
  const Stream stream(cpu_device);
  std::vector<int> seen;
  std::vector<std::thread::id> where;
  for (int i = 0; i < 1000; ++i) {
    stream.enqueue([&, i] {
      seen.push_back(i);
      where.push_back(std::this_thread::get_id());
    });
  }
  stream.synchronize();
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(seen, expected);
  EXPECT_NE(where.front(), std::this_thread::get_id());
  EXPECT_EQ(std::vector<std::thread::id>(1000, where.front()), where);
}

TEST(Stream, QueueingDoesNotWait) {
  const Stream stream(cpu_device);
  Gate gate;
  std::atomic<bool> done = false;
  stream.enqueue(gate.operation());
  stream.enqueue([&] { done = true; });
  EXPECT_FALSE(done);  // reached only if enqueue() returned before the operation ended
  gate.open();
  stream.synchronize();
  EXPECT_TRUE(done);
}

TEST(Stream, CopiesNameTheSameQueueAndTheLastOneDrainsIt) {
  int done = 0;
  std::optional<Stream> copy;
  {
    const Stream stream(cpu_device);
    copy = stream;
    for (int i = 0; i < 100; ++i) stream.enqueue([&] { ++done; });
    copy->enqueue([&] { done *= 10; });
  }
  copy.reset();
  EXPECT_EQ(done, 1000);
}

TEST(Stream, RefusesADeviceThatIsNotThere) {
  for (const Device device : {Device{DeviceKind::cpu, 1}, Device{DeviceKind::cpu, -1}, Device{DeviceKind::cuda, 4096}}) {
    try {
      const Stream stream(device);
      ADD_FAILURE() << "made a stream on " << to_string(device) << " " << device.index;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
    }
  }
}

// What an operation captured may use the stream while it is destroyed, and is gone when synchronize() returns.
TEST(Stream, CapturedStateIsDestroyedOutsideTheQueuesLock) {
  struct Captured {
    const Stream& stream;
    std::atomic<int>& enqueued;
    Captured(const Stream& s, std::atomic<int>& e) : stream(s), enqueued(e) {}
    Captured(const Captured&) = delete;
    Captured& operator=(const Captured&) = delete;
    ~Captured() {
      stream.enqueue([&count = enqueued] { ++count; });
    }
  };
  const Stream stream(cpu_device);
  std::atomic<int> enqueued = 0;
  auto captured = std::make_shared<Captured>(stream, enqueued);
  stream.enqueue([captured] {});
  captured.reset();
  stream.synchronize();
  EXPECT_EQ(enqueued, 1);
}

TEST(Event, NeverRecordedCountsAsReached) {
  const Event event;
  EXPECT_TRUE(event.ready());
  event.synchronize();
  const Stream immediate;
  immediate.wait(event);
  const Stream queued(cpu_device);
  queued.wait(event);
  queued.synchronize();
  EXPECT_THROW((void)seconds_between(event, event), Error);
}

TEST(Event, OrdersTwoQueues) {
  const Stream producer(cpu_device);
  const Stream consumer(cpu_device);
  int value = 0;
  for (int i = 0; i < 200; ++i) {
    Event produced;
    Event consumed;
    producer.enqueue([&value, i] { value = i; });
    produced.record(producer);
    consumer.wait(produced);
    consumer.enqueue([&value, i] { EXPECT_EQ(value, i); });
    consumed.record(consumer);
    producer.wait(consumed);
  }
  producer.synchronize();
  consumer.synchronize();
}

TEST(Event, WaitingDoesNotBlockTheCallerOfAQueue) {
  const Stream slow(cpu_device);
  const Stream other(cpu_device);
  Gate gate;
  Event event;
  std::atomic<bool> passed = false;
  slow.enqueue(gate.operation());
  event.record(slow);
  other.wait(event);
  other.enqueue([&] { passed = true; });
  EXPECT_FALSE(event.ready());
  EXPECT_FALSE(passed);
  gate.open();
  other.synchronize();
  EXPECT_TRUE(passed);
  EXPECT_TRUE(event.ready());
}

TEST(Event, AnImmediateStreamWaitsOnTheCaller) {
  const Stream slow(cpu_device);
  int value = 0;
  slow.enqueue([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    value = 1;
  });
  Event event;
  event.record(slow);
  const Stream immediate;
  immediate.wait(event);
  EXPECT_EQ(value, 1);
}

TEST(Event, AWaitRefersToTheRecordBeforeItAndNotToLaterOnes) {
  const Stream first(cpu_device);
  const Stream second(cpu_device);
  const Stream waiting(cpu_device);
  Gate never_in_this_scope;
  Event event;
  std::atomic<bool> passed = false;
  event.record(first);
  waiting.wait(event);
  waiting.enqueue([&] { passed = true; });
  second.enqueue(never_in_this_scope.operation());
  event.record(second);  // must not prolong the wait above
  waiting.synchronize();
  EXPECT_TRUE(passed);
  EXPECT_FALSE(event.ready());
  never_in_this_scope.open();
  event.synchronize();
  EXPECT_TRUE(event.ready());
}

TEST(Event, RecordingAgainOnAFasterStreamDoesNotReleaseAnEarlierWait) {
  const Stream slow(cpu_device);
  const Stream fast(cpu_device);
  const Stream waiting(cpu_device);
  Gate gate;
  Event event;
  std::atomic<bool> passed = false;
  slow.enqueue(gate.operation());
  event.record(slow);
  waiting.wait(event);
  waiting.enqueue([&] { passed = true; });
  event.record(fast);
  event.synchronize();  // the latest record
  EXPECT_TRUE(event.ready());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a wrong release needs a moment to show
  EXPECT_FALSE(passed);
  gate.open();
  waiting.synchronize();
  EXPECT_TRUE(passed);
}

// An event of another kind of device.
class ForeignEvent final : public detail::EventBackend {
 public:
  explicit ForeignEvent(std::function<void()> wait) : wait_(std::move(wait)) {}
  void record(detail::StreamBackend&) override {}
  [[nodiscard]] std::function<void()> host_wait() const override { return wait_; }
  [[nodiscard]] bool ready() const override { return false; }
  [[nodiscard]] double seconds_since(const EventBackend&) const override { return 0; }

 private:
  std::function<void()> wait_;
};

TEST(Event, OfAnotherDeviceOrdersStreamsToo) {
  Gate gate;
  const Stream queued(cpu_device);
  std::atomic<bool> passed = false;
  detail::stream_backend(queued).wait(ForeignEvent(gate.operation()));
  queued.enqueue([&] { passed = true; });
  EXPECT_FALSE(passed);
  gate.open();
  queued.synchronize();
  EXPECT_TRUE(passed);
  EXPECT_NO_THROW(detail::stream_backend(Stream()).wait(ForeignEvent(gate.operation())));
  EXPECT_THROW(detail::stream_backend(Stream()).wait(ForeignEvent(fail)), std::runtime_error);
  detail::stream_backend(queued).wait(ForeignEvent(fail));
  EXPECT_THROW(queued.synchronize(), std::runtime_error);
}

TEST(Event, MeasuresTime) {
  const Stream stream(cpu_device);
  Event begin;
  Event end;
  begin.record(stream);
  stream.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
  end.record(stream);
  end.synchronize();
  EXPECT_GE(seconds_between(begin, end), 0.003);
  EXPECT_EQ(seconds_between(begin, begin), 0);
}

TEST(StreamFailure, SurfacesAtSynchronizeAndDropsLaterWork) {
  const Stream stream(cpu_device);
  bool ran = false;
  stream.enqueue(fail);
  stream.enqueue([&] { ran = true; });
  EXPECT_THROW(stream.synchronize(), std::runtime_error);
  EXPECT_THROW(stream.synchronize(), std::runtime_error);  // it stays broken
  EXPECT_FALSE(ran);
}

TEST(StreamFailure, ReachesWhoeverWaitsForALaterEvent) {
  const Stream broken(cpu_device);
  Event before;
  Event after;
  before.record(broken);
  broken.enqueue(fail);
  after.record(broken);
  EXPECT_NO_THROW(before.synchronize());
  EXPECT_THROW(after.synchronize(), std::runtime_error);
  EXPECT_TRUE(after.ready());

  const Stream immediate;
  EXPECT_NO_THROW(immediate.wait(before));
  EXPECT_THROW(immediate.wait(after), std::runtime_error);

  const Stream queued(cpu_device);
  bool ran = false;
  queued.wait(before);
  queued.enqueue([&] { ran = true; });
  EXPECT_NO_THROW(queued.synchronize());
  EXPECT_TRUE(ran);
  queued.wait(after);
  queued.enqueue([&] { ran = false; });
  Event passed_on;
  passed_on.record(queued);
  EXPECT_THROW(queued.synchronize(), std::runtime_error);
  EXPECT_THROW(passed_on.synchronize(), std::runtime_error);  // and on to the next stream
  EXPECT_TRUE(ran);
}

TEST(StreamFailure, IsNotForgottenWhenTheEventIsRecordedAgain) {
  const Stream broken(cpu_device);
  const Stream sound(cpu_device);
  const Stream waiting(cpu_device);
  Gate gate;
  Event event;
  broken.enqueue(fail);
  event.record(broken);
  waiting.enqueue(gate.operation());
  waiting.wait(event);  // of the failure
  event.record(sound);
  EXPECT_NO_THROW(event.synchronize());  // the latest record is fine
  gate.open();
  EXPECT_THROW(waiting.synchronize(), std::runtime_error);
}

TEST(StreamFailure, OfAStreamThatNobodyAsksIsNoCrash) {
  const Stream stream(cpu_device);
  stream.enqueue(fail);
}

TEST(Telemetry, SumsTheScopesOfAPhaseOnceOnItsStream) {
  Telemetry telemetry;
  const Stream stream(cpu_device);
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  for (int i = 0; i < 2; ++i) {
    const Telemetry::Scope scope = telemetry.scope(Phase::update, stream);
    stream.enqueue(pause);
  }
  stream.enqueue(pause);  // in no scope
  { const Telemetry::Scope scope = telemetry.scope(Phase::compress, stream); }
  const Telemetry::Seconds seconds = telemetry.take();
  EXPECT_GE(seconds[static_cast<std::size_t>(Phase::update)], 0.004);
  EXPECT_GE(seconds[static_cast<std::size_t>(Phase::compress)], 0);
  EXPECT_EQ(seconds[static_cast<std::size_t>(Phase::communication)], 0);
  EXPECT_EQ(telemetry.take(), Telemetry::Seconds{});
}

TEST(Telemetry, TimeOfAnInnerScopeIsNotCountedTwice) {
  for (const Stream& stream : {Stream(), Stream(cpu_device)}) {
    Telemetry telemetry;
    const auto pause = [](int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); };
    Event begin, end;
    begin.record(stream);
    {
      const Telemetry::Scope outer = telemetry.scope(Phase::forward_backward, stream);
      stream.enqueue([&] { pause(2); });
      for (int i = 0; i < 2; ++i) {
        const Telemetry::Scope inner = telemetry.scope(Phase::communication, stream);
        const Telemetry::Scope innermost = telemetry.scope(Phase::compress, stream);
        stream.enqueue([&] { pause(20); });
      }
    }
    end.record(stream);
    const Telemetry::Seconds seconds = telemetry.take();
    stream.synchronize();
    const auto of = [&](Phase phase) { return seconds[static_cast<std::size_t>(phase)]; };
    EXPECT_GE(of(Phase::forward_backward), 0.002);
    EXPECT_GE(of(Phase::compress), 0.040);
    EXPECT_GE(of(Phase::communication), 0);
    const double sum = of(Phase::forward_backward) + of(Phase::compress) + of(Phase::communication);
    EXPECT_LE(sum, seconds_between(begin, end));  // would be twice as long
  }
}

}  // namespace
}  // namespace scape
