// Mean over the ranks of vectors that travel in codes (QuantFormat in kernels.hpp), in two phases (ZeRO++ "qgZ": Wang et al. 2023,
// arXiv 2306.10209). Shard s of the vector, in whole blocks, belongs to rank s of N:
//
//   code      Q(x) and x − Q(x) on every rank
//   scatter   all-to-all: rank i sends Q(x_i) of shard s to rank s
//   reduce    rank s: b = (1/N) Σ_i Q(x_i) in rank order, in fp32, + carry;  Q(b) and b − Q(b)
//   gather    all-gather: Q(b) of every shard
//   decode    Q(b), the same bits on every rank
//
// Nothing is lost: Σ_i x_i = N Q(b) + Σ_i (x_i − Q(x_i)) + N (b − Q(b)), but for the rounding of b's sum in fp32. Each phase moves
// (N−1)/N · R bytes, R = quant_bytes(n). A block that is not finite on one rank is so in the mean, on every rank.
#pragma once

#include <span>
#include <vector>

#include "scape/communicator.hpp"
#include "scape/kernels.hpp"

namespace scape {

/// The first phase alone, for shards of any size: each begins with a record of its own, and the mean stays with its owner in fp32.
class CodedScatter {
 public:
  /// For vectors of up to `most` elements, of which this rank's shard has up to `longest`.
  CodedScatter(const QuantFormat& format, std::int64_t most, std::int64_t longest, int rank, int ranks, Device device);

  /// Bytes on the wire for shards of these sizes.
  [[nodiscard]] double expected_wire_bytes(std::span<const std::int64_t> sizes) const;

  /// In this order, each on the stream it is given. sizes [ranks] of the shards of x, which lie one behind the other; error may be
  /// empty.
  void code(Span<const float> x, std::span<const std::int64_t> sizes, const RandomWords& random, Span<float> error,
            const Stream& stream);
  void scatter(Communicator& comm, const Stream& stream);
  /// mean [size of this rank's shard] ← (1/N) Σ_i Q(x_i).
  void mean(Span<float> mean, const Stream& stream) const;

  /// Records of the last vector, those of this rank's shard, and how many bytes each rank's take.
  [[nodiscard]] Span<std::uint8_t> records() const;
  [[nodiscard]] Span<std::uint8_t> my_records() const;
  [[nodiscard]] std::span<const std::int64_t> bytes() const { return send_bytes_; }

 private:
  QuantFormat format_;
  int rank_;
  int ranks_;
  const UpdateKernels& update_;
  const QuantKernels& quant_;
  std::vector<std::int64_t> send_bytes_;  // of the records of each rank's shard
  std::vector<std::int64_t> receive_bytes_;
  Buffer<std::uint8_t> records_;
  Buffer<std::uint8_t> received_;  // [N] records of this rank's shard
};

class CodedMean {
 public:
  /// For vectors of up to `most` elements.
  CodedMean(const QuantFormat& format, std::int64_t most, int rank, int ranks, Device device);

  /// Elements of a vector of n whose mean this rank computes. Blocks are dealt out evenly; the first ranks have one more when they
  /// do not divide.
  [[nodiscard]] Range shard(std::int64_t n) const { return shard_of(n, rank_); }
  /// The size of the longest shard of any such vector.
  [[nodiscard]] std::int64_t longest_shard() const { return mean_.size(); }
  /// Both phases, for a vector of n.
  [[nodiscard]] double expected_wire_bytes(std::int64_t n) const;

  /// The steps above, in this order, each on the stream it is given. Errors may be empty: not wanted.
  void code(Span<const float> x, const RandomWords& random, Span<float> error, const Stream& stream);
  void scatter(Communicator& comm, const Stream& stream);
  /// carry and error [shard(n)]; an empty carry is 0.
  void reduce(Span<const float> carry, const RandomWords& random, Span<float> error, const Stream& stream);
  void gather(Communicator& comm, const Stream& stream);
  void decode(Span<float> x, const Stream& stream) const;

 private:
  [[nodiscard]] Range shard_of(std::int64_t n, int rank) const;

  QuantFormat format_;
  int rank_;
  int ranks_;
  const UpdateKernels& update_;
  const QuantKernels& quant_;
  std::int64_t size_ = 0;  // n of the last code()
  CodedScatter scatter_;   // whose records are first Q(x), then Q(b)
  Buffer<float> mean_;     // b of this rank's shard
};

}  // namespace scape
