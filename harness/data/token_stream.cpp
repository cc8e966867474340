#include "data/token_stream.hpp"

#include <fmt/format.h>

#include <bit>
#include <utility>
#include <vector>

#include "io/file.hpp"
#include "scape/error.hpp"
#include "scape/rng.hpp"

namespace scape {
namespace {

// Philox streams of the order of an epoch and of the offsets, away from those that models use for their weights.
constexpr std::uint64_t order_stream = std::uint64_t{0x6f72646572} << 24;
constexpr std::uint64_t offset_stream = std::uint64_t{0x6f6666736574} << 16;

// The image of `index` under a pseudo-random permutation of [0, size): a Feistel network over the next even number of bits,
// repeated until the image lies inside.
std::int64_t permuted(std::int64_t index, std::int64_t size, std::uint64_t seed, std::uint64_t stream) {
  const auto half = (std::bit_width(static_cast<std::uint64_t>(size - 1)) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto x = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = x >> half;
    std::uint64_t right = x & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      left ^= philox(seed, stream, round << 32 | right)[0] & mask;
      std::swap(left, right);
    }
    x = left << half | right;
  } while (x >= static_cast<std::uint64_t>(size));
  return static_cast<std::int64_t>(x);
}

}  // namespace

TokenStream::TokenStream(const TokenFile& file, Split split, const TokenStreamOptions& options, int rank, int ranks)
    : file_(file), tokens_(file_.tokens(split)), split_(split), options_(options), rank_(rank), ranks_(ranks) {
  const auto [length, batch, seed] = options_;
  require(ranks >= 1 && rank >= 0 && rank < ranks, ErrorKind::usage, "TokenStream: no such rank");
  require(length >= 1 && length < std::int64_t{1} << 31, ErrorKind::usage, "sequence length must be in [1, 2^31)");
  require(batch >= 1 && batch < std::int64_t{1} << 31, ErrorKind::usage, "global batch must be in [1, 2^31)");
  if (batch % ranks != 0) {
    throw Error(ErrorKind::usage, fmt::format("a global batch of {} sequences cannot be dealt evenly to {} ranks", batch, ranks));
  }
  // Every training offset in [0, length] leaves room for the same number of windows; validation has no offset.
  const std::int64_t margin = split == Split::train ? length : 0;
  windows_ = (tokens_.size() - margin) / (length + 1);
  if (tokens_.size() < margin || windows_ < batch) {
    throw Error(ErrorKind::input,
                fmt::format("{}: {} tokens in the {} split, {} needed for one batch of {} sequences of {} tokens",
                            file.path().string(), tokens_.size(), to_string(split), batch * (length + 1) + margin, batch, length));
  }
}

std::int64_t TokenStream::window_begin(std::int64_t step, std::int64_t index) const {
  require(step >= 0 && index >= 0 && index < options_.global_batch, ErrorKind::usage, "TokenStream: no such sequence");
  const std::int64_t sequence = step * options_.global_batch + index;
  const std::int64_t stride = options_.sequence_length + 1;
  if (split_ == Split::validation) return stride * permuted(sequence % windows_, windows_, 0, order_stream);
  const auto epoch = static_cast<std::uint64_t>(sequence / windows_);
  const std::int64_t offset = philox(options_.seed, offset_stream, epoch)[0] % stride;
  return offset + stride * permuted(sequence % windows_, windows_, options_.seed, order_stream + epoch);
}

void TokenStream::batch(std::int64_t step, std::int64_t micro_batch, std::int64_t sequences, std::span<std::int32_t> inputs,
                        std::span<std::int32_t> targets) const {
  const std::int64_t first = micro_batch * sequences;
  require(micro_batch >= 0 && sequences >= 1 && first + sequences <= sequences_per_rank(), ErrorKind::usage,
          "TokenStream: the micro-batch is not inside this rank's part of the step");
  const auto length = static_cast<std::size_t>(options_.sequence_length);
  const std::size_t size = static_cast<std::size_t>(sequences) * length;
  require(inputs.size() == size && targets.size() == size, ErrorKind::usage, "TokenStream: inputs or targets have the wrong size");
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::int64_t begin = window_begin(step, rank_ * sequences_per_rank() + first + i);
    tokens_.read(begin, inputs.subspan(static_cast<std::size_t>(i) * length, length));
    tokens_.read(begin + 1, targets.subspan(static_cast<std::size_t>(i) * length, length));
  }
}

std::uint32_t TokenStream::hash(std::int64_t step, std::uint32_t previous) const {
  std::vector<std::int32_t> window(static_cast<std::size_t>(options_.sequence_length + 1));
  for (std::int64_t i = 0; i < sequences_per_rank(); ++i) {
    tokens_.read(window_begin(step, rank_ * sequences_per_rank() + i), window);
    previous = crc32_of(previous, window.data(), window.size() * sizeof window[0]);
  }
  return previous;
}

}  // namespace scape
