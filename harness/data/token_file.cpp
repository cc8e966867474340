#include "data/token_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <limits>
#include <system_error>
#include <type_traits>
#include <utility>

#include "scape/error.hpp"

namespace scape {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are little-endian and mapped as they are");

constexpr std::array<char, 8> magic{'S', 'C', 'A', 'P', 'E', 'T', 'O', 'K'};
constexpr std::uint32_t version = 1;

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t token_bytes;
  std::int64_t vocabulary;
  std::array<std::int64_t, 2> tokens;     // by Split
  std::array<std::int64_t, 2> documents;  // by Split
  std::uint64_t seed;
  double unigram_entropy;
  std::uint32_t payload_crc;     // CRC-32 (zlib) of everything behind the header
  std::uint32_t header_crc;      // CRC-32 of the header with zero here
  std::array<char, 176> source;  // zero-terminated
};
static_assert(sizeof(Header) == 256 && std::is_trivially_copyable_v<Header>);
constexpr std::int64_t header_bytes = sizeof(Header);

std::uint32_t crc(std::uint32_t previous, const void* data, std::size_t bytes) {
  return static_cast<std::uint32_t>(crc32_z(previous, static_cast<const unsigned char*>(data), bytes));
}

std::uint32_t header_crc(Header header) {
  header.header_crc = 0;
  return crc(0, &header, sizeof header);
}

