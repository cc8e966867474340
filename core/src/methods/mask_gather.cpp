// Gathering masks, as words or coded.
#include "methods/mask_gather.hpp"

#include <algorithm>
#include <numeric>

#include "methods/mask_coding.hpp"
#include "scape/error.hpp"

namespace scape {

MaskGather::MaskGather(const ScapeOptions& options, const MethodContext& context, const MaskParts& parts)
    : coding_(options.mask_coding),
      parts_(parts),
      rank_(context.rank),
      ranks_(context.ranks),
      whole_words_(options.mask_coding == MaskCoding::bitmap && options.mask_owner == MaskOwner::ranges) {
  if (context.device.kind != DeviceKind::cpu) {
    require(options.mask_owner == MaskOwner::ranges, ErrorKind::usage,
            "mask_owner = tensors gathers masks through the host and needs device = cpu");
    require(options.mask_coding == MaskCoding::bitmap, ErrorKind::usage,
            "mask_coding other than bitmap works on the host and needs device = cpu");
  }
  const std::int64_t most = parts_.sizes.empty() ? 0 : *std::max_element(parts_.sizes.begin(), parts_.sizes.end());
  require(coding_ != MaskCoding::index32 || most <= std::int64_t{1} << 32, ErrorKind::usage,
          "mask_coding = index32: a rank owns more coordinates than 32 bits count; use index16 or elias_fano");
  for (int r = 0; r < ranks_; ++r) {
    word_counts_.push_back(mask_words(owned_range(context.layout.size(), r, ranks_).size()));
  }
  if (whole_words_) return;
  bits_made_.resize(static_cast<std::size_t>(mask_words(parts_.sizes[static_cast<std::size_t>(rank_)])));
  bits_read_.resize(static_cast<std::size_t>(mask_words(most)));
}

std::vector<std::int64_t> MaskGather::sizes(const std::vector<std::int64_t>& counts) const {
  std::vector<std::int64_t> bytes(counts.size());
  std::transform(parts_.sizes.begin(), parts_.sizes.end(), counts.begin(), bytes.begin(),
                 [&](std::int64_t n, std::int64_t k) { return coded_bytes(coding_, n, k); });
  return bytes;
}

void MaskGather::start(const StepContext& context, Span<std::uint64_t> words, const std::vector<std::int64_t>& counts) {
  const auto me = static_cast<std::size_t>(rank_);
  Event chosen(words.device());
  if (whole_words_) {
    const std::int64_t first = std::accumulate(word_counts_.begin(), word_counts_.begin() + rank_, std::int64_t{0});
    chosen.record(context.stream);
    context.comm_stream.wait(chosen);
    context.comm.all_gather_v(words.subspan(first, word_counts_[me]), words, word_counts_, context.comm_stream);
    return;
  }

  const std::vector<std::int64_t> bytes = sizes(counts);
  std::vector<std::int64_t> places(bytes.size());
  std::exclusive_scan(bytes.begin(), bytes.end(), places.begin(), std::int64_t{0});
  const std::int64_t total = places.back() + bytes.back();
  if (coded_.size() < total) {  // during a warm-up the first mask is the largest
    read_.synchronize();
    coded_ = Buffer<std::uint8_t>(total);
  }
  const Span<std::uint8_t> all = coded_.span().subspan(0, total);
  const Span<std::uint8_t> mine = all.subspan(places[me], bytes[me]);
  context.stream.wait(read_);
  context.stream.enqueue([=, this, count = counts[me]] { encode(words.host(), count, mine.host()); });
  chosen.record(context.stream);
  context.comm_stream.wait(chosen);
  context.comm.all_gather_v(mine, all, bytes, context.comm_stream);
  context.comm_stream.enqueue([=, this] {
    for (int r = 0; r < ranks_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (r != rank_) decode(r, all.subspan(places[i], bytes[i]).host(), counts[i], words.host());
    }
  });
  read_.record(context.comm_stream);
}

std::span<std::uint64_t> MaskGather::bits_of(std::vector<std::uint64_t>& bits, int owner) const {
  return std::span(bits).first(static_cast<std::size_t>(mask_words(parts_.sizes[static_cast<std::size_t>(owner)])));
}

void MaskGather::encode(std::span<const std::uint64_t> words, std::int64_t count, std::span<std::uint8_t> coded) {
  const std::span<std::uint64_t> bits = bits_of(bits_made_, rank_);
  std::fill(bits.begin(), bits.end(), 0);
  for (const MaskPiece& piece : parts_.pieces) {
    if (piece.owner == rank_) copy_set_bits(words, piece.range.begin, piece.range.size(), bits, piece.place);
  }
  encode_mask(coding_, bits, parts_.sizes[static_cast<std::size_t>(rank_)], count, coded);
}

void MaskGather::decode(int owner, std::span<const std::uint8_t> coded, std::int64_t count, std::span<std::uint64_t> words) {
  const std::span<std::uint64_t> bits = bits_of(bits_read_, owner);
  decode_mask(coding_, coded, parts_.sizes[static_cast<std::size_t>(owner)], count, bits);
  for (const MaskPiece& piece : parts_.pieces) {
    if (piece.owner == owner) copy_set_bits(bits, piece.place, piece.range.size(), words, piece.range.begin);
  }
}

double MaskGather::expected_wire_bytes(const std::vector<std::int64_t>& counts) const {
  if (whole_words_) {
    const std::int64_t words = std::accumulate(word_counts_.begin(), word_counts_.end(), std::int64_t{0});
    return wire_bytes(Collective::all_gather, static_cast<double>(words) * sizeof(std::uint64_t), ranks_);
  }
  const std::vector<std::int64_t> bytes = sizes(counts);
  return wire_bytes(Collective::all_gather, static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0})),
                    ranks_);
}

}  // namespace scape
