// One file of tokens, in any of the formats that the suite reads as they are. Each is recognised by its first bytes:
//
//   SCAPE      written by `scape data prepare`; token_format.hpp has the layout
//   llm.c      256 int32: magic, version, number of tokens; then the tokens. 20240520, version 1: uint16 of GPT-2; 20240801,
//              version 7: uint32 of Llama 3
//   Megatron   NAME.idx ("MMIDIDX", version, type, lengths and byte offsets of sequences, first sequence of each document; offsets
//              are not aligned) beside NAME.bin with the tokens; either name opens it
//   raw        nothing but tokens, as nanoGPT writes them. No bytes to recognise: a file whose name ends in .bin and that is none
//              of the others. uint16, or uint32 where the vocabulary that the user names needs it
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_file.hpp"
#include "data/token_format.hpp"
#include "io/file.hpp"

namespace scape {

class TokenArray {
 public:
  /// Opens and checks what can be checked without reading all of it: header, sizes, first and last entries of tables.
  /// `vocabulary` is what the user says of a file that cannot; 0 if nothing. Throws Error(input) with file, fault and byte.
  [[nodiscard]] static std::shared_ptr<const TokenArray> open(const std::filesystem::path& path, std::int64_t vocabulary = 0);
  virtual ~TokenArray() = default;

  MappedFile file;                   // the one that holds the tokens
  std::string format;                // "raw uint16", for people
  std::int64_t first_byte = 0;       // of the tokens in `file`
  int token_bytes = 2;               // 1, 2 or 4
  std::int64_t tokens = 0;           // at least 1
  std::int64_t vocabulary = 0;       // as the format or the user says; 0: unknown
  std::int64_t documents = 0;        // 0: the format has no boundaries
  const TokenHeader* own = nullptr;  // of the suite's own format: two splits, checksums, tokenizer

  [[nodiscard]] const std::byte* data() const noexcept { return file.data() + first_byte; }
  /// Index behind the last token of each document, ascending; documents without tokens are left out. Reads the whole table
  /// and checks it. Own format: the two splits one behind the other.
  [[nodiscard]] virtual std::vector<std::int64_t> document_ends() const { return {}; }
  /// The SentencePiece model that is stored with the tokens; empty when none is.
  [[nodiscard]] virtual std::string_view tokenizer_model() const { return {}; }

 protected:
  explicit TokenArray(MappedFile opened) : file(std::move(opened)) {}
};

/// Reads ids of `token_bytes` each as int32. Returns the index of the first that is not below the vocabulary; ids.size() if none.
[[nodiscard]] std::int64_t widen_tokens(const std::byte* from, int token_bytes, std::int64_t vocabulary,
                                        std::span<std::int32_t> ids);

/// The Error(input) of such an id at byte `byte` of the file.
[[noreturn]] void refuse_token(const std::filesystem::path& path, std::int64_t byte, std::int32_t id, std::int64_t vocabulary);

/// CRC-32, continued from `previous`, of the ids [begin, begin + count) as little-endian int32, whatever their width. An id that
/// is not below the vocabulary is an Error(input) that names the file and the byte. Adds to `frequencies`, one per id of the
/// vocabulary, if given.
[[nodiscard]] std::uint32_t check_tokens(const TokenArray& array, std::int64_t begin, std::int64_t count, std::int64_t vocabulary,
                                         std::uint32_t previous, std::vector<std::int64_t>* frequencies);

}  // namespace scape