std::int64_t padded(std::int64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

std::string system_error_text(int code) {
  return std::generic_category().message(code);
}

template <class... Args>
[[noreturn]] void fail(const fs::path& path, fmt::format_string<Args...> message, Args&&... args) {
  throw Error(ErrorKind::input, fmt::format("{}: {}", path.string(), fmt::format(message, std::forward<Args>(args)...)));
}

// Whether every id of this width is below the vocabulary.
bool width_implies_range(std::int64_t vocabulary, int token_bytes) {
  return vocabulary >= std::int64_t{1} << (8 * token_bytes);
}

template <class Id>
std::int64_t first_outside(const std::byte* data, std::int64_t size, std::int64_t vocabulary) {
  for (std::int64_t i = 0; i < size; ++i) {
    Id id;
    std::memcpy(&id, data + i * static_cast<std::int64_t>(sizeof id), sizeof id);
    if (id >= vocabulary) return i;
  }
  return size;
}

// Index of the first id that is not in the vocabulary; `size` when there is none.
std::int64_t first_outside(const std::byte* data, std::int64_t size, int token_bytes, std::int64_t vocabulary) {
  if (width_implies_range(vocabulary, token_bytes)) return size;
  if (token_bytes == 1) return first_outside<std::uint8_t>(data, size, vocabulary);
  if (token_bytes == 2) return first_outside<std::uint16_t>(data, size, vocabulary);
  return first_outside<std::uint32_t>(data, size, vocabulary);
}

std::uint32_t id_at(const std::byte* data, std::int64_t index, int token_bytes) {
  std::uint32_t id = 0;
  std::memcpy(&id, data + index * token_bytes, static_cast<std::size_t>(token_bytes));
  return id;
}

double entropy(std::span<const std::int64_t> frequencies) {
  double total = 0;
  double sum = 0;
  for (const auto count : frequencies) {
    const auto c = static_cast<double>(count);
    total += c;
    if (count > 0) sum += c * std::log(c);
  }
  return total > 0 ? std::log(total) - sum / total : 0;
}

struct CloseFile {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

File create(const fs::path& path) {
  File file(std::fopen(path.c_str(), "w+b"));
  if (!file) fail(path, "cannot be written: {}", system_error_text(errno));
  return file;
}

// A file without a name: it is gone when it is closed, however the process ends.
File create_nameless(const fs::path& path) {
  File file = create(path);
  if (::unlink(path.c_str()) != 0) fail(path, "cannot be removed: {}", system_error_text(errno));
  return file;
}

}  // namespace

const char* to_string(Split split) {
  return split == Split::train ? "train" : "validation";
}

std::int32_t TokenView::operator[](std::int64_t index) const noexcept {
  return static_cast<std::int32_t>(id_at(data_, index, token_bytes_));
}

void TokenView::read(std::int64_t begin, std::span<std::int32_t> ids) const {
  const auto count = static_cast<std::int64_t>(ids.size());
  require(begin >= 0 && begin <= size_ - count, ErrorKind::internal, "TokenView::read: tokens outside the split");
  for (std::int64_t i = 0; i < count; ++i) ids[static_cast<std::size_t>(i)] = (*this)[begin + i];
}

double unigram_entropy(const TokenView& tokens, std::int64_t vocabulary) {
  std::vector<std::int64_t> frequencies(static_cast<std::size_t>(vocabulary));
  for (std::int64_t i = 0; i < tokens.size(); ++i) ++frequencies.at(static_cast<std::size_t>(tokens[i]));
  return entropy(frequencies);
}

TokenFile TokenFile::open(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "cannot be opened: {}", system_error_text(errno));
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  const auto bytes = static_cast<std::int64_t>(status.st_size);
  void* address = MAP_FAILED;
  if (known && S_ISREG(status.st_mode) && bytes > 0) {
    address = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED, descriptor, 0);
  }
  const int code = errno;
  ::close(descriptor);
  if (known && !S_ISREG(status.st_mode)) fail(path, "is not a file");
  if (known && bytes == 0) fail(path, "is empty (byte 0): not a token file");
  if (address == MAP_FAILED) fail(path, "cannot be mapped: {}", system_error_text(code));

  TokenFile file;
  file.path_ = path;
  file.mapping_ = {static_cast<const std::byte*>(address),
                   [bytes](const std::byte* data) { ::munmap(const_cast<std::byte*>(data), static_cast<std::size_t>(bytes)); }};
  const std::byte* data = file.mapping_.get();

  Header header{};
  std::memcpy(&header, data, static_cast<std::size_t>(std::min(header_bytes, bytes)));
  if (std::memcmp(data, magic.data(), std::min(magic.size(), static_cast<std::size_t>(bytes))) != 0) {
    fail(path, "byte 0: not a token file (made by `scape data prepare`)");
  }
  if (bytes < header_bytes) {
    fail(path, "truncated at byte {}: the header alone has {} bytes", bytes, header_bytes);
  }
  if (header.version != version) {
    fail(path, "byte {}: version {}, this program reads version {}", offsetof(Header, version), header.version, version);
  }
  if (header.header_crc != header_crc(header)) {
    fail(path, "bytes 0 to {}: the header is damaged: checksum {:08x}, expected {:08x}", header_bytes, header_crc(header),
         header.header_crc);
  }
  if (header.token_bytes != 1 && header.token_bytes != 2 && header.token_bytes != 4) {
    fail(path, "byte {}: token width {}, expected 1, 2 or 4", offsetof(Header, token_bytes), header.token_bytes);
  }
  if (header.vocabulary < 1 || header.vocabulary > std::numeric_limits<std::int32_t>::max()) {
    fail(path, "byte {}: vocabulary size {} outside [1, 2^31)", offsetof(Header, vocabulary), header.vocabulary);
  }
  const auto token_bytes = static_cast<int>(header.token_bytes);
  for (const std::size_t split : {0U, 1U}) {
    constexpr std::int64_t limit = std::int64_t{1} << 56;  // the sizes below cannot overflow
    if (header.tokens[split] < 1 || header.tokens[split] > limit) {
      fail(path, "byte {}: {} tokens", offsetof(Header, tokens) + 8 * split, header.tokens[split]);
    }
    if (header.documents[split] < 1 || header.documents[split] > header.tokens[split]) {
      fail(path, "byte {}: {} documents", offsetof(Header, documents) + 8 * split, header.documents[split]);
    }
  }
  const std::int64_t tokens = header.tokens[0] + header.tokens[1];
  const std::int64_t ends_at = header_bytes + padded(tokens * token_bytes);
  const std::int64_t expected = ends_at + 8 * (header.documents[0] + header.documents[1]);
  if (bytes < expected) fail(path, "truncated at byte {}: expected {} bytes", bytes, expected);
  if (bytes > expected) fail(path, "{} bytes too many from byte {} on", bytes - expected, expected);

  const std::uint32_t actual_crc = crc(0, data + header_bytes, static_cast<std::size_t>(bytes - header_bytes));
  if (actual_crc != header.payload_crc) {
    fail(path, "bytes {} to {}: the tokens are damaged: checksum {:08x}, expected {:08x}", header_bytes, bytes, actual_crc,
         header.payload_crc);
  }
  const std::byte* ids = data + header_bytes;
  if (const auto i = first_outside(ids, tokens, token_bytes, header.vocabulary); i < tokens) {
    fail(path, "byte {}: token id {} is not below the vocabulary size {}", header_bytes + i * token_bytes,
         id_at(ids, i, token_bytes), header.vocabulary);
  }
  file.info_ = {.vocabulary = header.vocabulary,
                .token_bytes = token_bytes,
                .train_tokens = header.tokens[0],
                .validation_tokens = header.tokens[1],
                .train_documents = header.documents[0],
                .validation_documents = header.documents[1],
                .seed = header.seed,
                .unigram_entropy = header.unigram_entropy,
                .source = {header.source.data(), strnlen(header.source.data(), header.source.size())}};
  for (const auto split : {Split::train, Split::validation}) {
    const auto ends = file.document_ends(split);
    std::int64_t previous = 0;
    for (const auto& end : ends) {
      const bool last = &end == &ends.back();
      const auto size = header.tokens[static_cast<std::size_t>(split)];
      if (end <= previous || (last ? end != size : end >= size)) {
        fail(path, "byte {}: a {} document ends at token {}, out of order", reinterpret_cast<const std::byte*>(&end) - data,
             to_string(split), end);
      }
      previous = end;
    }
  }
  return file;
}

