// Tokens to train on: two splits, each a sequence of ids, read through mmap from one or many files. What `data=` may name:
//
//   FILE         a token file of `scape data prepare`
//   FOLDER       with tokens.toml: a set of shards, or what `scape data describe` wrote; else with *train* and *val* token files
//                that say their vocabulary (llm.c)
//   FILE.toml    a description (token_set.hpp): any token files, what they do not say themselves, and which tokens are validation
//
// token_array.hpp has the formats of the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.hpp"

namespace scape {

enum class Split { train, validation };

/// "train" or "validation".
[[nodiscard]] const char* to_string(Split split);

struct TokenFileInfo {
  std::string format{};           // "SCAPE", "llm.c GPT-2", …
  std::int64_t files = 1;         // that hold the tokens
  std::int64_t bytes = 0;         // of those files
  std::int64_t vocabulary = 256;  // every id is in [0, vocabulary)
  int token_bytes = 1;            // 1, 2 or 4
  std::int64_t train_tokens = 0;
  std::int64_t validation_tokens = 0;
  std::int64_t train_documents = 0;  // 0 where the format has no document boundaries
  std::int64_t validation_documents = 0;
  std::uint64_t seed = 0;  // of the split and of a synthetic text
  double unigram_entropy =
      0;  // nats per token of the training split: the loss of a model that knows only frequencies; NaN: not known
  TokenizerKind tokenizer = TokenizerKind::bytes;
  std::int32_t end_token = -1;  // behind every document; −1: none, or not known
  std::string source{};         // where the text comes from, one line of at most 143 bytes
  std::string
      checksum{};  // of the ids of both splits, "0123abcd-89ef4567": the same for every format and number of shards; "": unknown
  bool verified = false;  // whether all tokens were read and checked, against the checksum if there is one
};

/// Read-only tokens. Valid as long as the TokenFile it came from, or a copy of that.
class TokenView {
 public:
  /// Consecutive tokens of one file.
  struct Piece {
    std::int64_t begin;  // index of the first in the split
    std::int64_t size;
    const std::byte* data;
    int token_bytes;
    const std::filesystem::path* path;
    std::int64_t first_byte;  // of the piece in its file
  };
  TokenView(std::span<const Piece> pieces, std::int64_t size, std::int64_t vocabulary)
      : pieces_(pieces), size_(size), vocabulary_(vocabulary) {}

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  /// The id at `index`, which must be inside.
  [[nodiscard]] std::int32_t operator[](std::int64_t index) const;
  /// Fills `ids` with the tokens from `begin` on. Throws Error(internal) when they are not all inside, and Error(input), naming
  /// file and byte, for an id that is not in the vocabulary: large files are not read when they are opened.
  void read(std::int64_t begin, std::span<std::int32_t> ids) const;

 private:
  std::span<const Piece> pieces_;
  std::int64_t size_;
  std::int64_t vocabulary_;
};

/// Entropy of the token frequencies, in nats per token; 0 if there are none.
[[nodiscard]] double unigram_entropy(std::span<const std::int64_t> frequencies);

/// Opened tokens. Copies share the mappings.
class TokenFile {
 public:
  /// Tokens up to this size are read and checked by open(); larger ones by verify() alone.
  static constexpr std::int64_t verified_at_open = std::int64_t{64} << 20;

  /// Opens what `data=` may name. Headers, sizes and the ends of tables are always checked, everything if it is small. Throws
  /// Error(input) with one line that names the file, what is wrong and the byte where.
  [[nodiscard]] static TokenFile open(const std::filesystem::path& path);

  /// Reads everything and checks it: ids, checksums, document ends. Throws like open(). Returns the info with its checksum.
  /// `progress`, if given, gets bytes done and in all.
  const TokenFileInfo& verify(const std::function<void(std::int64_t, std::int64_t)>& progress = {});

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const TokenFileInfo& info() const noexcept { return info_; }
  [[nodiscard]] TokenView train() const { return tokens(Split::train); }
  [[nodiscard]] TokenView validation() const { return tokens(Split::validation); }
  [[nodiscard]] TokenView tokens(Split split) const;
  /// Index behind the last token of each document of the split, ascending; empty where the format has no boundaries. Reads and
  /// checks the tables of documents.
  [[nodiscard]] std::vector<std::int64_t> document_ends(Split split) const;
  /// The SentencePiece model that made the tokens; empty when none did.
  [[nodiscard]] std::string_view tokenizer_model() const;

 private:
  struct Data;
  TokenFile() = default;
  std::filesystem::path path_;
  TokenFileInfo info_;
  std::shared_ptr<const Data> data_;
};

}  // namespace scape
