#include "data/text_source.hpp"

#include <simdjson.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <system_error>
#include <vector>

#include "io/file.hpp"

namespace scape {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t chunk_bytes = std::size_t{1} << 18;

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(fs::path path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "rb")) {
    if (!file_) fail(path_, "cannot be read: {}", reason(errno));
  }
  [[nodiscard]] std::size_t read(char* to, std::size_t count) override {
    const auto got = std::fread(to, 1, count, file_.get());
    if (std::ferror(file_.get()) != 0) fail(path_, "byte {}: cannot be read: {}", position_, reason(errno));
    position_ += static_cast<std::int64_t>(got);
    return got;
  }
  [[nodiscard]] std::int64_t position() const override { return position_; }
  [[nodiscard]] bool compressed() const override { return false; }
  [[nodiscard]] const fs::path& path() const { return path_; }
  /// The first bytes, up to four; only before anything is read.
  [[nodiscard]] std::string_view magic() {
    magic_size_ = std::fread(magic_.data(), 1, magic_.size(), file_.get());
    std::rewind(file_.get());
    return {magic_.data(), magic_size_};
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  fs::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::int64_t position_ = 0;
  std::array<char, 4> magic_{};
  std::size_t magic_size_ = 0;
};

// Compressed bytes through a buffer; Codec::decode turns some of them into text. Both formats allow several streams in a row.
template <class Codec>
class CompressedSource final : public ByteSource {
 public:
  explicit CompressedSource(std::unique_ptr<PlainSource> file) : file_(std::move(file)), buffer_(chunk_bytes) {}

  [[nodiscard]] std::size_t read(char* to, std::size_t count) override {
    std::size_t done = 0;
    while (done < count) {
      if (begin_ == end_ && !at_end_) {
        begin_ = 0;
        end_ = file_->read(buffer_.data(), buffer_.size());
        at_end_ = end_ < buffer_.size();
      }
      std::size_t taken = end_ - begin_, made = count - done;
      const char* fault = codec_.decode(buffer_.data() + begin_, taken, to + done, made);
      begin_ += taken;
      done += made;
      if (fault != nullptr) fail(file_->path(), "byte {}: damaged {} data: {}", position(), Codec::name, fault);
      if (taken == 0 && made == 0 && begin_ == end_ && at_end_) {
        if (!codec_.between_streams()) fail(file_->path(), "truncated at byte {}: the {} data go on", position(), Codec::name);
        break;
      }
    }
    return done;
  }
  [[nodiscard]] std::int64_t position() const override { return file_->position() - static_cast<std::int64_t>(end_ - begin_); }
  [[nodiscard]] bool compressed() const override { return true; }

 private:
  std::unique_ptr<PlainSource> file_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what of the buffer is still to be decoded
  bool at_end_ = false;              // of the file
  Codec codec_;
};

// decode() gets sizes and returns in them how much was taken and made; its result says what is wrong, or is null.
class Gzip {
 public:
  static constexpr const char* name = "gzip";
  Gzip() { require(inflateInit2(&stream_, 15 + 16) == Z_OK, ErrorKind::internal, "zlib cannot be initialised"); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() { inflateEnd(&stream_); }

  const char* decode(const char* from, std::size_t& taken, char* to, std::size_t& made) {
    if (taken > 0 && between_streams_) {
      inflateReset(&stream_);
      between_streams_ = false;
    }
    const auto room = static_cast<uInt>(std::min<std::size_t>(made, std::numeric_limits<uInt>::max()));
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(from));
    stream_.avail_in = static_cast<uInt>(taken);
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = room;
    const int status = between_streams_ ? Z_OK : inflate(&stream_, Z_NO_FLUSH);
    taken -= stream_.avail_in;
    made = room - stream_.avail_out;
    if (status == Z_STREAM_END) between_streams_ = true;
    if (status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR) return nullptr;
    return stream_.msg != nullptr ? stream_.msg : zError(status);
  }
  [[nodiscard]] bool between_streams() const { return between_streams_; }

 private:
  z_stream stream_{};
  bool between_streams_ = false;
};

