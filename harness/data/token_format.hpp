// The suite's own token file, byte by byte. Little-endian; read through mmap.
//
//   byte 0    header, 256 bytes
//   byte 256  training tokens, then validation tokens, each of `token_bytes` bytes; zeros up to a multiple of 8 bytes
//   then      one int64 per document, training first: the index in its split behind the document's last token
//   then      the SentencePiece model that made the tokens, if one did
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "io/file.hpp"

namespace scape {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and mapped as they are");

inline constexpr std::array<char, 8> token_magic{'S', 'C', 'A', 'P', 'E', 'T', 'O', 'K'};
inline constexpr std::uint32_t token_version = 2;

struct TokenHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t token_bytes;
  std::int64_t vocabulary;
  std::array<std::int64_t, 2> tokens;     // by Split; one of them may be 0 in a shard
  std::array<std::int64_t, 2> documents;  // by Split
  std::uint64_t seed;
  double unigram_entropy;                  // nats per token of the training tokens
  std::array<std::uint32_t, 2> token_crc;  // by Split: CRC-32 of the ids as int32, so the same for every width
  std::uint32_t document_crc;              // CRC-32 of the document ends
  std::uint32_t model_crc;                 // CRC-32 of the SentencePiece model; 0 without one
  std::int64_t model_bytes;
  std::uint32_t tokenizer;  // TokenizerKind
  std::int32_t end_token;   // behind every document; −1: none
  std::uint32_t reserved;
  std::uint32_t header_crc;      // CRC-32 of the header with zero here
  std::array<char, 144> source;  // zero-terminated
};
static_assert(sizeof(TokenHeader) == 256 && std::is_trivially_copyable_v<TokenHeader>);
inline constexpr std::int64_t token_header_bytes = sizeof(TokenHeader);

inline std::uint32_t header_crc_of(TokenHeader header) {
  header.header_crc = 0;
  return crc32_of(0, &header, sizeof header);
}

/// The next multiple of 8.
constexpr std::int64_t padded(std::int64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

}  // namespace scape
