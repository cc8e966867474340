// NCCL collectives on CUDA memory: kernels on the stream, so an operation is ordered like any other and the host goes on.
//
// NCCL has collectives of equal counts only. Unequal ones are groups: all-gather-v a broadcast from each rank, reduce-scatter-v a
// reduction to each rank, all-to-all-v sends and receives. What is only moved travels as bytes. Each element is reduced in one
// place and then copied, so that all ranks get the same bits.
#include <nccl.h>

#include <algorithm>
#include <string>

#include "comm/transports.hpp"
#include "cuda/handle.hpp"
#include "scape/error.hpp"

namespace scape::detail {

namespace {

void check(ncclResult_t code, const char* call, ncclComm_t comm = nullptr) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  std::string message = std::string(call) + ": " + ncclGetErrorString(code);
  const std::string detail = ncclGetLastError(comm);
  if (!detail.empty()) message += " (" + detail + ")";
  throw Error(ErrorKind::communication, message);
}

void check_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Error(ErrorKind::communication, std::string("nccl: ") + call + " failed");
}

ncclDataType_t nccl_type(DType type) {
  switch (type) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::i8:
      return ncclInt8;
    case DType::u8:
      return ncclUint8;
    case DType::i32:
      return ncclInt32;
    case DType::u32:
      return ncclUint32;
    case DType::i64:
      return ncclInt64;
    case DType::u64:
      return ncclUint64;
    case DType::u16:
      break;
  }
  throw Error(ErrorKind::usage, "nccl: 16-bit integers cannot be reduced");
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return ncclSum;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
  }
  throw Error(ErrorKind::internal, "nccl: unknown reduction");
}

std::size_t elements(std::int64_t count) {
  return static_cast<std::size_t>(count);
}
std::size_t bytes(std::int64_t count, DType type) {
  return static_cast<std::size_t>(count * size_of(type));
}
std::byte* at(void* data, std::int64_t element, DType type) {
  return static_cast<std::byte*>(data) + element * size_of(type);
}
const std::byte* at(const void* data, std::int64_t element, DType type) {
  return static_cast<const std::byte*>(data) + element * size_of(type);
}

