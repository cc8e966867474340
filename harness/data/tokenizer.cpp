#include "data/tokenizer.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <zlib.h>

#include "data/token_file.hpp"
#include "io/file.hpp"
#include "scape/error.hpp"

namespace scape {

Tokenizer::Tokenizer(const std::string& name) {
  if (name == "bytes") return;
  const MappedFile file(model_file(name));
  load({reinterpret_cast<const char*>(file.data()), static_cast<std::size_t>(file.size())}, file.path().string());
}

std::filesystem::path Tokenizer::model_file(const std::string& name) {
  constexpr std::string_view prefix = "sentencepiece:";
  if (name == "bytes") return {};
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

Tokenizer::Tokenizer(const TokenFile& file) {
  if (file.info().tokenizer == TokenizerKind::unknown) {
    throw Error(ErrorKind::input,
                file.path().string() + ": does not say which tokenizer made it; `scape data describe` can add it");
  }
  if (file.info().tokenizer == TokenizerKind::sentencepiece) {
    load(std::string(file.tokenizer_model()), file.path().string());
    end_token_ = file.info().end_token;
  }
}

void Tokenizer::load(std::string model, const std::string& origin) {
  auto processor = std::make_shared<sentencepiece::SentencePieceProcessor>();
  if (const auto status = processor->LoadFromSerializedProto(model); !status.ok() || processor->GetPieceSize() < 1) {
    throw Error(ErrorKind::input, origin + ": not a SentencePiece model");
  }
  vocabulary_ = processor->GetPieceSize();
  end_token_ = processor->eos_id();
  checksum_ = crc32_of(0, model.data(), model.size());
  model_ = std::make_shared<const std::string>(std::move(model));
  processor_ = std::move(processor);
}

std::string_view Tokenizer::model() const noexcept {
  return model_ ? std::string_view(*model_) : std::string_view();
}

std::string Tokenizer::description() const {
  if (!model_) return "bytes";
  return fmt::format("SentencePiece model {:08x}, vocabulary {}, {}", checksum_, vocabulary_,
                     end_token_ < 0 ? "no end of document" : fmt::format("end of document {}", end_token_));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  if (!processor_) {
    ids.reserve(text.size());
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  } else if (const auto status = processor_->Encode(text, &ids); !status.ok()) {
    throw Error(ErrorKind::internal, "SentencePiece: " + status.ToString());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  for (const auto id : ids) {
    if (id < 0 || id >= vocabulary_) {
      throw Error(ErrorKind::usage, fmt::format("token id {} outside the tokenizer's vocabulary of {}", id, vocabulary_));
    }
  }
  if (!processor_) return {ids.begin(), ids.end()};
  std::string text;
  if (const auto status = processor_->Decode(std::vector<int>(ids.begin(), ids.end()), &text); !status.ok()) {
    throw Error(ErrorKind::internal, "SentencePiece: " + status.ToString());
  }
  return text;
}

}  // namespace scape
