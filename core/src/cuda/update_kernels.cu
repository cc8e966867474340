// UpdateKernels on CUDA.
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/update.cuh"

namespace scape::cuda {

const UpdateKernels& cuda_update_kernels() {
  static const DeviceUpdateKernels<CudaLauncher> kernels;
  return kernels;
}

}  // namespace scape::cuda
