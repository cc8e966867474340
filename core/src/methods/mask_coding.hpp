// A set of k of n coordinates as few bytes. Every size follows from n and k alone, so that ranks which know how many coordinates
// each of them chose need not tell each other how long their messages are.
//
//   bitmap      a bit per coordinate                                          ⌈n/8⌉ bytes
//   index32     the coordinates, 32 bits each                                 4 k
//   index16     the offsets in blocks of 65536 coordinates, 16 bits each,     4 ⌈n/65536⌉ + 2 k
//               behind the blocks' counts, 32 bits each
//   elias_fano  the ⌊log2(n/k)⌋ = l low bits of each coordinate, then the      ⌈k l/8⌉ + ⌈(k + ⌊(n−1)/2^l⌋)/8⌉
//               high ones as a bit string in which the i-th chosen coordinate
//               j sets bit i + ⌊j/2^l⌋ (Elias 1974, Fano 1971)
//   automatic   the smallest of these; the first in the order above where sizes are equal
//
// Elias–Fano measured in bytes per coordinate, beside the entropy bound H(d)/8 of a random set of density d: at d = .1 0.0656
// (bound 0.0586, 12% more), at .01 0.0107 (0.0101, 6% more), at .001 0.00149 (0.00143, 5% more). No code of a fixed number of low
// bits has a shorter longest word at d = .1.
#pragma once

#include <cstdint>
#include <span>

#include "scape/scape.hpp"

namespace scape {

/// The coding that `automatic` stands for; any other stands for itself.
[[nodiscard]] MaskCoding resolve(MaskCoding coding, std::int64_t n, std::int64_t k);

/// Bytes of k of n coordinates. 0 if k is 0 and the coding is not a bitmap.
[[nodiscard]] std::int64_t coded_bytes(MaskCoding coding, std::int64_t n, std::int64_t k);

/// coded [coded_bytes(coding, n, k)] ← the set whose k bits are set in bits [mask_words(n)]. index32 needs n ≤ 2^32.
void encode_mask(MaskCoding coding, std::span<const std::uint64_t> bits, std::int64_t n, std::int64_t k,
                 std::span<std::uint8_t> coded);

/// bits [mask_words(n)] ← the set. Throws Error(communication) for bytes that encode_mask cannot have written.
void decode_mask(MaskCoding coding, std::span<const std::uint8_t> coded, std::int64_t n, std::int64_t k,
                 std::span<std::uint64_t> bits);

/// Sets bit to_first + i of `to` for each bit from_first + i that is set in `from`, for i in [0, n).
void copy_set_bits(std::span<const std::uint64_t> from, std::int64_t from_first, std::int64_t n, std::span<std::uint64_t> to,
                   std::int64_t to_first);

}  // namespace scape
