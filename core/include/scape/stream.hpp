// In-order queues of work and the events that order them against each other: one model for CPU and CUDA, so that
// "two streams and an event" overlaps communication with compute on both. A stream may wait for events of the other kind, too.
//
//   immediate stream   CPU only: an operation runs on the calling thread before the call returns
//   queued stream      CPU: a worker thread runs operations in order; CUDA: a cudaStream_t
//
// An operation that throws on a worker thread breaks its stream: later operations on it are dropped, and the exception
// is thrown from synchronize() and from every wait for an event recorded after it.
#pragma once

#include <functional>
#include <memory>

#include "scape/device.hpp"

namespace scape {

namespace detail {
class StreamBackend;
class EventBackend;
}  // namespace detail

class Event;
class Stream;

namespace detail {
[[nodiscard]] StreamBackend& stream_backend(const Stream& stream);
}

/// A shared handle: copies name the same queue. The queue is drained when its last handle goes, which must not happen inside one
/// of its own operations.
class Stream {
 public:
  /// An immediate CPU stream.
  Stream();
  /// A queued stream on `device`. Throws Error(usage) if the device is not there.
  explicit Stream(Device device);

  [[nodiscard]] Device device() const;
  /// Runs `operation` on the host after everything queued before it.
  void enqueue(std::function<void()> operation) const;
  /// Later operations of this stream start after `event` has happened. Does not block the caller of a queued stream.
  void wait(const Event& event) const;
  /// Blocks the caller until the queue is empty; rethrows what an operation threw.
  void synchronize() const;
  /// cudaStream_t of a CUDA stream, otherwise null.
  [[nodiscard]] void* native() const;

 private:
  friend class Event;
  friend detail::StreamBackend& detail::stream_backend(const Stream& stream);
  std::shared_ptr<detail::StreamBackend> backend_;
};

/// A point in a stream, with the time at which it was reached. Not yet recorded counts as already reached.
class Event {
 public:
  explicit Event(Device device = cpu_device);

  /// Marks the present end of `stream`'s queue. An event may be recorded again; waits refer to the latest record.
  void record(const Stream& stream);
  /// Blocks the calling thread until the event has happened.
  void synchronize() const;
  [[nodiscard]] bool ready() const;

 private:
  friend class Stream;
  friend double seconds_between(const Event&, const Event&);
  std::shared_ptr<detail::EventBackend> backend_;
};

/// Seconds from `begin` to `end`, both recorded on the same device and both reached.
[[nodiscard]] double seconds_between(const Event& begin, const Event& end);

}  // namespace scape
