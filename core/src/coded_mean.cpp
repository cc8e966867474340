// Two-phase mean of coded vectors.
#include "scape/coded_mean.hpp"

#include <algorithm>
#include <numeric>

#include "scape/error.hpp"

namespace scape {

CodedScatter::CodedScatter(const QuantFormat& format, std::int64_t most, std::int64_t longest, int rank, int ranks, Device device)
    : format_(format),
      rank_(rank),
      ranks_(ranks),
      update_(update_kernels(device)),
      quant_(quant_kernels(device)),
      records_(quant_bytes(most, format) + (ranks - 1) * quant_record_bytes(format), device),
      received_(ranks * quant_bytes(longest, format), device) {}

double CodedScatter::expected_wire_bytes(std::span<const std::int64_t> sizes) const {
  std::int64_t bytes = 0;
  for (const std::int64_t size : sizes) bytes += quant_bytes(size, format_);
  return wire_bytes(Collective::all_to_all, static_cast<double>(bytes), ranks_);
}

Span<std::uint8_t> CodedScatter::records() const {
  return records_.span().subspan(0, std::accumulate(send_bytes_.begin(), send_bytes_.end(), std::int64_t{0}));
}

Span<std::uint8_t> CodedScatter::my_records() const {
  const auto mine = send_bytes_.begin() + rank_;
  return records_.span().subspan(std::accumulate(send_bytes_.begin(), mine, std::int64_t{0}), *mine);
}

// Neighbouring shards of whole blocks are coded in one go.
void CodedScatter::code(Span<const float> x, std::span<const std::int64_t> sizes, const RandomWords& random, Span<float> error,
                        const Stream& stream) {
  require(std::ssize(sizes) == ranks_, ErrorKind::internal, "coded scatter: as many shards as ranks");
  send_bytes_.clear();
  for (const std::int64_t size : sizes) send_bytes_.push_back(quant_bytes(size, format_));
  receive_bytes_.assign(sizes.size(), send_bytes_[static_cast<std::size_t>(rank_)]);
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t bytes = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    end += sizes[r];
    if ((end - begin) % format_.block == 0 && r + 1 < sizes.size()) continue;
    const std::int64_t n = end - begin;
    RandomWords words = random;
    words.counter += static_cast<std::uint64_t>(bytes / quant_record_bytes(format_) * format_.block / 4);
    quant_.quantize(x.subspan(begin, n), format_, words, records_.span().subspan(bytes, quant_bytes(n, format_)),
                    error.empty() ? error : error.subspan(begin, n), stream);
    bytes += quant_bytes(n, format_);
    begin = end;
  }
}

void CodedScatter::scatter(Communicator& comm, const Stream& stream) {
  comm.all_to_all_v(records(), send_bytes_, received_.span().subspan(0, ranks_ * receive_bytes_[0]), receive_bytes_, stream);
}

void CodedScatter::mean(Span<float> mean, const Stream& stream) const {
  const std::int64_t bytes = receive_bytes_[0];
  zero(mean, stream);
  for (int r = 0; r < ranks_; ++r) quant_.dequantize_add(received_.span().subspan(r * bytes, bytes), format_, mean, stream);
  update_.divide(mean, static_cast<float>(ranks_), stream);
}

CodedMean::CodedMean(const QuantFormat& format, std::int64_t most, int rank, int ranks, Device device)
    : format_(format),
      rank_(rank),
      ranks_(ranks),
      update_(update_kernels(device)),
      quant_(quant_kernels(device)),
      scatter_(format, most, shard_of(most, 0).size(), rank, ranks, device),  // the first, of whole blocks, is the longest
      mean_(shard_of(most, 0).size(), device) {}

Range CodedMean::shard_of(std::int64_t n, int rank) const {
  const std::int64_t blocks = quant_blocks(n, format_);
  const auto boundary = [&](int r) {
    return std::min(n, (blocks / ranks_ * r + std::min<std::int64_t>(r, blocks % ranks_)) * format_.block);
  };
  return {boundary(rank), boundary(rank + 1)};
}

double CodedMean::expected_wire_bytes(std::int64_t n) const {
  const auto bytes = static_cast<double>(quant_bytes(n, format_));
  return wire_bytes(Collective::all_to_all, bytes, ranks_) + wire_bytes(Collective::all_gather, bytes, ranks_);
}

void CodedMean::code(Span<const float> x, const RandomWords& random, Span<float> error, const Stream& stream) {
  size_ = x.size();
  std::vector<std::int64_t> sizes;
  for (int r = 0; r < ranks_; ++r) sizes.push_back(shard_of(size_, r).size());
  scatter_.code(x, sizes, random, error, stream);
}

void CodedMean::scatter(Communicator& comm, const Stream& stream) {
  scatter_.scatter(comm, stream);
}

void CodedMean::reduce(Span<const float> carry, const RandomWords& random, Span<float> error, const Stream& stream) {
  const Span<float> mean = mean_.span().subspan(0, shard(size_).size());
  scatter_.mean(mean, stream);
  if (!carry.empty()) update_.add(mean, carry, 1, stream);
  quant_.quantize(mean, format_, random, scatter_.my_records(), error, stream);
}

void CodedMean::gather(Communicator& comm, const Stream& stream) {
  comm.all_gather_v(scatter_.my_records(), scatter_.records(), scatter_.bytes(), stream);
}

void CodedMean::decode(Span<float> x, const Stream& stream) const {
  require(x.size() == size_, ErrorKind::internal, "coded mean: the vector has another size than the one coded");
  quant_.dequantize(scatter_.records(), format_, x, stream);
}

}  // namespace scape
