// Batches for training and validation as a pure function of (seed, step, rank): nothing to save, so a resumed run needs only
// its step number. A split is cut into windows of sequence_length + 1 tokens. An epoch visits each of its windows exactly once, in
// a pseudo-random order (a Feistel network with cycle walking, Black & Rogaway, "Ciphers with arbitrary finite domains",
// CT-RSA 2002: no table in memory) and from an offset of its own. Step s takes the sequences [s, s + 1) · global_batch of that
// order; each rank takes its contiguous part, so the sequences of a step do not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <span>

#include "data/token_file.hpp"

namespace scape {

struct TokenStreamOptions {
  std::int64_t sequence_length = 128;  // tokens per sequence that are predicted
  std::int64_t global_batch = 32;      // sequences per step, over all ranks and micro-batches
  std::uint64_t seed = 1;              // of the order; validation has one fixed order for every seed
};

class TokenStream {
 public:
  /// Throws Error(usage) when global_batch is not a multiple of `ranks` or another argument cannot be meant, and Error(input)
  /// when the split is smaller than one global batch, saying how many tokens are needed.
  TokenStream(const TokenFile& file, Split split, const TokenStreamOptions& options, int rank, int ranks);

  /// Sequences of one step on this rank: global_batch / ranks.
  [[nodiscard]] std::int64_t sequences_per_rank() const { return options_.global_batch / ranks_; }
  /// Windows in one epoch.
  [[nodiscard]] std::int64_t windows() const { return windows_; }
  /// Steps that fit into one epoch. An evaluation over all of a validation split takes the steps [0, steps_per_epoch()).
  [[nodiscard]] std::int64_t steps_per_epoch() const { return windows_ / options_.global_batch; }

  /// Sequences [micro_batch, micro_batch + 1) · sequences of this rank's part of `step`. inputs, targets: [sequences,
  /// sequence_length]; a target is the token behind its input. Throws Error(usage) when that is not inside the rank's part
  /// or the spans have another size.
  void batch(std::int64_t step, std::int64_t micro_batch, std::int64_t sequences, std::span<std::int32_t> inputs,
             std::span<std::int32_t> targets) const;

  /// First token, in its split, of sequence `index` (0 … global_batch − 1, over all ranks) of `step`.
  [[nodiscard]] std::int64_t window_begin(std::int64_t step, std::int64_t index) const;

  /// CRC-32 of the token ids of (step, this rank), continued from `previous`: chained over steps it is a running hash that a
  /// resumed and an uninterrupted run share.
  [[nodiscard]] std::uint32_t hash(std::int64_t step, std::uint32_t previous = 0) const;

 private:
  TokenFile file_;
  TokenView tokens_;
  Split split_;
  TokenStreamOptions options_;
  int rank_;
  int ranks_;
  std::int64_t windows_ = 0;
};

}  // namespace scape
