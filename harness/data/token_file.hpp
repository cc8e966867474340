// Tokens on disk: one file with a header, the training tokens, the validation tokens and where each document ends.
// Little-endian; written once under a temporary name and renamed, read through mmap.
//
//   byte 0    header, 256 bytes: magic, version, token width, vocabulary, counts, seed, entropy, checksums, source text
//   byte 256  training tokens, then validation tokens, each of `token_bytes` bytes; zeros up to a multiple of 8 bytes
//   then      one int64 per document, training first: the index in its split behind the document's last token
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace scape {

enum class Split { train, validation };

/// "train" or "validation".
[[nodiscard]] const char* to_string(Split split);

/// What the header says.
struct TokenFileInfo {
  std::int64_t vocabulary = 256;  // every id is in [0, vocabulary)
  int token_bytes = 1;            // 1, 2 or 4
  std::int64_t train_tokens = 0;
  std::int64_t validation_tokens = 0;
  std::int64_t train_documents = 0;
  std::int64_t validation_documents = 0;
  std::uint64_t seed = 0;      // of the split and of a synthetic text
  double unigram_entropy = 0;  // nats per token of the training split: the loss of a model that knows only frequencies
  std::string source{};        // where the text comes from, one line of at most 175 bytes
};

/// Read-only tokens of any width. Valid as long as the TokenFile it came from, or a copy of that.
class TokenView {
 public:
  TokenView(const std::byte* data, std::int64_t size, int token_bytes) : data_(data), size_(size), token_bytes_(token_bytes) {}

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  /// The id at `index`, not range-checked.
  [[nodiscard]] std::int32_t operator[](std::int64_t index) const noexcept;
  /// Fills `ids` with the tokens from `begin` on. Throws Error(internal) when they are not all inside.
  void read(std::int64_t begin, std::span<std::int32_t> ids) const;

 private:
  const std::byte* data_;
  std::int64_t size_;
  int token_bytes_;
};

/// Entropy of the token frequencies, in nats per token; 0 for an empty view.
[[nodiscard]] double unigram_entropy(const TokenView& tokens, std::int64_t vocabulary);

/// An opened file. Copies share one mapping.
class TokenFile {
 public:
  /// Maps the file and checks all of it: header, size, checksums, ids and document ends. Throws Error(input) with one line
  /// that names the file, what is wrong and the byte where.
  [[nodiscard]] static TokenFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const TokenFileInfo& info() const noexcept { return info_; }
  [[nodiscard]] TokenView train() const { return tokens(Split::train); }
  [[nodiscard]] TokenView validation() const { return tokens(Split::validation); }
  [[nodiscard]] TokenView tokens(Split split) const;
  /// Index behind the last token of each document of the split, ascending.
  [[nodiscard]] std::span<const std::int64_t> document_ends(Split split) const;

 private:
  TokenFile() = default;
  std::filesystem::path path_;
  TokenFileInfo info_;
  std::shared_ptr<const std::byte> mapping_;  // the whole file
};

/// Writes a token file at constant memory (beside 8 bytes per id of the vocabulary). Until finish() nothing has the final
/// name; the temporary file goes with the writer.
class TokenFileWriter {
 public:
  /// Uses vocabulary, token_bytes, seed and source of `info`. Throws Error(input) when the folder cannot be written and
  /// Error(usage) when vocabulary and token_bytes do not fit each other.
  TokenFileWriter(std::filesystem::path path, TokenFileInfo info);
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;
  ~TokenFileWriter();

  /// Appends one document. Throws Error(usage) for an id outside the vocabulary, Error(input) when the disk is full.
  void add(Split split, std::span<const std::int32_t> ids);
  /// Completes the file, gives it its name (replacing a file that has it) and returns what its header says.
  /// Throws Error(input) when a split has no token or the file cannot be written.
  TokenFileInfo finish();

 private:
  struct Output;
  std::filesystem::path path_;
  TokenFileInfo info_;
  std::vector<std::int64_t> frequencies_;  // of each id in the training split
  std::unique_ptr<Output> output_;
};

}  // namespace scape
