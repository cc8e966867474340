// The seam between the device-independent front and the code of one device kind. A backend is an abstract class: what a
// device kind lacks does not compile. cpu/ implements one, cuda/ another; no_cuda.cpp stands in for the latter.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "scape/device.hpp"
#include "scape/kernels.hpp"

namespace scape::detail {

class EventBackend;

class StreamBackend {
 public:
  virtual ~StreamBackend() = default;
  [[nodiscard]] virtual Device device() const = 0;
  virtual void enqueue(std::function<void()> operation) = 0;
  /// For an event of any device kind.
  virtual void wait(const EventBackend& event) = 0;
  virtual void synchronize() = 0;
  [[nodiscard]] virtual void* native() { return nullptr; }
};

class EventBackend {
 public:
  virtual ~EventBackend() = default;
  virtual void record(StreamBackend& stream) = 0;
  /// A wait of the host for the latest record, whatever is recorded later: it blocks until the record is reached and rethrows what
  /// failed before it. It may be called from any thread, and returns at once for an event that was never recorded.
  [[nodiscard]] virtual std::function<void()> host_wait() const = 0;
  void synchronize() const { host_wait()(); }
  [[nodiscard]] virtual bool ready() const = 0;
  /// Seconds from `begin` (same backend) to this event.
  [[nodiscard]] virtual double seconds_since(const EventBackend& begin) const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual int device_count() const = 0;
  [[nodiscard]] virtual std::string device_name(int index) const = 0;
  /// For libraries that look for a current device of the calling thread.
  virtual void make_current(int index) const = 0;
  [[nodiscard]] virtual void* allocate(std::size_t bytes, int index) const = 0;
  virtual void deallocate(void* data, int index) const noexcept = 0;
  [[nodiscard]] virtual void* allocate_pinned(std::size_t bytes, int index) const = 0;
  virtual void deallocate_pinned(void* data, int index) const noexcept = 0;
  /// At least one side is of this backend; ordered on `stream`, which is too.
  virtual void copy(void* to, const void* from, std::size_t bytes, StreamBackend& stream) const = 0;
  virtual void zero(void* data, std::size_t bytes, StreamBackend& stream) const = 0;
  [[nodiscard]] virtual std::shared_ptr<StreamBackend> make_stream(int index) const = 0;
  [[nodiscard]] virtual std::shared_ptr<EventBackend> make_event(int index) const = 0;
  [[nodiscard]] virtual const UpdateKernels& update_kernels() const = 0;
  [[nodiscard]] virtual const SparseKernels& sparse_kernels() const = 0;
  [[nodiscard]] virtual const QuantKernels& quant_kernels() const = 0;
};

[[nodiscard]] const Backend& cpu_backend();
[[nodiscard]] const Backend& cuda_backend();
[[nodiscard]] const Backend& backend(DeviceKind kind);

/// A CPU stream that runs operations at once on the calling thread.
[[nodiscard]] std::shared_ptr<StreamBackend> make_immediate_stream();

}  // namespace scape::detail
