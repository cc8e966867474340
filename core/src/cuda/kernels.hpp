// The CUDA implementations of the kernel families.
#pragma once

#include "scape/kernels.hpp"

namespace scape::cuda {

[[nodiscard]] const UpdateKernels& cuda_update_kernels();
[[nodiscard]] const SparseKernels& cuda_sparse_kernels();
[[nodiscard]] const QuantKernels& cuda_quant_kernels();

}  // namespace scape::cuda
