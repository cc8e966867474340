// CUDA streams and events behind the device-independent front.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "backend.hpp"
#include "cuda/handle.hpp"

namespace scape::cuda {

struct Scratch;

/// What a host operation of a stream threw, and its position in the stream.
class Failure {
 public:
  /// Runs `operation` unless an earlier one has failed.
  void guard(const std::function<void()>& operation, std::uint64_t position) noexcept;
  /// Rethrows what an operation before `position` threw.
  void rethrow_before(std::uint64_t position) const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::uint64_t position_ = 0;
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
  std::uint64_t position_ = 0;  // host operations so far
};

/// Throws Error(internal), naming the operation, for a stream of another device kind.
[[nodiscard]] CudaStream& cuda_stream(detail::StreamBackend& stream, const char* operation);

[[nodiscard]] std::shared_ptr<detail::EventBackend> make_cuda_event(int index);

}  // namespace scape::cuda
