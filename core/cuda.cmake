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
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ENV NCCL_HOME ENV NCCL_ROOT ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include
            DOC "Folder of nccl.h")
  find_library(NCCL_LIBRARY nccl HINTS ENV NCCL_HOME ENV NCCL_ROOT ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64
               DOC "The NCCL library")
  if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
    message(FATAL_ERROR "NCCL was not found (nccl.h: ${NCCL_INCLUDE_DIR}, libnccl: ${NCCL_LIBRARY}). "
                        "Set NCCL_HOME to its folder, or configure with -DSCAPE_NCCL=OFF.")
  endif()
  mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
  set_source_files_properties(src/comm/nccl.cpp PROPERTIES INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
  target_link_libraries(scape_core PRIVATE ${NCCL_LIBRARY})
endif()