bool all_equal(Counts counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::int64_t count) { return count == counts.front(); });
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(MPI_Comm world, Device device) : device_(device) {
    const cuda::CurrentDevice current(device.index);
    check_mpi(MPI_Comm_dup(world, &world_), "MPI_Comm_dup");
    MPI_Comm_rank(world_, &rank_);
    MPI_Comm_size(world_, &size_);
    try {
      connect();
    } catch (...) {
      MPI_Comm_free(&world_);
      throw;
    }
  }
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;
  ~NcclTransport() override {
    ncclResult_t state = ncclSuccess;
    const bool healthy = ncclCommGetAsyncError(comm_, &state) == ncclSuccess && state == ncclSuccess;
    static_cast<void>(healthy ? ncclCommDestroy(comm_) : ncclCommAbort(comm_));  // destroying waits for what cannot end any more
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) MPI_Comm_free(&world_);
  }

  [[nodiscard]] std::string name() const override { return "nccl"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  void all_reduce(void* data, std::int64_t count, DType type, ReduceOp op, const Stream& stream) override {
    queue("ncclAllReduce", stream,
          [&](cudaStream_t on) { return ncclAllReduce(data, data, elements(count), nccl_type(type), nccl_op(op), comm_, on); });
  }

  void reduce_scatter_v(const void* input, void* output, Counts counts, DType type, ReduceOp op, const Stream& stream) override {
    if (all_equal(counts)) {
      queue("ncclReduceScatter", stream, [&](cudaStream_t on) {
        return ncclReduceScatter(input, output, elements(counts.front()), nccl_type(type), nccl_op(op), comm_, on);
      });
      return;
    }
    const ncclDataType_t element = nccl_type(type);
    queue_group("ncclReduce", stream, [&](cudaStream_t on, auto add) {
      for_each_block(counts, [&](int root, std::int64_t begin, std::int64_t count) {
        add(ncclReduce(at(input, begin, type), output, elements(count), element, nccl_op(op), root, comm_, on));
      });
    });
  }

  void all_gather_v(const void* mine, void* all, Counts counts, DType type, const Stream& stream) override {
    if (all_equal(counts)) {
      queue("ncclAllGather", stream,
            [&](cudaStream_t on) { return ncclAllGather(mine, all, bytes(counts.front(), type), ncclUint8, comm_, on); });
      return;
    }
    queue_group("ncclBroadcast", stream, [&](cudaStream_t on, auto add) {
      for_each_block(counts, [&](int root, std::int64_t begin, std::int64_t count) {
        std::byte* block = at(all, begin, type);
        add(ncclBroadcast(root == rank_ ? mine : block, block, bytes(count, type), ncclUint8, root, comm_, on));
      });
    });
  }

  void all_to_all_v(const void* send, Counts send_counts, void* receive, Counts receive_counts, DType type,
                    const Stream& stream) override {
    queue_group("ncclSend or ncclRecv", stream, [&](cudaStream_t on, auto add) {
      for_each_block(send_counts, [&](int to, std::int64_t begin, std::int64_t count) {
        add(ncclSend(at(send, begin, type), bytes(count, type), ncclUint8, to, comm_, on));
      });
      for_each_block(receive_counts, [&](int from, std::int64_t begin, std::int64_t count) {
        add(ncclRecv(at(receive, begin, type), bytes(count, type), ncclUint8, from, comm_, on));
      });
    });
  }

  void broadcast(void* data, std::int64_t count, DType type, int root, const Stream& stream) override {
    queue("ncclBroadcast", stream,
          [&](cudaStream_t on) { return ncclBroadcast(data, data, bytes(count, type), ncclUint8, root, comm_, on); });
  }

  void barrier(const Stream& stream) override { all_reduce(barrier_.data(), 1, DType::i32, ReduceOp::sum, stream); }

  [[nodiscard]] std::unique_ptr<Transport> duplicate() const override { return std::make_unique<NcclTransport>(world_, device_); }

 private:
  // Rank 0 makes the id; if it cannot, the others must not wait for a communicator that will never be.
  void connect() {
    ncclUniqueId id{};
    int made = rank_ != 0 ? 0 : ncclGetUniqueId(&id);
    check_mpi(MPI_Bcast(&made, 1, MPI_INT, 0, world_), "MPI_Bcast");
    check(static_cast<ncclResult_t>(made), "ncclGetUniqueId on rank 0");
    check_mpi(MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, world_), "MPI_Bcast");
    check(ncclCommInitRank(&comm_, size_, id, rank_), "ncclCommInitRank");
  }

  // `call` puts a collective on the stream. NCCL reports what went wrong in earlier ones at the next call.
  template <class Call>
  void queue(const char* name, const Stream& stream, Call call) const {
    require(stream.device() == device_, ErrorKind::internal, "nccl: the stream is on another device than the communicator");
    ncclResult_t earlier = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &earlier), "ncclCommGetAsyncError", comm_);
    check(earlier, "an earlier NCCL operation", comm_);
    const cuda::CurrentDevice current(device_.index);
    check(call(static_cast<cudaStream_t>(stream.native())), name, comm_);
  }

  // calls(on, add) makes calls that become one operation, giving each result to add().
  template <class Calls>
  void queue_group(const char* name, const Stream& stream, Calls calls) const {
    queue(name, stream, [&](cudaStream_t on) {
      ncclResult_t first_failure = ncclSuccess;
      const auto add = [&](ncclResult_t result) {
        if (first_failure == ncclSuccess) first_failure = result;
      };
      add(ncclGroupStart());
      calls(on, add);
      add(ncclGroupEnd());
      return first_failure;
    });
  }

  // visit(rank, first element, elements) for the blocks that are not empty.
  template <class Visit>
  static void for_each_block(Counts counts, Visit visit) {
    std::int64_t begin = 0;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      if (counts[rank] > 0) visit(static_cast<int>(rank), begin, counts[rank]);
      begin += counts[rank];
    }
  }

  Device device_;
  MPI_Comm world_ = MPI_COMM_NULL;  // a duplicate: the id of duplicate() travels over it
  ncclComm_t comm_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  Buffer<std::int32_t> barrier_{1, device_};
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(MPI_Comm world, Device device) {
  require(device.kind == DeviceKind::cuda, ErrorKind::usage, "communicator nccl: needs a CUDA device");
  return std::make_unique<NcclTransport>(world, device);
}

}  // namespace scape::detail
