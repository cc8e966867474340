#include "data/token_array.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace scape {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t widest_vocabulary = std::int64_t{1} << 31;
constexpr std::int64_t count_limit = std::int64_t{1} << 56;  // sizes below it cannot overflow

template <class Id>
std::int64_t widen(const std::byte* from, std::uint32_t limit, std::span<std::int32_t> ids) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Id id;
    std::memcpy(&id, from + i * sizeof id, sizeof id);
    ids[i] = static_cast<std::int32_t>(id);
    largest = std::max<std::uint32_t>(largest, id);
  }
  if (largest < limit) return std::ssize(ids);
  return std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return static_cast<std::uint32_t>(id) >= limit; }) -
         ids.begin();
}

// `what` says it with {} for the value found at the byte.
template <class Value>
void require_at_byte(const MappedFile& file, std::int64_t byte, bool right, Value found, const char* what) {
  if (!right) fail(file.path(), "byte {}: {}", byte, fmt::format(fmt::runtime(what), found));
}

void require_size(const MappedFile& file, std::int64_t expected) {
  if (file.size() < expected) fail(file.path(), "truncated at byte {}: expected {} bytes", file.size(), expected);
  if (file.size() > expected) fail(file.path(), "{} bytes too many from byte {} on", file.size() - expected, expected);
}

// The suite's own format.
class ScapeArray final : public TokenArray {
 public:
  explicit ScapeArray(MappedFile opened) : TokenArray(std::move(opened)) {
    if (file.size() < token_header_bytes) {
      fail(file.path(), "truncated at byte {}: the header alone has {} bytes", file.size(), token_header_bytes);
    }
    header_ = file.at<TokenHeader>(0);
    const auto check = [&](std::size_t byte, bool right, auto found, const char* what) {
      require_at_byte(file, static_cast<std::int64_t>(byte), right, found, what);
    };
    if (header_.version != token_version) {
      fail(file.path(), "byte {}: version {}, this program reads version {}", offsetof(TokenHeader, version), header_.version,
           token_version);
    }
    if (header_.header_crc != header_crc_of(header_)) {
      fail(file.path(), "bytes 0 to {}: the header is damaged: checksum {:08x}, expected {:08x}", token_header_bytes,
           header_crc_of(header_), header_.header_crc);
    }
    const auto width = header_.token_bytes;
    check(offsetof(TokenHeader, token_bytes), width == 1 || width == 2 || width == 4, width, "token width {}, expected 1, 2 or 4");
    check(offsetof(TokenHeader, vocabulary), header_.vocabulary >= 1 && header_.vocabulary < widest_vocabulary, header_.vocabulary,
          "vocabulary size {} outside [1, 2^31)");
    for (const std::size_t split : {0U, 1U}) {
      const auto count = header_.tokens[split];
      const auto ends = header_.documents[split];
      check(offsetof(TokenHeader, tokens) + 8 * split, count >= 0 && count <= count_limit, count, "{} tokens");
      check(offsetof(TokenHeader, documents) + 8 * split, ends >= 0 && ends <= count && (ends > 0) == (count > 0), ends,
            "{} documents");
    }
    tokens = header_.tokens[0] + header_.tokens[1];
    documents = header_.documents[0] + header_.documents[1];
    check(offsetof(TokenHeader, tokens), tokens > 0, tokens, "{} tokens");
    check(offsetof(TokenHeader, model_bytes), header_.model_bytes >= 0 && header_.model_bytes < widest_vocabulary,
          header_.model_bytes, "a tokenizer's model of {} bytes");
    const bool has_model = header_.tokenizer == static_cast<std::uint32_t>(TokenizerKind::sentencepiece);
    check(offsetof(TokenHeader, tokenizer),
          (has_model || header_.tokenizer == static_cast<std::uint32_t>(TokenizerKind::bytes)) &&
              has_model == (header_.model_bytes > 0),
          header_.tokenizer, "tokenizer {}, expected 1 (bytes, without a model) or 2 (SentencePiece, with its model)");
    check(offsetof(TokenHeader, end_token), header_.end_token >= -1 && header_.end_token < header_.vocabulary, header_.end_token,
          "end token {} outside the vocabulary");
    first_byte = token_header_bytes;
    token_bytes = static_cast<int>(width);
    vocabulary = header_.vocabulary;
    format = "SCAPE";
    own = &header_;
    ends_at_ = first_byte + padded(tokens * token_bytes);
    model_at_ = ends_at_ + 8 * documents;
    require_size(file, model_at_ + header_.model_bytes);
    if (const auto crc = crc32_of(0, tokenizer_model().data(), tokenizer_model().size()); crc != header_.model_crc) {
      fail(file.path(), "bytes {} to {}: the tokenizer's model is damaged: checksum {:08x}, expected {:08x}", model_at_,
           file.size(), crc, header_.model_crc);
    }
    for (const std::size_t split : {0U, 1U}) {
      if (header_.tokens[split] > 0) check_end(split, header_.documents[split] - 1, header_.tokens[split] - 1);
    }
  }

