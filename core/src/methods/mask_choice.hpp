// Which coordinates come on a mask: every coordinate of a matrix is chosen by one rank, its owner (mask_owner), by the owner's own
// numbers (mask_statistic), in competition with others (mask_scope). Vectors are always on the mask.
//
//   candidate |c|     gradient |g|     momentum |m|     random: uniform from Philox(seed, step), equal for any number of ranks
//   update |m̂/(√v̂+ε)| with m = c, and v from m_{t−1} and g as in AdamS
//
//   tensor   k = max(1, ⌊d·n⌋) of the n coordinates of each piece of a matrix that a rank owns
//   shard    k of all n matrix coordinates that a rank owns
//   global   k of all n matrix coordinates. The k-th largest magnitude is found by its four bytes, from the first on: a histogram
//            all-reduced for each; then the ranks tell each other how many coordinates of each piece lie above it and on it.
// Among equal magnitudes the lower coordinate wins.
#pragma once

#include <vector>

#include "scape/kernels.hpp"
#include "scape/scape.hpp"

namespace scape {

/// Coordinates of one matrix that one rank owns.
struct MaskPiece {
  Range range;
  int owner = 0;
  std::int64_t place = 0;  // matrix coordinates that the owner has before these
};

/// The coordinates, distributed.
struct MaskParts {
  std::vector<MaskPiece> pieces;    // by owner, then by coordinate
  std::vector<std::int64_t> sizes;  // [ranks] matrix coordinates of each owner
  std::vector<Range> vectors;       // on every mask
  std::int64_t vector_coordinates = 0;
  std::int64_t matrix_coordinates = 0;
};
[[nodiscard]] MaskParts mask_parts(const ParameterLayout& layout, MaskOwner rule, int ranks);

class MaskChoice {
 public:
  MaskChoice(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context);

  [[nodiscard]] const MaskParts& parts() const { return parts_; }
  /// [ranks] matrix coordinates that each owner chooses at density d. In global scope as the last choice came out, if it was one
  /// for d; in proportion to what they own otherwise.
  [[nodiscard]] std::vector<std::int64_t> counts(double density) const;
  /// Coordinates on a mask, vectors included.
  [[nodiscard]] std::int64_t count(double density) const;
  /// Wire bytes of a search for a global threshold.
  [[nodiscard]] double expected_wire_bytes() const;

  /// Keeps what the statistic needs of context.grads in `range`; before c takes their place.
  void observe(const StepContext& context, Range range);
  /// Sets the bits of this rank's coordinates, and of all vectors, in words [mask_words(W)] for step t. candidate and m = m_{t−1}
  /// are [W], or [size of the range] that the rank owns; they are read at its coordinates only. In global scope it waits for both
  /// streams.
  void choose(const StepContext& context, std::int64_t t, double density, Span<const float> candidate, Span<const float> m,
              Span<std::uint64_t> words);

 private:
  struct Scored {
    Range range;
    Span<const float> score;
  };
  [[nodiscard]] std::vector<Scored> scores(const StepContext& context, std::int64_t t, Span<const float> candidate,
                                           Span<const float> m);
  void draw(std::int64_t t, const Stream& stream);
  void choose_in_shard(double density, std::vector<Scored> scored, Span<std::uint64_t> words, const Stream& stream) const;
  void choose_globally(const StepContext& context, double density, const std::vector<Scored>& scored, Span<std::uint64_t> words);
  // This rank's place for numbers of a piece.
  [[nodiscard]] Span<float> kept(const MaskPiece& piece) const {
    return score_.size() == 0 ? Span<float>() : score_.span().subspan(piece.place, piece.range.size());
  }

  ScapeOptions options_;
  CommonOptions common_;
  MaskParts parts_;
  std::vector<MaskPiece> mine_;
  Range owned_;
  std::int64_t size_;
  Device device_;
  std::uint64_t seed_;
  int ranks_;
  Buffer<float> score_;  // [this rank's matrix coordinates] of statistics that lie nowhere else: g, then the score
  Buffer<float> drawn_;  // [the same] random numbers, on the host
  std::vector<std::int64_t> last_counts_;  // in global scope: [ranks] coordinates that each owner chose last
};

}  // namespace scape
