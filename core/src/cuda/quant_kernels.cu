// QuantKernels on CUDA.
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/quant.cuh"

namespace scape::cuda {

const QuantKernels& cuda_quant_kernels() {
  static const DeviceQuantKernels<CudaLauncher> kernels;
  return kernels;
}

}  // namespace scape::cuda
