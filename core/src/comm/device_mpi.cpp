// MPI for memory of a device: each kind of collective either direct, MPI gets the device's pointers, or staged, MPI gets a copy in
// page-locked host memory.
//
// A collective is one operation of a worker thread, which may block: on the device, on copies, in MPI. It starts when the caller's
// stream has got there, and what the caller queues afterwards starts when it is done. So copies in host memory are used by one
// collective at a time, and whoever calls on a queued stream goes on at once.
#include <algorithm>
#include <vector>

#include "backend.hpp"
#include "comm/transports.hpp"
#include "scape/error.hpp"

namespace scape::detail {

namespace {

class DeviceMpiTransport final : public Transport {
 public:
  DeviceMpiTransport(std::unique_ptr<Transport> mpi, Device device, MpiPaths paths)
      : mpi_(std::move(mpi)),
        device_(device),
        paths_(std::move(paths)),
        copies_(device.kind == DeviceKind::cpu ? Stream() : Stream(device)) {
    worker_.enqueue([device] { backend(device.kind).make_current(device.index); });
  }

  [[nodiscard]] std::string name() const override {
    if (paths_.direct.all()) return "cuda_aware";
    if (paths_.direct.none()) return "staged";
    return "mpi(direct: " + to_string(paths_.direct) + "; staged: " + to_string(~paths_.direct) + ")";
  }
  [[nodiscard]] std::string reason() const override { return paths_.reason; }
  [[nodiscard]] int rank() const override { return mpi_->rank(); }
  [[nodiscard]] int size() const override { return mpi_->size(); }

  void all_reduce(void* data, std::int64_t count, DType type, ReduceOp op, const Stream& stream) override {
    queue(stream, [=, this] {
      const std::int64_t bytes = count * size_of(type);
      std::byte* const place = place_for(Collective::all_reduce, data, bytes, received_);
      copy(place, data, bytes);
      mpi_->all_reduce(place, count, type, op, at_once_);
      copy(data, place, bytes);
    });
  }

  void reduce_scatter_v(const void* input, void* output, Counts counts, DType type, ReduceOp op, const Stream& stream) override {
    queue(stream, [=, this, counts = std::vector(counts.begin(), counts.end())] {
      const std::int64_t in_bytes = total(counts) * size_of(type);
      const std::int64_t out_bytes = counts[static_cast<std::size_t>(rank())] * size_of(type);
      std::byte* const in = place_for(Collective::reduce_scatter, const_cast<void*>(input), in_bytes, sent_);
      std::byte* const out = place_for(Collective::reduce_scatter, output, out_bytes, received_);
      copy(in, input, in_bytes);
      mpi_->reduce_scatter_v(in, out, counts, type, op, at_once_);
      copy(output, out, out_bytes);
    });
  }

  void all_gather_v(const void* mine, void* all, Counts counts, DType type, const Stream& stream) override {
    queue(stream, [=, this, counts = std::vector(counts.begin(), counts.end())] {
      const auto me = static_cast<std::size_t>(rank());
      const std::int64_t bytes = total(counts) * size_of(type);
      std::byte* const place = place_for(Collective::all_gather, all, bytes, received_);
      std::byte* const my_place = place + total(Counts(counts).first(me)) * size_of(type);  // where `mpi` would copy on the host
      copy(my_place, mine, counts[me] * size_of(type));
      mpi_->all_gather_v(my_place, place, counts, type, at_once_);
      copy(all, place, bytes);
    });
  }

  void all_to_all_v(const void* send, Counts send_counts, void* receive, Counts receive_counts, DType type,
                    const Stream& stream) override {
    queue(stream, [=, this, send_counts = std::vector(send_counts.begin(), send_counts.end()),
                   receive_counts = std::vector(receive_counts.begin(), receive_counts.end())] {
      const std::int64_t in_bytes = total(send_counts) * size_of(type);
      const std::int64_t out_bytes = total(receive_counts) * size_of(type);
      std::byte* const in = place_for(Collective::all_to_all, const_cast<void*>(send), in_bytes, sent_);
      std::byte* const out = place_for(Collective::all_to_all, receive, out_bytes, received_);
      copy(in, send, in_bytes);
      mpi_->all_to_all_v(in, send_counts, out, receive_counts, type, at_once_);
      copy(receive, out, out_bytes);
    });
  }

  void broadcast(void* data, std::int64_t count, DType type, int root, const Stream& stream) override {
    queue(stream, [=, this] {
      const std::int64_t bytes = count * size_of(type);
      std::byte* const place = place_for(Collective::broadcast, data, bytes, received_);
      if (rank() == root) copy(place, data, bytes);
      mpi_->broadcast(place, count, type, root, at_once_);
      if (rank() != root) copy(data, place, bytes);
    });
  }

  void barrier(const Stream& stream) override {
    queue(stream, [this] { mpi_->barrier(at_once_); });
  }

  [[nodiscard]] std::unique_ptr<Transport> duplicate() const override {
    return std::make_unique<DeviceMpiTransport>(mpi_->duplicate(), device_, paths_);
  }

 private:
  using HostMemory = PinnedBuffer<std::byte>;

  void queue(const Stream& stream, std::function<void()> operation) {
    require(stream.device() == device_, ErrorKind::internal, "mpi: the stream is on another device than the communicator");
    Event reached(device_), done;
    reached.record(stream);
    worker_.wait(reached);
    worker_.enqueue(std::move(operation));
    done.record(worker_);
    stream.wait(done);
  }

  // Where MPI finds or puts `bytes` of `data`: there, or in as much of the host's memory.
  std::byte* place_for(Collective kind, void* data, std::int64_t bytes, HostMemory& memory) const {
    if (paths_.direct[static_cast<std::size_t>(kind)]) return static_cast<std::byte*>(data);
    if (memory.size() < bytes) memory = HostMemory(bytes + bytes / 4, device_);  // somewhat more: payloads vary
    return memory.data();
  }

  // Between the host and the device or on it, done on return.
  void copy(void* to, const void* from, std::int64_t bytes) const {
    if (to == from || bytes == 0) return;
    backend(device_.kind).copy(to, from, static_cast<std::size_t>(bytes), stream_backend(copies_));
    copies_.synchronize();
  }

  std::unique_ptr<Transport> mpi_;
  Device device_;
  MpiPaths paths_;
  HostMemory sent_, received_;
  Stream copies_;
  Stream at_once_;             // of the worker
  Stream worker_{cpu_device};  // last: it uses the rest
};

}  // namespace

std::string to_string(const CollectiveSet& collectives) {
  std::string names;
  for (const Collective collective : all_collectives) {
    if (!collectives[static_cast<std::size_t>(collective)]) continue;
    names += (names.empty() ? "" : ", ") + std::string(scape::to_string(collective));
  }
  return names;
}

std::unique_ptr<Transport> make_device_mpi_transport(std::unique_ptr<Transport> mpi, Device device, MpiPaths paths) {
  return std::make_unique<DeviceMpiTransport>(std::move(mpi), device, std::move(paths));
}

}  // namespace scape::detail
