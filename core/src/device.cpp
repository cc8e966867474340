// Front of the device layer: dispatch to the backend of a device kind.
#include "scape/device.hpp"

#include "backend.hpp"
#include "scape/buffer.hpp"
#include "scape/error.hpp"

namespace scape {

namespace detail {

const Backend& backend(DeviceKind kind) {
  return kind == DeviceKind::cpu ? cpu_backend() : cuda_backend();
}

namespace {
const Backend& usable_backend(Device device) {
  const Backend& chosen = backend(device.kind);
  if (device.index < 0 || device.index >= chosen.device_count()) {
    throw Error(ErrorKind::usage, "device " + to_string(device) + " is not there (" + std::to_string(chosen.device_count()) +
                                      " of its kind can be used)");
  }
  return chosen;
}

thread_local std::int64_t asked_for = 0;
}  // namespace

std::int64_t allocated_bytes() noexcept {
  return asked_for;
}

void* allocate(std::size_t bytes, Device device) {
  asked_for += static_cast<std::int64_t>(bytes);
  return bytes == 0 ? nullptr : usable_backend(device).allocate(bytes, device.index);
}
void deallocate(void* data, Device device) noexcept {
  backend(device.kind).deallocate(data, device.index);
}
void* allocate_pinned(std::size_t bytes, Device device) {
  asked_for += static_cast<std::int64_t>(bytes);
  return bytes == 0 ? nullptr : usable_backend(device).allocate_pinned(bytes, device.index);
}
void deallocate_pinned(void* data, Device device) noexcept {
  backend(device.kind).deallocate_pinned(data, device.index);
}

}  // namespace detail

int device_count(DeviceKind kind) {
  return detail::backend(kind).device_count();
}

const UpdateKernels& update_kernels(Device device) {
  return detail::backend(device.kind).update_kernels();
}

const SparseKernels& sparse_kernels(Device device) {
  return detail::backend(device.kind).sparse_kernels();
}

const QuantKernels& quant_kernels(Device device) {
  return detail::backend(device.kind).quant_kernels();
}

std::string device_name(Device device) {
  return detail::usable_backend(device).device_name(device.index);
}

std::string to_string(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

}  // namespace scape
