// The transport of a run with one rank: results are copies of the input, nothing is sent.
#include "comm/transports.hpp"
#include "scape/error.hpp"

namespace scape::detail {

namespace {

class SelfTransport final : public Transport {
 public:
  [[nodiscard]] std::string name() const override { return "self"; }
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  void all_reduce(void*, std::int64_t, DType, ReduceOp, const Stream&) override {}
  void reduce_scatter_v(const void* input, void* output, std::span<const std::int64_t> counts, DType type, ReduceOp,
                        const Stream& stream) override {
    copy(output, input, counts[0], type, stream);
  }
  void all_gather_v(const void* mine, void* all, std::span<const std::int64_t> counts, DType type, const Stream& stream) override {
    copy(all, mine, counts[0], type, stream);
  }
  void all_to_all_v(const void* send, std::span<const std::int64_t> counts, void* receive, std::span<const std::int64_t>,
                    DType type, const Stream& stream) override {
    copy(receive, send, counts[0], type, stream);
  }
  void broadcast(void*, std::int64_t, DType, int, const Stream&) override {}
  void barrier(const Stream&) override {}
  [[nodiscard]] std::unique_ptr<Transport> duplicate() const override { return std::make_unique<SelfTransport>(); }

 private:
  // Memory of the stream's device on both sides.
  static void copy(void* to, const void* from, std::int64_t count, DType type, const Stream& stream) {
    if (to != from) copy_bytes(to, stream.device(), from, stream.device(), static_cast<std::size_t>(count * size_of(type)), stream);
  }
};

}  // namespace

std::unique_ptr<Transport> make_self_transport() {
  return std::make_unique<SelfTransport>();
}

}  // namespace scape::detail