  [[nodiscard]] std::vector<std::int64_t> document_ends() const override {
    const std::int64_t tokens_end = first_byte + tokens * token_bytes;
    for (std::int64_t byte = tokens_end; byte < ends_at_; ++byte) {
      require_at_byte(file, byte, file.at<char>(byte) == 0, int{file.at<char>(byte)},
                      "{} between tokens and documents, expected zero");
    }
    const auto crc = crc32_of(0, file.data() + ends_at_, static_cast<std::size_t>(8 * documents));
    if (crc != header_.document_crc) {
      fail(file.path(), "bytes {} to {}: the document ends are damaged: checksum {:08x}, expected {:08x}", ends_at_, model_at_, crc,
           header_.document_crc);
    }
    std::vector<std::int64_t> ends;
    ends.reserve(static_cast<std::size_t>(documents));
    for (const std::size_t split : {0U, 1U}) {
      std::int64_t previous = 0;
      for (std::int64_t i = 0; i < header_.documents[split]; ++i) {
        previous = check_end(split, i, previous);
        ends.push_back(previous + (split == 1 ? header_.tokens[0] : 0));
      }
    }
    return ends;
  }

  [[nodiscard]] std::string_view tokenizer_model() const override {
    return {reinterpret_cast<const char*>(file.data() + model_at_), static_cast<std::size_t>(header_.model_bytes)};
  }

 private:
  // The end of document `index` of a split, which must lie behind the one before; the last ends with the split.
  std::int64_t check_end(std::size_t split, std::int64_t index, std::int64_t previous) const {
    const std::int64_t byte = ends_at_ + 8 * (index + (split == 1 ? header_.documents[0] : 0));
    const auto end = file.at<std::int64_t>(byte);
    const bool last = index == header_.documents[split] - 1;
    if (end <= previous || (last ? end != header_.tokens[split] : end >= header_.tokens[split])) {
      fail(file.path(), "byte {}: a {} document ends at token {}, out of order", byte, to_string(static_cast<Split>(split)), end);
    }
    return end;
  }

  TokenHeader header_{};
  std::int64_t ends_at_ = 0;
  std::int64_t model_at_ = 0;
};

class LlmcArray final : public TokenArray {
 public:
  struct Form {
    std::int32_t magic, version;
    int token_bytes;
    std::int64_t vocabulary;
    const char* name;
  };
  static constexpr std::array<Form, 2> forms{{{20240520, 1, 2, 50257, "llm.c GPT-2"}, {20240801, 7, 4, 128256, "llm.c Llama 3"}}};
  static constexpr std::int64_t header_bytes = 256 * 4;

  static const Form* recognise(const MappedFile& file) {
    if (file.size() < 4) return nullptr;
    const auto found = std::find_if(forms.begin(), forms.end(), [&](const Form& f) { return f.magic == file.at<std::int32_t>(0); });
    return found == forms.end() ? nullptr : &*found;
  }

  LlmcArray(MappedFile opened, const Form& form, std::int64_t said) : TokenArray(std::move(opened)) {
    if (file.size() < header_bytes)
      fail(file.path(), "truncated at byte {}: the header alone has {} bytes", file.size(), header_bytes);
    if (const auto found = file.at<std::int32_t>(4); found != form.version) {
      fail(file.path(), "byte 4: version {}, this program reads version {} of {}", found, form.version, form.name);
    }
    tokens = file.at<std::int32_t>(8);
    require_at_byte(file, 8, tokens >= 1, tokens, "{} tokens");
    first_byte = header_bytes;
    token_bytes = form.token_bytes;
    vocabulary = said > 0 ? said : form.vocabulary;
    format = form.name;
    require_size(file, header_bytes + tokens * token_bytes);
  }
};

