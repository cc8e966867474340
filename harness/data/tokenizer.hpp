// Text to token ids and back: the bytes of the text (vocabulary 256), or a SentencePiece model (Kudo & Richardson, "SentencePiece:
// a simple and language independent subword tokenizer and detokenizer", arXiv 1808.06226), the form of Llama's tokenizer.
// Which one made a token file is written in that file, the model included, so that a file can always be read as text again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace scape {

class TokenFile;

enum class TokenizerKind : std::uint32_t { unknown = 0, bytes = 1, sentencepiece = 2 };

/// Cheap to copy; all members may be called from several threads at once.
class Tokenizer {
 public:
  /// The bytes of the text.
  Tokenizer() = default;
  /// What `name` says: "bytes", "sentencepiece:MODEL" or the path MODEL. Throws Error(input), naming the file, when it is no model.
  explicit Tokenizer(const std::string& name);
  /// The file that such a name means; empty for "bytes".
  [[nodiscard]] static std::filesystem::path model_file(const std::string& name);
  /// The tokenizer that made these tokens. Throws Error(input) when the file does not say which it was.
  explicit Tokenizer(const TokenFile& file);

  [[nodiscard]] TokenizerKind kind() const noexcept { return model_ ? TokenizerKind::sentencepiece : TokenizerKind::bytes; }
  /// Every id is in [0, vocabulary()).
  [[nodiscard]] std::int64_t vocabulary() const noexcept { return vocabulary_; }
  /// The id behind every document of a token file; −1 when there is none (bytes, or a model without an end symbol).
  [[nodiscard]] std::int32_t end_token() const noexcept { return end_token_; }
  /// The SentencePiece model, as its file has it; empty for bytes.
  [[nodiscard]] std::string_view model() const noexcept;
  /// CRC-32 of model(); 0 for bytes.
  [[nodiscard]] std::uint32_t checksum() const noexcept { return checksum_; }
  /// "bytes", or "SentencePiece model 0123abcd, vocabulary 32000, end of document 2".
  [[nodiscard]] std::string description() const;

  /// The ids of a text, without an end token.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;
  /// The text of the ids; symbols that stand for no text (begin, end, padding) give none. Throws Error(usage) for an id outside
  /// the vocabulary.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const;

 private:
  void load(std::string model, const std::string& origin);

  std::shared_ptr<const std::string> model_;
  std::shared_ptr<const sentencepiece::SentencePieceProcessor> processor_;
  std::int64_t vocabulary_ = 256;
  std::int32_t end_token_ = -1;
  std::uint32_t checksum_ = 0;
};

}  // namespace scape
