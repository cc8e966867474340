// Brings the parts of a mask together: every owner sends the coordinates that it chose, in the code of mask_coding, and every rank
// ends up with all of them.
//
//   bitmap with owned ranges   the ranges' words of the mask itself: 8 ⌈W/64⌉ bytes in all, no other work
//   otherwise                  each owner's matrix coordinates, one piece behind the other, as one code (mask_coding.hpp); the bits
//   of
//                              vectors are known. Made and read on the host.
// All sizes follow from how many coordinates each owner chose.
#pragma once

#include <vector>

#include "methods/mask_choice.hpp"

namespace scape {

class MaskGather {
 public:
  MaskGather(const ScapeOptions& options, const MethodContext& context, const MaskParts& parts);

  /// words [mask_words(W)] with this rank's bits and those of all vectors set ← the whole mask, of which each owner chose counts[r]
  /// matrix coordinates. Queued: begins after what is on the compute stream, ends on the communication stream.
  void start(const StepContext& context, Span<std::uint64_t> words, const std::vector<std::int64_t>& counts);
  /// Bytes on the wire of a gather of such a mask.
  [[nodiscard]] double expected_wire_bytes(const std::vector<std::int64_t>& counts) const;

 private:
  void encode(std::span<const std::uint64_t> words, std::int64_t count, std::span<std::uint8_t> coded);
  void decode(int owner, std::span<const std::uint8_t> coded, std::int64_t count, std::span<std::uint64_t> words);
  [[nodiscard]] std::span<std::uint64_t> bits_of(std::vector<std::uint64_t>& bits, int owner) const;
  [[nodiscard]] std::vector<std::int64_t> sizes(const std::vector<std::int64_t>& counts) const;

  MaskCoding coding_;
  MaskParts parts_;
  int rank_;
  int ranks_;
  bool whole_words_;
  std::vector<std::int64_t> word_counts_;  // mask words owned by each rank
  Buffer<std::uint8_t> coded_;             // of all ranks, in their order
  std::vector<std::uint64_t> bits_made_;   // what this rank codes, on the compute stream
  std::vector<std::uint64_t> bits_read_;   // what another rank coded, on the communication stream
  Event read_;                             // coded_ may be used again
};

}  // namespace scape
