// CUDA backend: devices, memory and copies through the CUDA runtime.
#include "backend.hpp"

#include <cstring>
#include <new>

#include "cuda/handle.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stream.hpp"

namespace scape::cuda {

namespace {

// Throws std::bad_alloc for want of memory, Error for anything else.
void check_allocation(cudaError_t code, const char* call) {
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw std::bad_alloc();
  }
  check(code, call);
}

// A machine without a GPU or without a driver has no devices; whatever else is wrong is told.
int count_devices() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  check(code, "cudaGetDeviceCount");
  return count;
}

class CudaBackend final : public detail::Backend {
 public:
  [[nodiscard]] int device_count() const override {
    static const int count = count_devices();
    return count;
  }
  [[nodiscard]] std::string device_name(int index) const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    return properties.name;
  }
  void make_current(int index) const override { check(cudaSetDevice(index), "cudaSetDevice"); }

  [[nodiscard]] void* allocate(std::size_t bytes, int index) const override {
    const CurrentDevice current(index);
    void* data = nullptr;
    check_allocation(cudaMalloc(&data, bytes), "cudaMalloc");
    DeviceMemory<void> owner(data);
    check(cudaMemsetAsync(data, 0, bytes, cudaStreamLegacy), "cudaMemsetAsync");
    check(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");  // any stream may use it next
    return owner.release();
  }
  // Waits for the device: nothing that runs can still be using it.
  void deallocate(void* data, int) const noexcept override { static_cast<void>(cudaFree(data)); }

  [[nodiscard]] void* allocate_pinned(std::size_t bytes, int index) const override {
    const CurrentDevice current(index);
    void* data = nullptr;
    check_allocation(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "cudaHostAlloc");
    std::memset(data, 0, bytes);
    return data;
  }
  void deallocate_pinned(void* data, int) const noexcept override { static_cast<void>(cudaFreeHost(data)); }

  void copy(void* to, const void* from, std::size_t bytes, detail::StreamBackend& stream) const override {
    const CudaStream& on = cuda_stream(stream, "copy");
    const CurrentDevice current(on.device().index);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on.handle()), "cudaMemcpyAsync");
  }
  void zero(void* data, std::size_t bytes, detail::StreamBackend& stream) const override {
    const CudaStream& on = cuda_stream(stream, "zero");
    const CurrentDevice current(on.device().index);
    check(cudaMemsetAsync(data, 0, bytes, on.handle()), "cudaMemsetAsync");
  }

  [[nodiscard]] std::shared_ptr<detail::StreamBackend> make_stream(int index) const override {
    return std::make_shared<CudaStream>(index);
  }
  [[nodiscard]] std::shared_ptr<detail::EventBackend> make_event(int index) const override { return make_cuda_event(index); }

  [[nodiscard]] const UpdateKernels& update_kernels() const override { return cuda_update_kernels(); }
  [[nodiscard]] const SparseKernels& sparse_kernels() const override { return cuda_sparse_kernels(); }
  [[nodiscard]] const QuantKernels& quant_kernels() const override { return cuda_quant_kernels(); }
};

}  // namespace

}  // namespace scape::cuda

namespace scape::detail {

const Backend& cuda_backend() {
  static const cuda::CudaBackend backend;
  return backend;
}

}  // namespace scape::detail
