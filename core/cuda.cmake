# CUDA backend of the core, and NCCL. Included by CMakeLists.txt when SCAPE_CUDA is on.
target_sources(scape_core PRIVATE
  src/cuda/backend.cpp
  src/cuda/stream.cpp
  src/cuda/quant_kernels.cu
  src/cuda/sparse_kernels.cu
  src/cuda/update_kernels.cu)
scape_cuda_target(scape_core)
# As on the CPU, no contraction to fused multiply-add: the kernels are bound by memory, and give the bits of the CPU's.
target_compile_options(scape_core PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>)
target_link_libraries(scape_core PRIVATE CUDA::cudart_static)

if(SCAPE_NCCL)
  find_package(NCCL REQUIRED)
  target_link_libraries(scape_core PRIVATE NCCL::nccl)
endif()