class RawArray final : public TokenArray {
 public:
  RawArray(MappedFile opened, std::int64_t said) : TokenArray(std::move(opened)) {
    vocabulary = said;
    token_bytes = said > 65536 ? 4 : 2;
    tokens = file.size() / token_bytes;
    format = token_bytes == 2 ? "raw uint16" : "raw uint32";
    if (file.size() % token_bytes != 0) {
      fail(file.path(), "truncated at byte {}: {} tokens have {} bytes each", file.size(), format, token_bytes);
    }
  }
};

class MegatronArray final : public TokenArray {
 public:
  static constexpr std::array<char, 9> magic{'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};

  static bool recognise(const MappedFile& file) {
    return file.size() >= std::ssize(magic) && std::memcmp(file.data(), magic.data(), magic.size()) == 0;
  }

  MegatronArray(MappedFile opened, std::int64_t said)
      : TokenArray(MappedFile(fs::path(opened.path()).replace_extension(".bin"))), index_(std::move(opened)) {
    const fs::path& path = index_.path();
    if (index_.size() < lengths_at) fail(path, "truncated at byte {}: the header alone has {} bytes", index_.size(), lengths_at);
    if (const auto version = index_.at<std::uint64_t>(9); version != 1) {
      fail(path, "byte 9: version {}, this program reads version 1", version);
    }
    constexpr std::array<int, 9> widths{0, 1, 0, 0, 4, 0, 0, 0, 2};  // of the types that hold ids
    const auto type = index_.at<std::uint8_t>(17);
    const auto width = type < widths.size() ? widths[type] : 0;
    if (width == 0) fail(path, "byte 17: type {}, expected 1 (uint8), 4 (int32) or 8 (uint16)", type);
    sequences_ = index_.at<std::int64_t>(18);
    boundaries_ = index_.at<std::int64_t>(26);
    require_at_byte(index_, 18, sequences_ >= 1 && sequences_ <= count_limit, sequences_, "{} sequences");
    require_at_byte(index_, 26, boundaries_ >= 2 && boundaries_ <= count_limit, boundaries_,
                    "{} document boundaries, expected 2 or more");
    pointers_at_ = lengths_at + 4 * sequences_;
    boundaries_at_ = pointers_at_ + 8 * sequences_;
    const std::int64_t expected = boundaries_at_ + 8 * boundaries_;
    if (index_.size() == expected + sequences_) fail(path, "byte {}: a mode per sequence: multimodal sets are not text", expected);
    require_size(index_, expected);
    const auto last = sequences_ - 1;
    require_at_byte(index_, pointers_at_, pointer(0) == 0, pointer(0), "the first sequence starts at byte {}, expected 0");
    require_at_byte(index_, boundaries_at_, boundary(0) == 0, boundary(0),
                    "the first document starts with sequence {}, expected 0");
    require_at_byte(index_, boundaries_at_ + 8 * (boundaries_ - 1), boundary(boundaries_ - 1) == sequences_,
                    boundary(boundaries_ - 1), "the last document ends with sequence {}, not with the last one");
    require_at_byte(index_, lengths_at + 4 * last, length(last) >= 0, length(last), "a sequence of {} tokens");
    const std::int64_t bytes = pointer(last) + std::int64_t{length(last)} * width;
    if (bytes != file.size()) {
      fail(path, "byte {}: the last sequence ends at byte {} of {}, which has {} bytes", pointers_at_ + 8 * last, bytes,
           file.path().filename().string(), file.size());
    }
    if (bytes % width != 0) fail(file.path(), "truncated at byte {}: tokens have {} bytes each", bytes, width);
    token_bytes = width;
    tokens = bytes / width;
    documents = boundaries_ - 1;
    vocabulary = said;
    format = "Megatron";
  }

  [[nodiscard]] std::vector<std::int64_t> document_ends() const override {
    std::vector<std::int64_t> ends;
    std::int64_t next = 1;  // boundary to meet
    std::int64_t end = 0;   // of the sequences so far, in tokens
    for (std::int64_t i = 0; i < sequences_; ++i) {
      require_at_byte(index_, pointers_at_ + 8 * i, pointer(i) == end * token_bytes, pointer(i),
                      "a sequence starts at byte {}, not behind the one before");
      require_at_byte(index_, lengths_at + 4 * i, length(i) >= 0, length(i), "a sequence of {} tokens");
      end += length(i);
      while (next < boundaries_ && boundary(next) <= i + 1) {
        require_at_byte(index_, boundaries_at_ + 8 * next, boundary(next) >= boundary(next - 1), boundary(next),
                        "a document starts with sequence {}, out of order");
        if (boundary(next) == i + 1 && end > (ends.empty() ? 0 : ends.back())) ends.push_back(end);
        ++next;
      }
    }
    if (next < boundaries_)
      fail(index_.path(), "byte {}: a document starts with sequence {}, out of order", boundaries_at_ + 8 * next, boundary(next));
    return ends;
  }

 private:
  static constexpr std::int64_t lengths_at = 34;
  [[nodiscard]] std::int32_t length(std::int64_t i) const { return index_.at<std::int32_t>(lengths_at + 4 * i); }
  [[nodiscard]] std::int64_t pointer(std::int64_t i) const { return index_.at<std::int64_t>(pointers_at_ + 8 * i); }
  [[nodiscard]] std::int64_t boundary(std::int64_t i) const { return index_.at<std::int64_t>(boundaries_at_ + 8 * i); }

  MappedFile index_;
  std::int64_t sequences_ = 0;
  std::int64_t boundaries_ = 0;
  std::int64_t pointers_at_ = 0;
  std::int64_t boundaries_at_ = 0;
};

}  // namespace

