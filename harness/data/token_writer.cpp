#include "data/token_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "data/token_format.hpp"
#include "data/token_set.hpp"
#include "io/file.hpp"

namespace scape {
namespace {

namespace fs = std::filesystem;

struct CloseFile {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

File create(const fs::path& path) {
  File file(std::fopen(path.c_str(), "w+b"));
  if (!file) fail(path, "cannot be written: {}", reason(errno));
  return file;
}

// A file without a name: it is gone when it is closed, however the process ends.
File create_nameless(const fs::path& path) {
  File file = create(path);
  if (::unlink(path.c_str()) != 0) fail(path, "cannot be removed: {}", reason(errno));
  return file;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

// The training tokens go straight to their place; what follows them in the file waits in nameless files.
struct TokenFileWriter::Output {
  explicit Output(const fs::path& final_path) : temporary(final_path.string() + fmt::format(".partial-{}", ::getpid())) {
    for (auto* side : {&validation, &train_ends, &validation_ends}) *side = create_nameless(temporary);
    file = create(temporary);
    const TokenHeader blank{};
    put(file, &blank, sizeof blank);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (file) ::unlink(temporary.c_str());
  }

  void put(const File& to, const void* data, std::size_t bytes) const {
    if (std::fwrite(data, 1, bytes, to.get()) != bytes) fail(temporary, "cannot be written: {}", reason(errno));
  }
  // Copies a side file to the end. Returns its CRC-32, continued from `crc`.
  std::uint32_t append(const File& side, std::uint32_t crc) {
    std::vector<char> chunk(std::size_t{1} << 16);
    if (std::fflush(side.get()) != 0) fail(temporary, "cannot be written: {}", reason(errno));
    std::rewind(side.get());
    while (const auto bytes = std::fread(chunk.data(), 1, chunk.size(), side.get())) {
      put(file, chunk.data(), bytes);
      crc = crc32_of(crc, chunk.data(), bytes);
    }
    if (std::ferror(side.get()) != 0) fail(temporary, "cannot be read: {}", reason(errno));
    return crc;
  }

  fs::path temporary;
  File file, validation, train_ends, validation_ends;
  std::array<std::uint32_t, 2> token_crc{};
  std::vector<std::byte> encoded;
};

TokenFileWriter::TokenFileWriter(fs::path path, TokenFileInfo info, std::string model, bool either_split)
    : path_(std::move(path)), info_(std::move(info)), model_(std::move(model)), either_split_(either_split) {
  const int width = info_.token_bytes;
  require(width == 1 || width == 2 || width == 4, ErrorKind::usage, "TokenFileWriter: the token width must be 1, 2 or 4 bytes");
  require(info_.vocabulary >= 1 && info_.vocabulary <= std::min(std::int64_t{1} << (8 * width), (std::int64_t{1} << 31) - 1),
          ErrorKind::usage, "TokenFileWriter: the vocabulary does not fit the token width");
  require((info_.tokenizer == TokenizerKind::sentencepiece) == !model_.empty(), ErrorKind::usage,
          "TokenFileWriter: a SentencePiece tokenizer comes with its model, another with none");
  if (fs::is_directory(path_)) fail(path_, "is a folder, expected the name of the file to write");
  info_.train_tokens = info_.validation_tokens = info_.train_documents = info_.validation_documents = 0;
  info_.source.resize(std::min(info_.source.size(), TokenHeader{}.source.size() - 1));
  frequencies_.resize(static_cast<std::size_t>(info_.vocabulary));
  output_ = std::make_unique<Output>(path_);
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::add(Split split, std::span<const std::int32_t> ids) {
  if (ids.empty()) return;
  const bool train = split == Split::train;
  const auto width = static_cast<std::size_t>(info_.token_bytes);
  output_->encoded.resize(ids.size() * width);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= info_.vocabulary) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: token id {} outside the vocabulary of {}", path_.string(), ids[i], info_.vocabulary));
    }
    std::memcpy(&output_->encoded[i * width], &ids[i], width);
  }
  output_->put(train ? output_->file : output_->validation, output_->encoded.data(), output_->encoded.size());
  auto& crc = output_->token_crc[static_cast<std::size_t>(split)];
  crc = crc32_of(crc, ids.data(), ids.size_bytes());
  if (train) {
    for (const auto id : ids) ++frequencies_[static_cast<std::size_t>(id)];
  }
  auto& tokens = train ? info_.train_tokens : info_.validation_tokens;
  tokens += std::ssize(ids);
  ++(train ? info_.train_documents : info_.validation_documents);
  output_->put(train ? output_->train_ends : output_->validation_ends, &tokens, sizeof tokens);
}

void TokenFileWriter::finish() {
  if (info_.train_tokens == 0 && !either_split_) fail(path_, "no text is left for the training split");
  if (info_.validation_tokens == 0 && !either_split_) fail(path_, "no text is left for the validation split");

  output_->append(output_->validation, 0);
  const std::int64_t token_area = tokens() * info_.token_bytes;
  const std::array<std::byte, 8> zeros{};
  output_->put(output_->file, zeros.data(), static_cast<std::size_t>(padded(token_area) - token_area));
  const auto document_crc = output_->append(output_->validation_ends, output_->append(output_->train_ends, 0));
  output_->put(output_->file, model_.data(), model_.size());

  TokenHeader header{.magic = token_magic,
                     .version = token_version,
                     .token_bytes = static_cast<std::uint32_t>(info_.token_bytes),
                     .vocabulary = info_.vocabulary,
                     .tokens = {info_.train_tokens, info_.validation_tokens},
                     .documents = {info_.train_documents, info_.validation_documents},
                     .seed = info_.seed,
                     .unigram_entropy = unigram_entropy(frequencies_),
                     .token_crc = output_->token_crc,
                     .document_crc = document_crc,
                     .model_crc = crc32_of(0, model_.data(), model_.size()),
                     .model_bytes = std::ssize(model_),
                     .tokenizer = static_cast<std::uint32_t>(info_.tokenizer),
                     .end_token = info_.end_token,
                     .reserved = 0,
                     .header_crc = 0,
                     .source = {}};
  info_.source.copy(header.source.data(), header.source.size() - 1);
  header.header_crc = header_crc_of(header);
  std::rewind(output_->file.get());
  output_->put(output_->file, &header, sizeof header);
  if (std::fflush(output_->file.get()) != 0 || ::fsync(::fileno(output_->file.get())) != 0) {
    fail(output_->temporary, "cannot be written: {}", reason(errno));
  }
  if (std::rename(output_->temporary.c_str(), path_.c_str()) != 0) fail(path_, "cannot be written: {}", reason(errno));
  output_->file.reset();
  sync_folder(folder_of(path_));
}

TokenShardWriter::TokenShardWriter(fs::path folder, TokenFileInfo info, std::string model, std::int64_t shard_tokens)
    : folder_(std::move(folder)), info_(std::move(info)), model_(std::move(model)), shard_tokens_(shard_tokens) {
  require(shard_tokens >= 1, ErrorKind::usage, "a shard must have room for at least one token");
  if (!folder_.has_filename()) folder_ = folder_.parent_path();  // "name/"
  if (fs::exists(folder_) && !(fs::is_directory(folder_) && fs::is_empty(folder_))) {
    fail(folder_, "exists already: shards go to a new or empty folder");
  }
  temporary_ = folder_.string() + fmt::format(".partial-{}", ::getpid());
  std::error_code error;
  fs::create_directory(temporary_, error);
  if (error) fail(temporary_, "cannot be written: {}", error.message());
  frequencies_.resize(static_cast<std::size_t>(info_.vocabulary));
}

TokenShardWriter::~TokenShardWriter() {
  shard_.reset();
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void TokenShardWriter::add(Split split, std::span<const std::int32_t> ids) {
  if (shard_ && shard_->tokens() + std::ssize(ids) > shard_tokens_) close_shard();
  if (!shard_) {
    shards_.push_back(temporary_ / fmt::format("tokens-{:05}.bin", shards_.size()));
    shard_ = std::make_unique<TokenFileWriter>(shards_.back(), info_, model_, true);
  }
  shard_->add(split, ids);
}

void TokenShardWriter::close_shard() {
  if (!shard_) return;
  shard_->finish();
  const auto counts = shard_->frequencies();
  std::transform(counts.begin(), counts.end(), frequencies_.begin(), frequencies_.begin(), std::plus<>());
  shard_.reset();
}

void TokenShardWriter::finish() {
  close_shard();
  TokenSet set;
  for (const auto& shard : shards_) set.add(TokenArray::open(shard), Split::train);
  if (set.splits[0].empty()) fail(folder_, "no text is left for the training split");
  if (set.splits[1].empty()) fail(folder_, "no text is left for the validation split");
  set.unigram_entropy = unigram_entropy(frequencies_);
  write_token_set(set, temporary_ / "tokens.toml");
  sync_folder(temporary_);
  // rename() would put an empty folder of this name out of the way, but nothing that holds a file.
  if (std::rename(temporary_.c_str(), folder_.c_str()) != 0) fail(folder_, "cannot be written: {}", reason(errno));
  temporary_.clear();
  sync_folder(folder_of(folder_));
}

}  // namespace scape
