// Two-phase mean of coded vectors.
#include "scape/coded_mean.hpp"

#include <algorithm>

#include "scape/error.hpp"

namespace scape {

CodedMean::CodedMean(const QuantFormat& format, std::int64_t most, int rank, int ranks, Device device)
    : format_(format),
      rank_(rank),
      ranks_(ranks),
      update_(update_kernels(device)),
      quant_(quant_kernels(device)),
      records_(quant_bytes(most, format), device),
      received_(ranks * quant_bytes(shard_of(most, 0).size(), format), device),  // the first, of whole blocks, is the longest
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

Span<std::uint8_t> CodedMean::my_records() const {
  const Range mine = shard(size_);  // shards begin at whole blocks
  return records_.span().subspan(mine.empty() ? 0 : quant_bytes(mine.begin, format_), quant_bytes(mine.size(), format_));
}

void CodedMean::code(Span<const float> x, const RandomWords& random, Span<float> error, const Stream& stream) {
  size_ = x.size();
  send_bytes_.clear();
  for (int r = 0; r < ranks_; ++r) send_bytes_.push_back(quant_bytes(shard_of(size_, r).size(), format_));
  receive_bytes_.assign(static_cast<std::size_t>(ranks_), send_bytes_[static_cast<std::size_t>(rank_)]);
  quant_.quantize(x, format_, random, all_records(), error, stream);
}

void CodedMean::scatter(Communicator& comm, const Stream& stream) {
  comm.all_to_all_v(all_records(), send_bytes_, received_.span().subspan(0, ranks_ * receive_bytes_[0]), receive_bytes_, stream);
}

void CodedMean::reduce(Span<const float> carry, const RandomWords& random, Span<float> error, const Stream& stream) {
  const Span<float> mean = mean_.span().subspan(0, shard(size_).size());
  const std::int64_t bytes = receive_bytes_[0];
  zero(mean, stream);
  for (int r = 0; r < ranks_; ++r) quant_.dequantize_add(received_.span().subspan(r * bytes, bytes), format_, mean, stream);
  update_.divide(mean, static_cast<float>(ranks_), stream);
  if (!carry.empty()) update_.add(mean, carry, 1, stream);
  quant_.quantize(mean, format_, random, my_records(), error, stream);
}

void CodedMean::gather(Communicator& comm, const Stream& stream) {
  comm.all_gather_v(my_records(), all_records(), send_bytes_, stream);
}

void CodedMean::decode(Span<float> x, const Stream& stream) const {
  require(x.size() == size_, ErrorKind::internal, "coded mean: the vector has another size than the one coded");
  quant_.dequantize(all_records(), format_, x, stream);
}

}  // namespace scape