std::shared_ptr<const TokenArray> TokenArray::open(const fs::path& path, std::int64_t vocabulary) {
  MappedFile file(path);
  const auto start = std::min<std::int64_t>(file.size(), token_magic.size());
  if (std::memcmp(file.data(), token_magic.data(), static_cast<std::size_t>(start)) == 0) {
    return std::make_shared<ScapeArray>(std::move(file));
  }
  if (MegatronArray::recognise(file)) return std::make_shared<MegatronArray>(std::move(file), vocabulary);
  if (const auto* form = LlmcArray::recognise(file)) return std::make_shared<LlmcArray>(std::move(file), *form, vocabulary);
  if (path.extension() == ".idx") fail(path, "byte 0: not an index of Megatron tokens");
  if (path.extension() != ".bin") fail(path, "byte 0: no token file of a known format");
  const fs::path index = fs::path(path).replace_extension(".idx");
  if (fs::exists(index)) return open(index, vocabulary);
  return std::make_shared<RawArray>(std::move(file), vocabulary);
}

std::int64_t widen_tokens(const std::byte* from, int token_bytes, std::int64_t vocabulary, std::span<std::int32_t> ids) {
  const auto limit = static_cast<std::uint32_t>(std::min(vocabulary, widest_vocabulary));
  if (token_bytes == 1) return widen<std::uint8_t>(from, limit, ids);
  if (token_bytes == 2) return widen<std::uint16_t>(from, limit, ids);
  return widen<std::uint32_t>(from, limit, ids);
}

void refuse_token(const fs::path& path, std::int64_t byte, std::int32_t id, std::int64_t vocabulary) {
  fail(path, "byte {}: token id {} is not below the vocabulary size {}", byte, static_cast<std::uint32_t>(id), vocabulary);
}

std::uint32_t check_tokens(const TokenArray& array, std::int64_t begin, std::int64_t count, std::int64_t vocabulary,
                           std::uint32_t crc, std::vector<std::int64_t>* frequencies) {
  std::array<std::int32_t, 8192> chunk;
  for (std::int64_t done = 0; done < count;) {
    const auto ids = std::span(chunk).first(static_cast<std::size_t>(std::min(count - done, std::ssize(chunk))));
    const std::int64_t byte = (begin + done) * array.token_bytes;
    if (const auto i = widen_tokens(array.data() + byte, array.token_bytes, vocabulary, ids); i < std::ssize(ids)) {
      refuse_token(array.file.path(), array.first_byte + byte + i * array.token_bytes, ids[static_cast<std::size_t>(i)],
                   vocabulary);
    }
    crc = crc32_of(crc, ids.data(), ids.size_bytes());
    if (frequencies != nullptr) {
      for (const auto id : ids) ++(*frequencies)[static_cast<std::size_t>(id)];
    }
    done += std::ssize(ids);
  }
  return crc;
}

}  // namespace scape
