// Collectives among ranks, bound to streams, and the one place where their bytes and seconds are counted.
//
// A Communicator is a typed, checked front over a Transport (MPI, NCCL, a single process …). Every operation is ordered on
// the stream it is given; all ranks must call the same operations in the same order. One communicator must be used from one
// stream at a time: take a duplicate() for a second stream. It must outlive what it has queued.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "scape/buffer.hpp"
#include "scape/dtype.hpp"
#include "scape/stream.hpp"

namespace scape {

enum class ReduceOp { sum, min, max };

enum class Collective { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast };
inline constexpr std::array all_collectives{Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                            Collective::all_to_all, Collective::broadcast};
[[nodiscard]] const char* to_string(Collective collective);

/// What one kind of collective has cost this rank so far.
struct CollectiveTraffic {
  std::int64_t calls = 0;
  /// Message sizes S in bytes (measured). As in nccl-tests, S of reduce-scatter and all-gather is the total over the ranks;
  /// S of all-to-all is what this rank sends, its own part included.
  std::int64_t payload_bytes = 0;
  /// Bytes sent per rank by a bandwidth-optimal algorithm (modelled, mean over the ranks): see wire_bytes().
  double wire_bytes = 0;
  /// Time inside the collective on its stream, waiting for slower ranks included (measured).
  double seconds = 0;
};

/// Bytes that each of `ranks` ranks sends, on average, when a bandwidth-optimal algorithm carries a message of S bytes:
/// all-reduce 2 (N−1)/N · S; every other collective (N−1)/N · S. (Thakur, Rabenseifner, Gropp 2005.) These are nccl-tests' busbw
/// factors but for broadcast, where nccl-tests counts what the root sends, S, and this is the mean over the ranks.
[[nodiscard]] double wire_bytes(Collective collective, double payload_bytes, int ranks);

struct Traffic {
  std::array<CollectiveTraffic, all_collectives.size()> of{};
  [[nodiscard]] CollectiveTraffic& operator[](Collective c) { return of[static_cast<std::size_t>(c)]; }
  [[nodiscard]] const CollectiveTraffic& operator[](Collective c) const { return of[static_cast<std::size_t>(c)]; }
  [[nodiscard]] CollectiveTraffic total() const;
  /// What has come since `earlier`.
  [[nodiscard]] Traffic since(const Traffic& earlier) const;
};

/// Byte-level collectives of one library. Counts are in elements; all pointers are memory of the communicator's device.
/// Implementations order the operation on `stream` and throw Error(communication) when it fails.
class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string name() const = 0;  // "mpi", "self", "nccl", …; which paths it takes where there are several
  [[nodiscard]] virtual std::string reason() const { return {}; }  // why these paths, one line; empty: there was no choice
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  virtual void all_reduce(void* data, std::int64_t count, DType type, ReduceOp op, const Stream& stream) = 0;
  virtual void reduce_scatter_v(const void* input, void* output, std::span<const std::int64_t> counts, DType type, ReduceOp op,
                                const Stream& stream) = 0;
  virtual void all_gather_v(const void* mine, void* all, std::span<const std::int64_t> counts, DType type,
                            const Stream& stream) = 0;
  virtual void all_to_all_v(const void* send, std::span<const std::int64_t> send_counts, void* receive,
                            std::span<const std::int64_t> receive_counts, DType type, const Stream& stream) = 0;
  virtual void broadcast(void* data, std::int64_t count, DType type, int root, const Stream& stream) = 0;
  virtual void barrier(const Stream& stream) = 0;
  [[nodiscard]] virtual std::unique_ptr<Transport> duplicate() const = 0;
};

