// Stands in for the CUDA backend in a build without CUDA: there are no CUDA devices, and asking for one says why.
#include "backend.hpp"
#include "scape/error.hpp"

namespace scape::detail {

namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::usage, "this build has no CUDA backend (configure with -DSCAPE_CUDA=ON)");
}

class NoCuda final : public Backend {
 public:
  [[nodiscard]] int device_count() const override { return 0; }
  [[nodiscard]] std::string device_name(int) const override { refuse(); }
  void make_current(int) const override { refuse(); }
  [[nodiscard]] void* allocate(std::size_t, int) const override { refuse(); }
  void deallocate(void*, int) const noexcept override {}
  [[nodiscard]] void* allocate_pinned(std::size_t, int) const override { refuse(); }
  void deallocate_pinned(void*, int) const noexcept override {}
  void copy(void*, const void*, std::size_t, StreamBackend&) const override { refuse(); }
  void zero(void*, std::size_t, StreamBackend&) const override { refuse(); }
  [[nodiscard]] std::shared_ptr<StreamBackend> make_stream(int) const override { refuse(); }
  [[nodiscard]] std::shared_ptr<EventBackend> make_event(int) const override { refuse(); }
  [[nodiscard]] const UpdateKernels& update_kernels() const override { refuse(); }
  [[nodiscard]] const SparseKernels& sparse_kernels() const override { refuse(); }
  [[nodiscard]] const QuantKernels& quant_kernels() const override { refuse(); }
};

}  // namespace

const Backend& cuda_backend() {
  static const NoCuda backend;
  return backend;
}

}  // namespace scape::detail
