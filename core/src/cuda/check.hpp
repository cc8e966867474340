// A failed call of the CUDA runtime as an Error that says which call, where, and what CUDA says.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>
#include <string_view>

#include "scape/error.hpp"

namespace scape::cuda {

/// Throws Error(internal) unless `code` is success. A failed launch shows in the next call that is checked.
inline void check(cudaError_t code, const char* call, std::source_location where = std::source_location::current()) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // or the next launch would be blamed for it
  const std::string_view path = where.file_name();
  throw Error(ErrorKind::internal, std::string(path.substr(path.rfind('/') + 1)) + ":" + std::to_string(where.line()) + ": " +
                                       call + ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")");
}

}  // namespace scape::cuda
