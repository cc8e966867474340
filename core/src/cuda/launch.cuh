// Kernels (see block.cuh) on CUDA streams.
#pragma once

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/stream.hpp"
#include "scape/stream.hpp"

namespace scape::cuda {

/// What block.cuh asks of a thread, on the GPU.
class CudaThread {
 public:
  [[nodiscard]] __device__ int index() const { return static_cast<int>(threadIdx.x); }
  [[nodiscard]] __device__ int block() const { return static_cast<int>(blockIdx.x); }
  [[nodiscard]] __device__ int blocks() const { return static_cast<int>(gridDim.x); }
  __device__ void sync() const { __syncthreads(); }
  __device__ void fence() const { __threadfence(); }

  [[nodiscard]] __device__ std::uint32_t ballot(bool value) const { return __ballot_sync(whole_warp, value); }
  template <class T>
  [[nodiscard]] __device__ T shuffle_up(T value, int distance) const {
    return __shfl_up_sync(whole_warp, value, static_cast<unsigned>(distance));
  }
  template <class T>
  [[nodiscard]] __device__ T shuffle_xor(T value, int distance) const {
    return __shfl_xor_sync(whole_warp, value, distance);
  }

  __device__ std::uint32_t atomic_add(std::uint32_t* to, std::uint32_t value) const { return atomicAdd(to, value); }
  __device__ std::uint64_t atomic_add(std::uint64_t* to, std::uint64_t value) const {
    return atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  }

  [[nodiscard]] __device__ int popcount(std::uint64_t word) const { return __popcll(word); }
  [[nodiscard]] __device__ int lowest_bit(std::uint64_t word) const { return __ffsll(static_cast<long long>(word)) - 1; }
  [[nodiscard]] __device__ std::uint32_t bits(float value) const { return __float_as_uint(value); }
  [[nodiscard]] __device__ float from_bits(std::uint32_t word) const { return __uint_as_float(word); }

 private:
  static constexpr unsigned whole_warp = 0xffffffffU;
};

template <class Kernel>
__global__ void __launch_bounds__(block_threads) run_kernel(const __grid_constant__ Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  kernel(CudaThread{}, shared);
}

struct CudaLauncher {
  static constexpr std::int64_t most_joint_blocks = max_blocks;

  [[nodiscard]] static Scratch* scratch(const Stream& stream) { return on(stream).scratch(); }

  /// Up to `blocks` blocks, none if zero: kernels go on with what is left.
  template <class Kernel>
  static void launch(const Kernel& kernel, std::int64_t blocks, const Stream& stream) {
    constexpr std::int64_t most = std::int64_t{1} << 20;
    if (blocks == 0) return;
    const CudaStream& to = on(stream);
    const CurrentDevice current(to.device().index);
    run_kernel<<<static_cast<unsigned>(blocks < most ? blocks : most), block_threads, 0, to.handle()>>>(kernel);
    check(cudaGetLastError(), "kernel launch");
  }
  /// For kernels whose blocks write to Scratch: at least one block, so that a result is written.
  template <class Kernel>
  static void launch_joint(const Kernel& kernel, std::int64_t blocks, const Stream& stream) {
    launch(kernel, blocks < 1 ? 1 : blocks < most_joint_blocks ? blocks : most_joint_blocks, stream);
  }

 private:
  static CudaStream& on(const Stream& stream) { return cuda_stream(detail::stream_backend(stream), "kernel"); }
};

}  // namespace scape::cuda
