// Writes token files, alone or as a set of shards: a folder with tokens.toml and token files of about equal size, each whole by
// itself. Memory does not grow with the tokens, beside 8 bytes per id of the vocabulary. Until finish() nothing has the final name:
// everything is written under a temporary name beside it, which goes with the writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.hpp"

namespace scape {

class TokenWriter {
 public:
  virtual ~TokenWriter() = default;
  /// Appends one document. Throws Error(usage) for an id outside the vocabulary, Error(input) when the disk is full.
  virtual void add(Split split, std::span<const std::int32_t> ids) = 0;
  /// Completes the output and gives it its name. Throws Error(input) when a split has no token or something cannot be written.
  virtual void finish() = 0;
};

/// One file. Replaces a file of this name, at finish().
class TokenFileWriter final : public TokenWriter {
 public:
  /// Uses vocabulary, token_bytes, seed, source, tokenizer and end_token of `info`; `model` is the tokenizer's SentencePiece model
  /// if it has one. With `either_split` one of the splits may stay empty. Throws Error(input) when the folder cannot be written
  /// and Error(usage) when vocabulary and token_bytes do not fit each other.
  TokenFileWriter(std::filesystem::path path, TokenFileInfo info, std::string model = {}, bool either_split = false);
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;
  ~TokenFileWriter() override;

  void add(Split split, std::span<const std::int32_t> ids) override;
  void finish() override;

  [[nodiscard]] std::int64_t tokens() const noexcept { return info_.train_tokens + info_.validation_tokens; }
  /// How often each id is in the training split.
  [[nodiscard]] std::span<const std::int64_t> frequencies() const noexcept { return frequencies_; }

 private:
  struct Output;
  std::filesystem::path path_;
  TokenFileInfo info_;
  std::string model_;
  bool either_split_;
  std::vector<std::int64_t> frequencies_;
  std::unique_ptr<Output> output_;
};

/// A folder of shards. A document goes to one shard; a shard is full when the next document would make it longer than
/// `shard_tokens`. Throws Error(input) when the folder exists already.
class TokenShardWriter final : public TokenWriter {
 public:
  TokenShardWriter(std::filesystem::path folder, TokenFileInfo info, std::string model, std::int64_t shard_tokens);
  TokenShardWriter(const TokenShardWriter&) = delete;
  TokenShardWriter& operator=(const TokenShardWriter&) = delete;
  ~TokenShardWriter() override;

  void add(Split split, std::span<const std::int32_t> ids) override;
  void finish() override;

 private:
  void close_shard();

  std::filesystem::path folder_, temporary_;
  TokenFileInfo info_;
  std::string model_;
  std::int64_t shard_tokens_;
  std::vector<std::filesystem::path> shards_;
  std::unique_ptr<TokenFileWriter> shard_;
  std::vector<std::int64_t> frequencies_;
};

}  // namespace scape
