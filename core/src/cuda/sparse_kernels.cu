// SparseKernels on CUDA.
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/sparse.cuh"

namespace scape::cuda {

const SparseKernels& cuda_sparse_kernels() {
  static const DeviceSparseKernels<CudaLauncher> kernels;
  return kernels;
}

}  // namespace scape::cuda
