// Front of streams and events, and the copies ordered on them.
#include "scape/stream.hpp"

#include "backend.hpp"
#include "scape/buffer.hpp"
#include "scape/error.hpp"

namespace scape {

Stream::Stream() : backend_(detail::make_immediate_stream()) {}

Stream::Stream(Device device) {
  const detail::Backend& backend = detail::backend(device.kind);
  if (device.index < 0 || device.index >= backend.device_count()) {
    throw Error(ErrorKind::usage, "Stream: device " + to_string(device) + " is not there");
  }
  backend_ = backend.make_stream(device.index);
}

Device Stream::device() const {
  return backend_->device();
}
void Stream::enqueue(std::function<void()> operation) const {
  backend_->enqueue(std::move(operation));
}
void Stream::wait(const Event& event) const {
  backend_->wait(*event.backend_);
}
void Stream::synchronize() const {
  backend_->synchronize();
}
void* Stream::native() const {
  return backend_->native();
}

Event::Event(Device device) : backend_(detail::backend(device.kind).make_event(device.index)) {}

void Event::record(const Stream& stream) {
  backend_->record(*stream.backend_);
}
void Event::synchronize() const {
  backend_->synchronize();
}
bool Event::ready() const {
  return backend_->ready();
}

double seconds_between(const Event& begin, const Event& end) {
  return end.backend_->seconds_since(*begin.backend_);
}

namespace detail {

StreamBackend& stream_backend(const Stream& stream) {
  return *stream.backend_;
}

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes, const Stream& stream) {
  if (bytes == 0) return;
  const DeviceKind kind = to_device.kind == DeviceKind::cpu ? from_device.kind : to_device.kind;
  const DeviceKind of_stream = stream.device().kind;  // a GPU's stream copies between any two, also both of the host
  require(of_stream == kind || kind == DeviceKind::cpu, ErrorKind::internal,
          "copy: the stream is on another kind of device than the memory");
  backend(of_stream).copy(to, from, bytes, stream_backend(stream));
}

void zero_bytes(void* data, Device device, std::size_t bytes, const Stream& stream) {
  if (bytes == 0) return;
  require(stream.device().kind == device.kind, ErrorKind::internal,
          "zero: the stream is on another kind of device than the memory");
  backend(device.kind).zero(data, bytes, stream_backend(stream));
}

}  // namespace detail

}  // namespace scape
