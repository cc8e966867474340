// CUDA streams and events behind the device-independent front.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "backend.hpp"
#include "cuda/handle.hpp"
#include "scape/buffer.hpp"

namespace scape::cuda {

struct Scratch;

/// What a host operation of a stream threw, or a wait for the host, and its position in the stream.
class Failure {
 public:
  /// Runs `operation` unless one before `position` has failed.
  void guard(const std::function<void()>& operation, std::uint64_t position) noexcept;
  /// Rethrows what an operation before `position` threw.
  void rethrow_before(std::uint64_t position) const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::uint64_t position_ = 0;
};

/// Waits of CUDA streams for what happens on the host. The stream waits for a count in host memory, which a thread raises wait by
/// wait. (A host operation of the stream could block just as well, but the driver has one thread for those of all streams.)
class HostWaits {
 public:
  explicit HostWaits(int index) : count_(1, {DeviceKind::cuda, index}), thread_(detail::cpu_backend().make_stream(0)) {}
  /// What is queued on `stream` from now on starts when `wait`, which must not throw, has returned. One stream per object.
  void queue(cudaStream_t stream, std::function<void()> wait);

 private:
  PinnedBuffer<std::uint32_t> count_;  // waits that are over
  std::uint32_t queued_ = 0;
  std::shared_ptr<detail::StreamBackend> thread_;  // last: its operations write the count
};

class CudaStream final : public detail::StreamBackend {
 public:
  explicit CudaStream(int index);
  ~CudaStream() override;

  [[nodiscard]] Device device() const override { return {DeviceKind::cuda, index_}; }
  /// A host operation: it must not call CUDA, nor hold the last handle of CUDA memory, streams or events.
  void enqueue(std::function<void()> operation) override;
  void wait(const detail::EventBackend& event) override;
  void synchronize() override;
  [[nodiscard]] void* native() override { return stream_.get(); }

  [[nodiscard]] cudaStream_t handle() const { return stream_.get(); }
  /// Working memory of this stream's kernels, on the device.
  [[nodiscard]] Scratch* scratch() const { return scratch_.get(); }
  /// Null as long as nothing on this stream can fail on the host.
  [[nodiscard]] const std::shared_ptr<Failure>& failure() const { return failure_; }
  [[nodiscard]] std::uint64_t position() const { return position_; }

 private:
  int index_;
  StreamHandle stream_;
  DeviceMemory<Scratch> scratch_;
  std::shared_ptr<Failure> failure_;
  std::uint64_t position_ = 0;  // host operations and waits for the host so far
  std::optional<HostWaits> host_waits_;
};

/// Throws Error(internal), naming the operation, for a stream of another device kind.
[[nodiscard]] CudaStream& cuda_stream(detail::StreamBackend& stream, const char* operation);

[[nodiscard]] std::shared_ptr<detail::EventBackend> make_cuda_event(int index);

}  // namespace scape::cuda
