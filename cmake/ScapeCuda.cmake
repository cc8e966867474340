# CUDA for the whole project. CMake 3.25 does not know C++20 for nvcc 13, so CUDA_STANDARD stays unset and the flag is passed.
# The CUDA runtime is linked statically: programs start on machines without CUDA or a driver, and report no devices there.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)  # A100; H100, H200, GH200
endif()
if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# Compiler settings of the CUDA sources of a target, beside those of scape_target().
function(scape_cuda_target name)
  set(cuda $<COMPILE_LANGUAGE:CUDA>)
  target_compile_options(${name} PRIVATE "$<${cuda}:-std=c++20;-Xcompiler=-Wall,-Wextra;-Wno-deprecated-gpu-targets>")
  if(SCAPE_WERROR)
    target_compile_options(${name} PRIVATE "$<${cuda}:--Werror;all-warnings>")
  endif()
endfunction()
