// CPU backend: aligned host memory, plain copies, and the processor's name.
#include "backend.hpp"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

#include "cpu/kernels.hpp"
#include "cpu/stream.hpp"

namespace scape::detail {

namespace {

constexpr std::size_t alignment = 64;  // a cache line, and the widest vector register

class CpuBackend final : public Backend {
 public:
  [[nodiscard]] int device_count() const override { return 1; }

  [[nodiscard]] std::string device_name(int) const override {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
      const auto colon = line.find(": ");
      if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
    }
    return "cpu";
  }
  void make_current(int) const override {}

  [[nodiscard]] void* allocate(std::size_t bytes, int) const override {
    void* data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (data == nullptr) throw std::bad_alloc();
    std::memset(data, 0, bytes);
    return data;
  }
  void deallocate(void* data, int) const noexcept override { std::free(data); }
  [[nodiscard]] void* allocate_pinned(std::size_t bytes, int index) const override { return allocate(bytes, index); }
  void deallocate_pinned(void* data, int) const noexcept override { std::free(data); }

  void copy(void* to, const void* from, std::size_t bytes, StreamBackend& stream) const override {
    stream.enqueue([=] { std::memmove(to, from, bytes); });
  }
  void zero(void* data, std::size_t bytes, StreamBackend& stream) const override {
    stream.enqueue([=] { std::memset(data, 0, bytes); });
  }

  [[nodiscard]] std::shared_ptr<StreamBackend> make_stream(int) const override { return make_queued_stream(); }
  [[nodiscard]] std::shared_ptr<EventBackend> make_event(int) const override { return make_cpu_event(); }
  [[nodiscard]] const UpdateKernels& update_kernels() const override { return cpu_update_kernels(); }
  [[nodiscard]] const SparseKernels& sparse_kernels() const override { return cpu_sparse_kernels(); }
  [[nodiscard]] const QuantKernels& quant_kernels() const override { return cpu_quant_kernels(); }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace scape::detail
