// CUDA streams and events.
//
// Kernels cannot throw, host operations can. A stream that has had a host operation carries a Failure; an event recorded on it
// remembers the failure and the position, and a stream that waits for such an event checks it in a host operation of its own.
// So exceptions follow the order of events, and streams without host operations pay nothing.
#include "cuda/stream.hpp"

#include <string>
#include <utility>

#include "cuda/block.cuh"

namespace scape::cuda {

namespace {

struct HostOperation {
  std::function<void()> operation;
  std::shared_ptr<Failure> failure;
  std::uint64_t position;
};

void CUDART_CB run_host_operation(void* data) {
  const std::unique_ptr<HostOperation> host(static_cast<HostOperation*>(data));
  host->failure->guard(host->operation, host->position);
}

class CudaEvent final : public detail::EventBackend {
 public:
  explicit CudaEvent(int index) {
    const CurrentDevice current(index);
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    event_.reset(event);
  }

  void record(detail::StreamBackend& stream) override {
    const CudaStream& on = cuda_stream(stream, "Event::record");
    check(cudaEventRecord(event_.get(), on.handle()), "cudaEventRecord");
    failure_ = on.failure();
    position_ = on.position();
  }
  void synchronize() const override {
    check(cudaEventSynchronize(event_.get()), "cudaEventSynchronize");
    if (failure_) failure_->rethrow_before(position_);
  }
  [[nodiscard]] bool ready() const override {
    const cudaError_t state = cudaEventQuery(event_.get());
    if (state == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // it is no error
      return false;
    }
    check(state, "cudaEventQuery");
    return true;
  }
  [[nodiscard]] double seconds_since(const detail::EventBackend& begin) const override {
    const auto* other = dynamic_cast<const CudaEvent*>(&begin);
    require(other != nullptr, ErrorKind::internal, "seconds_between: events of different devices");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, other->event_.get(), event_.get()), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1e3;
  }
  void make_wait(CudaStream& stream) const {
    check(cudaStreamWaitEvent(stream.handle(), event_.get(), 0), "cudaStreamWaitEvent");
    if (failure_ && failure_ != stream.failure()) {
      stream.enqueue([failure = failure_, position = position_] { failure->rethrow_before(position); });
    }
  }

 private:
  EventHandle event_;
  std::shared_ptr<Failure> failure_;
  std::uint64_t position_ = 0;
};

}  // namespace

void Failure::guard(const std::function<void()>& operation, std::uint64_t position) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
  }
  try {
    operation();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    position_ = position;
  }
}

void Failure::rethrow_before(std::uint64_t position) const {
  const std::lock_guard lock(mutex_);
  if (error_ && position_ < position) std::rethrow_exception(error_);
}

CudaStream::CudaStream(int index) : index_(index) {
  const CurrentDevice current(index);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_.reset(stream);
  void* scratch = nullptr;
  check(cudaMalloc(&scratch, sizeof(Scratch)), "cudaMalloc");
  scratch_.reset(static_cast<Scratch*>(scratch));
  check(cudaMemsetAsync(scratch, 0, sizeof(Scratch), stream), "cudaMemsetAsync");
}

CudaStream::~CudaStream() {
  static_cast<void>(cudaStreamSynchronize(stream_.get()));
}

void CudaStream::enqueue(std::function<void()> operation) {
  if (!failure_) failure_ = std::make_shared<Failure>();
  std::unique_ptr<HostOperation> host(new HostOperation{std::move(operation), failure_, position_});
  const CurrentDevice current(index_);
  check(cudaLaunchHostFunc(stream_.get(), run_host_operation, host.get()), "cudaLaunchHostFunc");
  static_cast<void>(host.release());  // run_host_operation's now
  ++position_;
}

void CudaStream::wait(const detail::EventBackend& event) {
  const auto* cuda_event = dynamic_cast<const CudaEvent*>(&event);
  require(cuda_event != nullptr, ErrorKind::internal, "Stream::wait: an event of another device on a CUDA stream");
  cuda_event->make_wait(*this);
}

void CudaStream::synchronize() {
  check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  if (failure_) failure_->rethrow_before(position_);
}

CudaStream& cuda_stream(detail::StreamBackend& stream, const char* operation) {
  auto* found = dynamic_cast<CudaStream*>(&stream);
  if (found == nullptr) throw Error(ErrorKind::internal, std::string(operation) + ": CUDA work on a stream of another device");
  return *found;
}

std::shared_ptr<detail::EventBackend> make_cuda_event(int index) {
  return std::make_shared<CudaEvent>(index);
}

}  // namespace scape::cuda