TokenView TokenFile::tokens(Split split) const {
  const std::byte* data = mapping_.get() + sizeof(Header);
  if (split == Split::train) return {data, info_.train_tokens, info_.token_bytes};
  return {data + info_.train_tokens * info_.token_bytes, info_.validation_tokens, info_.token_bytes};
}

std::span<const std::int64_t> TokenFile::document_ends(Split split) const {
  const std::int64_t tokens = info_.train_tokens + info_.validation_tokens;
  const auto* ends = reinterpret_cast<const std::int64_t*>(mapping_.get() + sizeof(Header) + padded(tokens * info_.token_bytes));
  if (split == Split::train) return {ends, static_cast<std::size_t>(info_.train_documents)};
  return {ends + info_.train_documents, static_cast<std::size_t>(info_.validation_documents)};
}

// The training tokens go straight to their place; what follows them in the file waits in nameless files.
struct TokenFileWriter::Output {
  Output(const fs::path& final_path, int bytes)
      : temporary(final_path.string() + fmt::format(".partial-{}", ::getpid())), token_bytes(bytes) {
    for (auto* side : {&validation, &train_ends, &validation_ends}) *side = create_nameless(temporary);
    file = create(temporary);
    const Header blank{};
    put(file, &blank, sizeof blank);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (file) ::unlink(temporary.c_str());
  }

  void put(const File& to, const void* data, std::size_t bytes) const {
    if (std::fwrite(data, 1, bytes, to.get()) != bytes) fail(temporary, "cannot be written: {}", system_error_text(errno));
  }
  void put_payload(const void* data, std::size_t bytes) {
    put(file, data, bytes);
    payload_crc = crc(payload_crc, data, bytes);
  }
  void append(const File& side) {
    std::vector<char> chunk(std::size_t{1} << 16);
    if (std::fflush(side.get()) != 0) fail(temporary, "cannot be written: {}", system_error_text(errno));
    std::rewind(side.get());
    while (const auto bytes = std::fread(chunk.data(), 1, chunk.size(), side.get())) put_payload(chunk.data(), bytes);
    if (std::ferror(side.get()) != 0) fail(temporary, "cannot be read: {}", system_error_text(errno));
  }