class Zstd {
 public:
  static constexpr const char* name = "zstd";
  Zstd() { ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound); }

  const char* decode(const char* from, std::size_t& taken, char* to, std::size_t& made) {
    ZSTD_inBuffer in{from, taken, 0};
    ZSTD_outBuffer out{to, made, 0};
    const bool idle = between_streams_ && taken == 0;
    const auto status = idle ? 0 : ZSTD_decompressStream(context_.get(), &out, &in);
    taken = in.pos;
    made = out.pos;
    if (ZSTD_isError(status) != 0) return ZSTD_getErrorName(status);
    between_streams_ = status == 0;
    return nullptr;
  }
  [[nodiscard]] bool between_streams() const { return between_streams_; }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const noexcept { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> context_{ZSTD_createDCtx()};
  bool between_streams_ = false;
};

// Where to cut a text that is too long.
std::size_t cut_position(std::string_view text) {
  for (const std::string_view end : {"\n\n", "\n\r\n", "\n"}) {
    const auto found = text.rfind(end);
    if (found != std::string_view::npos && found >= text.size() / 2) return found + end.size();
  }
  return text.size();
}

// Up to `count` more bytes at the end of `text`. Returns whether there were as many.
bool append(ByteSource& source, std::string& text, std::size_t count) {
  const std::size_t old = text.size();
  text.resize(old + count);
  const auto got = source.read(text.data() + old, count);
  text.resize(old + got);
  return got == count;
}

}  // namespace

std::unique_ptr<ByteSource> ByteSource::open(const fs::path& path) {
  auto file = std::make_unique<PlainSource>(path);
  const auto magic = file->magic();
  if (magic.starts_with("\x1f\x8b")) return std::make_unique<CompressedSource<Gzip>>(std::move(file));
  if (magic == "\x28\xb5\x2f\xfd") return std::make_unique<CompressedSource<Zstd>>(std::move(file));
  return file;
}

bool is_json_lines(const fs::path& path) {
  const bool packed = path.extension() == ".gz" || path.extension() == ".zst";
  return (packed ? path.stem() : path).extension() == ".jsonl";
}

void for_each_piece(const fs::path& path, std::int64_t longest, const DocumentSink& sink) {
  const auto source = ByteSource::open(path);
  const auto limit = static_cast<std::size_t>(longest);
  std::string text;
  while (append(*source, text, limit + 1 - text.size())) {
    const auto cut = cut_position(std::string_view(text).substr(0, limit));
    sink(text.substr(0, cut), source->position());
    text.erase(0, cut);
  }
  if (!text.empty()) sink(std::move(text), source->position());
}

void for_each_line(const fs::path& path, const LineSink& sink) {
  const auto source = ByteSource::open(path);
  std::int64_t line = 0;
  const auto take = [&](std::string_view text) {
    if (++line == 1 && text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark, as Windows writes it
    if (text.find_first_not_of(" \t\r") != std::string_view::npos) sink(text, line, source->position());
  };
  std::string buffer;
  std::size_t searched = 0;  // no line ends before
  for (bool more = true; more;) {
    more = append(*source, buffer, chunk_bytes);
    const std::size_t size = buffer.size();
    buffer.append(simdjson::SIMDJSON_PADDING, '\0');
    std::size_t begin = 0;
    const std::string_view bytes = std::string_view(buffer).substr(0, size);
    for (auto end = bytes.find('\n', searched); end != std::string_view::npos; end = bytes.find('\n', begin)) {
      take(bytes.substr(begin, end - begin));
      begin = end + 1;
    }
    if (!more && begin < size) take(bytes.substr(begin));
    buffer.resize(size);
    buffer.erase(0, begin);
    searched = buffer.size();
  }
}

void for_each_line(const fs::path& path, const std::string& field, const DocumentSink& sink) {
  simdjson::dom::parser parser;
  for_each_line(path, [&](std::string_view text, std::int64_t line, std::int64_t position) {
    simdjson::dom::element element;
    if (const auto error = parser.parse(text.data(), text.size(), false).get(element)) {
      fail(path, "line {}: damaged JSON: {}", line, simdjson::error_message(error));
    }
    simdjson::dom::object object;
    if (element.get(object) != simdjson::SUCCESS) fail(path, "line {}: not a JSON object", line);
    simdjson::dom::element value;
    if (object.at_key(field).get(value) != simdjson::SUCCESS) fail(path, "line {}: no field '{}'", line, field);
    std::string_view found;
    if (value.get(found) != simdjson::SUCCESS) fail(path, "line {}: field '{}' is not text", line, field);
    sink(std::string(found), position);
  });
}

}  // namespace scape
