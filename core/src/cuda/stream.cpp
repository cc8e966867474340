// CUDA streams and events.
//
// Kernels cannot throw, host operations can. A stream that has had a host operation carries a Failure; an event recorded on it
// remembers the failure and the position, and a stream that waits for such an event checks it in a host operation of its own.
// So exceptions follow the order of events, and streams without host operations pay nothing. A wait for an event of the host is a
// host operation in this sense: what failed there fails here.
#include "cuda/stream.hpp"

#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
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

EventHandle make_event(int index) {
  const CurrentDevice current(index);
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return EventHandle(event);
}

// The driver's function, which the runtime does not wrap; looked up, so that programs start without a driver.
auto stream_wait_value() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto function =
      reinterpret_cast<decltype(&cuStreamWaitValue32)>(driver == nullptr ? nullptr : dlsym(driver, "cuStreamWaitValue32_v2"));
  require(function != nullptr, ErrorKind::usage,
          "a CUDA stream cannot wait for the host: the driver has no cuStreamWaitValue32 (CUDA 11.7 or later has)");
  return function;
}

class CudaEvent final : public detail::EventBackend {
 public:
  explicit CudaEvent(int index) : index_(index), event_(make_event(index)) {}

  void record(detail::StreamBackend& stream) override {
    const CudaStream& on = cuda_stream(stream, "Event::record");
    if (event_.use_count() > 1) event_ = make_event(index_);  // a wait of the host refers to the record before
    check(cudaEventRecord(event_.get(), on.handle()), "cudaEventRecord");
    failure_ = on.failure();
    position_ = on.position();
  }
  [[nodiscard]] std::function<void()> host_wait() const override {
    return [event = event_, failure = failure_, position = position_] {
      check(cudaEventSynchronize(event.get()), "cudaEventSynchronize");
      if (failure) failure->rethrow_before(position);
    };
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
  int index_;
  std::shared_ptr<EventHandle::element_type> event_;
  std::shared_ptr<Failure> failure_;
  std::uint64_t position_ = 0;
};

}  // namespace

void Failure::guard(const std::function<void()>& operation, std::uint64_t position) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (error_ && position_ < position) return;
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

void HostWaits::queue(cudaStream_t stream, std::function<void()> wait) {
  static const auto stream_wait = stream_wait_value();
  ++queued_;
  thread_->enqueue([count = count_.data(), number = queued_, wait = std::move(wait)] {
    wait();
    std::atomic_ref(*count).store(number, std::memory_order_release);
  });
  const auto address = reinterpret_cast<CUdeviceptr>(count_.data());  // the same on the host and on the device
  const CUresult code = stream_wait(stream, address, queued_, CU_STREAM_WAIT_VALUE_GEQ);
  if (code != CUDA_SUCCESS) {
    throw Error(ErrorKind::usage,
                "a CUDA stream cannot wait for the host: cuStreamWaitValue32 gives error " + std::to_string(code));
  }
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
  if (const auto* cuda_event = dynamic_cast<const CudaEvent*>(&event)) return cuda_event->make_wait(*this);
  if (!failure_) failure_ = std::make_shared<Failure>();
  const CurrentDevice current(index_);
  if (!host_waits_) host_waits_.emplace(index_);
  host_waits_->queue(stream_.get(),
                     [failure = failure_, wait = event.host_wait(), position = position_] { failure->guard(wait, position); });
  ++position_;
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
