// MPI collectives on host memory. A collective is one operation of its stream: on a queued stream the worker thread makes
// the blocking MPI call while the caller computes on.
#include <algorithm>
#include <string>
#include <vector>

#include "comm/transports.hpp"
#include "scape/error.hpp"

namespace scape {

MpiSession::MpiSession(int& argc, char**& argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    throw Error(ErrorKind::usage, "this MPI library does not offer MPI_THREAD_MULTIPLE, which communication streams need");
  }
}

MpiSession::~MpiSession() {
  MPI_Finalize();
}

namespace detail {

namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  throw Error(ErrorKind::communication, std::string(call) + ": " + text);
}

MPI_Datatype mpi_type(DType type) {
  switch (type) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i8:
      return MPI_INT8_T;
    case DType::u8:
      return MPI_UINT8_T;
    case DType::u16:
      return MPI_UINT16_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::u32:
      return MPI_UINT32_T;
    case DType::i64:
      return MPI_INT64_T;
    case DType::u64:
      return MPI_UINT64_T;
  }
  throw Error(ErrorKind::internal, "mpi: unknown element type");
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return MPI_SUM;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
  }
  throw Error(ErrorKind::internal, "mpi: unknown reduction");
}

std::byte* at(void* data, std::int64_t element, DType type) {
  return static_cast<std::byte*>(data) + element * size_of(type);
}
const std::byte* at(const void* data, std::int64_t element, DType type) {
  return static_cast<const std::byte*>(data) + element * size_of(type);
}

// 32-bit counts and displacements as MPI 3.1 wants them.
struct Blocks {
  std::vector<int> counts, displacements;
  explicit Blocks(Counts blocks) {
    int begin = 0;
    for (const std::int64_t count : blocks) {
      counts.push_back(static_cast<int>(count));
      displacements.push_back(begin);
      begin += static_cast<int>(count);
    }
  }
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(MPI_Comm world, std::int64_t most_elements) : most_(most_elements) {
    check(MPI_Comm_dup(world, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;
  ~MpiTransport() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) MPI_Comm_free(&comm_);
  }

  [[nodiscard]] std::string name() const override { return "mpi"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  void all_reduce(void* data, std::int64_t count, DType type, ReduceOp op, const Stream& stream) override {
    stream.enqueue([=, this] {
      in_pieces(count, [&](std::int64_t begin, int n) {
        check(MPI_Allreduce(MPI_IN_PLACE, at(data, begin, type), n, mpi_type(type), mpi_op(op), comm_), "MPI_Allreduce");
      });
    });
  }

  void reduce_scatter_v(const void* input, void* output, Counts counts, DType type, ReduceOp op, const Stream& stream) override {
    stream.enqueue([=, this, counts = std::vector(counts.begin(), counts.end())] {
      if (total(counts) <= most_) {
        const Blocks blocks(counts);
        check(MPI_Reduce_scatter(input, output, blocks.counts.data(), mpi_type(type), mpi_op(op), comm_), "MPI_Reduce_scatter");
        return;
      }
      std::int64_t block = 0;
      for (int root = 0; root < size_; ++root) {
        const std::int64_t count = counts[static_cast<std::size_t>(root)];
        in_pieces(count, [&](std::int64_t begin, int n) {
          check(MPI_Reduce(at(input, block + begin, type), root == rank_ ? at(output, begin, type) : nullptr, n, mpi_type(type),
                           mpi_op(op), root, comm_),
                "MPI_Reduce");
        });
        block += count;
      }
    });
  }

  void all_gather_v(const void* mine, void* all, Counts counts, DType type, const Stream& stream) override {
    stream.enqueue([=, this, counts = std::vector(counts.begin(), counts.end())] {
      const auto me = static_cast<std::size_t>(rank_);
      const std::int64_t my_begin = total(Counts(counts).first(me));
      // In place on every rank or on none, says MPI; a rank cannot know what the others do, so always in place.
      if (mine != at(all, my_begin, type)) std::copy_n(at(mine, 0, type), counts[me] * size_of(type), at(all, my_begin, type));
      if (total(counts) <= most_) {
        const Blocks blocks(counts);
        check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, blocks.counts.data(), blocks.displacements.data(),
                             mpi_type(type), comm_),
              "MPI_Allgatherv");
        return;
      }
      std::int64_t block = 0;
      for (int root = 0; root < size_; ++root) {
        const std::int64_t count = counts[static_cast<std::size_t>(root)];
        broadcast_now(at(all, block, type), count, type, root);
        block += count;
      }
    });
  }

  void all_to_all_v(const void* send, Counts send_counts, void* receive, Counts receive_counts, DType type,
                    const Stream& stream) override {
    stream.enqueue([=, this, send_counts = std::vector(send_counts.begin(), send_counts.end()),
                    receive_counts = std::vector(receive_counts.begin(), receive_counts.end())] {
      // Pairwise exchange, as MPI_Alltoallv does it, but in pieces: each rank knows only its own counts, so the ranks could not
      // agree on when a message is too long for one MPI_Alltoallv.
      for (int distance = 0; distance < size_; ++distance) {
        const auto to = static_cast<std::size_t>((rank_ + distance) % size_);
        const auto from = static_cast<std::size_t>((rank_ - distance + size_) % size_);
        exchange(at(send, total(Counts(send_counts).first(to)), type), send_counts[to], static_cast<int>(to),
                 at(receive, total(Counts(receive_counts).first(from)), type), receive_counts[from], static_cast<int>(from), type);
      }
    });
  }

  void broadcast(void* data, std::int64_t count, DType type, int root, const Stream& stream) override {
    stream.enqueue([=, this] { broadcast_now(data, count, type, root); });
  }

  void barrier(const Stream& stream) override {
    stream.enqueue([this] { check(MPI_Barrier(comm_), "MPI_Barrier"); });
  }

  [[nodiscard]] std::unique_ptr<Transport> duplicate() const override { return std::make_unique<MpiTransport>(comm_, most_); }

 private:
  template <class Piece>
  void in_pieces(std::int64_t count, Piece piece) const {
    for (std::int64_t begin = 0; begin < count; begin += most_) piece(begin, static_cast<int>(std::min(most_, count - begin)));
  }
  void broadcast_now(void* data, std::int64_t count, DType type, int root) const {
    in_pieces(count, [&](std::int64_t begin, int n) {
      check(MPI_Bcast(at(data, begin, type), n, mpi_type(type), root, comm_), "MPI_Bcast");
    });
  }
  // Sends one block and receives another, piece by piece; either may be the longer one.
  void exchange(const std::byte* send, std::int64_t send_count, int to, std::byte* receive, std::int64_t receive_count, int from,
                DType type) const {
    for (std::int64_t begin = 0; begin < std::max(send_count, receive_count); begin += most_) {
      const int sent = static_cast<int>(std::clamp(send_count - begin, std::int64_t{0}, most_));
      const int received = static_cast<int>(std::clamp(receive_count - begin, std::int64_t{0}, most_));
      check(MPI_Sendrecv(send + begin * size_of(type), sent, mpi_type(type), sent > 0 ? to : MPI_PROC_NULL, 0,
                         receive + begin * size_of(type), received, mpi_type(type), received > 0 ? from : MPI_PROC_NULL, 0, comm_,
                         MPI_STATUS_IGNORE),
            "MPI_Sendrecv");
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::int64_t most_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(MPI_Comm world, std::int64_t most_elements) {
  return std::make_unique<MpiTransport>(world, most_elements);
}

}  // namespace detail

}  // namespace scape
