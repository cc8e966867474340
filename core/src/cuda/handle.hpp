// Owners of what the CUDA runtime hands out, and the current device as a scope. Failures while giving back are ignored: they
// have been reported before, or the process is ending.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <type_traits>

#include "cuda/check.hpp"

namespace scape::cuda {

struct DestroyStream {
  void operator()(cudaStream_t stream) const noexcept { static_cast<void>(cudaStreamDestroy(stream)); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const noexcept { static_cast<void>(cudaEventDestroy(event)); }
};
struct FreeDeviceMemory {
  void operator()(void* data) const noexcept { static_cast<void>(cudaFree(data)); }
};
using StreamHandle = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using EventHandle = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
template <class T>
using DeviceMemory = std::unique_ptr<T, FreeDeviceMemory>;

/// Makes `index` the thread's current device until the end of the scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (previous_ != index) check(cudaSetDevice(index), "cudaSetDevice");
  }
  ~CurrentDevice() { static_cast<void>(cudaSetDevice(previous_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace scape::cuda