  fs::path temporary;
  int token_bytes;
  File file, validation, train_ends, validation_ends;
  std::uint32_t payload_crc = 0;
  std::vector<std::byte> encoded;
};

TokenFileWriter::TokenFileWriter(fs::path path, TokenFileInfo info) : path_(std::move(path)), info_(std::move(info)) {
  const int width = info_.token_bytes;
  require(width == 1 || width == 2 || width == 4, ErrorKind::usage, "TokenFileWriter: the token width must be 1, 2 or 4 bytes");
  require(info_.vocabulary >= 1 && info_.vocabulary <= std::min(std::int64_t{1} << (8 * width), (std::int64_t{1} << 31) - 1),
          ErrorKind::usage, "TokenFileWriter: the vocabulary does not fit the token width");
  if (fs::is_directory(path_)) fail(path_, "is a folder, expected the name of the file to write");
  info_.train_tokens = info_.validation_tokens = info_.train_documents = info_.validation_documents = 0;
  info_.source.resize(std::min(info_.source.size(), Header{}.source.size() - 1));
  frequencies_.resize(static_cast<std::size_t>(info_.vocabulary));
  output_ = std::make_unique<Output>(path_, width);
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
  if (train) {
    output_->put_payload(output_->encoded.data(), output_->encoded.size());
    for (const auto id : ids) ++frequencies_[static_cast<std::size_t>(id)];
  } else {
    output_->put(output_->validation, output_->encoded.data(), output_->encoded.size());
  }
  auto& tokens = train ? info_.train_tokens : info_.validation_tokens;
  tokens += static_cast<std::int64_t>(ids.size());
  ++(train ? info_.train_documents : info_.validation_documents);
  output_->put(train ? output_->train_ends : output_->validation_ends, &tokens, sizeof tokens);
}

TokenFileInfo TokenFileWriter::finish() {
  if (info_.train_tokens == 0) fail(path_, "no text is left for the training split");
  if (info_.validation_tokens == 0) fail(path_, "no text is left for the validation split");
  info_.unigram_entropy = entropy(frequencies_);

  output_->append(output_->validation);
  const std::int64_t token_area = (info_.train_tokens + info_.validation_tokens) * info_.token_bytes;
  const std::array<std::byte, 8> zeros{};
  output_->put_payload(zeros.data(), static_cast<std::size_t>(padded(token_area) - token_area));
  output_->append(output_->train_ends);
  output_->append(output_->validation_ends);

  Header header{.magic = magic,
                .version = version,
                .token_bytes = static_cast<std::uint32_t>(info_.token_bytes),
                .vocabulary = info_.vocabulary,
                .tokens = {info_.train_tokens, info_.validation_tokens},
                .documents = {info_.train_documents, info_.validation_documents},
                .seed = info_.seed,
                .unigram_entropy = info_.unigram_entropy,
                .payload_crc = output_->payload_crc,
                .header_crc = 0,
                .source = {}};
  info_.source.copy(header.source.data(), header.source.size() - 1);
  header.header_crc = header_crc(header);
  std::rewind(output_->file.get());
  output_->put(output_->file, &header, sizeof header);
  if (std::fflush(output_->file.get()) != 0 || ::fsync(::fileno(output_->file.get())) != 0) {
    fail(output_->temporary, "cannot be written: {}", system_error_text(errno));
  }
  if (std::rename(output_->temporary.c_str(), path_.c_str()) != 0) fail(path_, "cannot be written: {}", system_error_text(errno));
  output_->file.reset();
  return info_;
}

}  // namespace scape