class Communicator {
 public:
  explicit Communicator(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

  [[nodiscard]] int rank() const { return transport_->rank(); }
  [[nodiscard]] int size() const { return transport_->size(); }
  [[nodiscard]] std::string name() const { return transport_->name(); }
  /// Why the transport takes the paths that name() tells, one line; empty where there was no choice.
  [[nodiscard]] std::string reason() const { return transport_->reason(); }

  /// data [n] ← element-wise reduction over the ranks, the same bits on every rank.
  template <class T>
  void all_reduce(Span<T> data, ReduceOp op, const Stream& stream) {
    timed(Collective::all_reduce, data.size_bytes(), stream,
          [&] { transport_->all_reduce(data.data(), data.size(), DTypeOf<T>::value, op, stream); });
  }

  /// input [sum of counts] on every rank; output [counts[rank()]] ← this rank's block of the reduction.
  template <class T>
  void reduce_scatter_v(std::type_identity_t<Span<const T>> input, Span<T> output, std::span<const std::int64_t> counts,
                        ReduceOp op, const Stream& stream) {
    check_counts("reduce_scatter_v", counts, input.size());
    check_part("reduce_scatter_v", counts, output.size());
    timed(Collective::reduce_scatter, input.size_bytes(), stream,
          [&] { transport_->reduce_scatter_v(input.data(), output.data(), counts, DTypeOf<T>::value, op, stream); });
  }

  /// mine [counts[rank()]]; all [sum of counts] ← the ranks' parts in rank order. `mine` may be its own place inside `all`.
  template <class T>
  void all_gather_v(std::type_identity_t<Span<const T>> mine, Span<T> all, std::span<const std::int64_t> counts,
                    const Stream& stream) {
    check_counts("all_gather_v", counts, all.size());
    check_part("all_gather_v", counts, mine.size());
    timed(Collective::all_gather, all.size_bytes(), stream,
          [&] { transport_->all_gather_v(mine.data(), all.data(), counts, DTypeOf<T>::value, stream); });
  }

  /// all_gather_v with equal counts: all [size() · mine.size()].
  template <class T>
  void all_gather(std::type_identity_t<Span<const T>> mine, Span<T> all, const Stream& stream) {
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), mine.size());
    all_gather_v<T>(mine, all, counts, stream);
  }

  /// send [sum of send_counts], a block for each rank; receive [sum of receive_counts] ← a block from each rank, in rank order.
  template <class T>
  void all_to_all_v(std::type_identity_t<Span<const T>> send, std::span<const std::int64_t> send_counts, Span<T> receive,
                    std::span<const std::int64_t> receive_counts, const Stream& stream) {
    check_counts("all_to_all_v (sent)", send_counts, send.size());
    check_counts("all_to_all_v (received)", receive_counts, receive.size());
    timed(Collective::all_to_all, send.size_bytes(), stream,
          [&] { transport_->all_to_all_v(send.data(), send_counts, receive.data(), receive_counts, DTypeOf<T>::value, stream); });
  }

  /// data [n] ← the data of rank `root`.
  template <class T>
  void broadcast(Span<T> data, int root, const Stream& stream) {
    timed(Collective::broadcast, data.size_bytes(), stream,
          [&] { transport_->broadcast(data.data(), data.size(), DTypeOf<T>::value, root, stream); });
  }

  void barrier(const Stream& stream) { transport_->barrier(stream); }

  /// A communicator of the same ranks for use on another stream, with counters of its own. Collective.
  [[nodiscard]] std::unique_ptr<Communicator> duplicate() const { return std::make_unique<Communicator>(transport_->duplicate()); }

  /// Counted since construction. Bytes and calls count when an operation is queued, seconds when it has finished.
  [[nodiscard]] Traffic traffic() const;

  /// How far this rank has got, for a watchdog: collectives are numbered 1, 2, … in the order in which they are queued, which is
  /// the same on all ranks. May be called from any thread.
  struct Progress {
    std::int64_t queued = 0;      // number of the last one
    std::int64_t unfinished = 0;  // number of the oldest that has not finished; 0: all have
    Collective kind{};            // of that one
  };
  [[nodiscard]] Progress progress() const;

 private:
  template <class Operation>
  void timed(Collective kind, std::int64_t payload_bytes, const Stream& stream, Operation operation) {
    Timing timing{kind, Event(stream.device()), Event(stream.device())};
    announce(kind);
    timing.begin.record(stream);
    operation();
    timing.end.record(stream);
    count(std::move(timing), payload_bytes);
  }
  struct Timing {
    Collective kind;
    Event begin, end;
  };
  void announce(Collective kind);
  void count(Timing timing, std::int64_t payload_bytes);
  void check_counts(const char* operation, std::span<const std::int64_t> counts, std::int64_t total) const;
  void check_part(const char* operation, std::span<const std::int64_t> counts, std::int64_t mine) const;

  void settle() const;

  std::unique_ptr<Transport> transport_;
  mutable std::mutex mutex_;  // of the following
  mutable Traffic traffic_;
  mutable std::deque<Timing> unfinished_;  // operations whose seconds are not known yet, oldest first
  std::int64_t queued_ = 0;
  std::optional<Collective> being_queued_;  // on an immediate stream it is carried out meanwhile
};

/// Makes a communicator over the ranks of `world` for memory on `device`. Collective over `world`. `name`:
///   self        no communication (exactly one rank)
///   mpi         MPI. On CUDA memory each kind of collective is tried first, in a process of its own, on a tiny buffer: those that
///               give the right numbers are direct, the others staged through host memory. name() says which, reason() why.
///   staged      CUDA memory: MPI on copies in host memory
///   cuda_aware  CUDA memory: MPI on the memory itself; refused unless every kind of collective is found to work
///   nccl        CUDA memory: NCCL
///   auto        self for one rank, else nccl for a CUDA device if this build has it, else mpi
/// Never falls back silently: Error(usage) with the reason when the named one cannot serve this build, device or rank count.
[[nodiscard]] std::unique_ptr<Communicator> make_communicator(std::string_view name, MPI_Comm world, Device device);

/// Owner of MPI: initialises it (MPI_THREAD_MULTIPLE, so that streams may communicate from worker threads) and finalises it.
/// Throws Error(usage) when the library does not offer that level.
class MpiSession {
 public:
  MpiSession(int& argc, char**& argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
};

}  // namespace scape
