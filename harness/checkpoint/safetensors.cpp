// Reading and writing safetensors.
#include "checkpoint/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include "scape/error.hpp"

namespace scape {

namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian and mapped as they are");

constexpr std::int64_t most_header_bytes = 100'000'000;  // the format's own limit

// Bytes of one element, 0 for a type that is not known.
std::int64_t element_bytes(std::string_view dtype) {
  if (dtype == "BOOL") return 1;
  const auto digits = dtype.find_first_of("0123456789");
  if (digits == std::string_view::npos) return 0;
  const std::string_view bits = dtype.substr(digits, dtype.find('_') - digits);
  return bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
}

// A file being written, summed up on the way, and removed unless it was completed.
class Output {
 public:
  explicit Output(const fs::path& path) : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (file_ < 0) fail(path, "cannot be written: {}", reason(errno));
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (file_ < 0) return;
    ::close(file_);
    ::unlink(path_.c_str());
  }
  void write(const void* data, std::size_t bytes) {
    summary_.crc = crc32_of(summary_.crc, data, bytes);
    summary_.bytes += static_cast<std::int64_t>(bytes);
    for (const char* next = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t written = ::write(file_, next, std::min(bytes, std::size_t{1} << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(path_, "cannot be written: {}", reason(errno));
      next += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }
  FileSummary finish() {
    if (::fsync(file_) != 0) fail(path_, "cannot be written: {}", reason(errno));
    const int closed = ::close(std::exchange(file_, -1));
    if (closed != 0) fail(path_, "cannot be written: {}", reason(errno));
    return summary_;
  }

 private:
  fs::path path_;
  int file_;
  FileSummary summary_;
};

std::int64_t elements(const fs::path& path, const StoredTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) fail(path, "the shape of '{}' cannot be meant", tensor.name);
  }
  return count;
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string safetensors_dtype(DType type) {
  switch (type) {
    case DType::f32:
      return "F32";
    case DType::f64:
      return "F64";
    case DType::i8:
      return "I8";
    case DType::u8:
      return "U8";
    case DType::u16:
      return "U16";
    case DType::i32:
      return "I32";
    case DType::u32:
      return "U32";
    case DType::i64:
      return "I64";
    case DType::u64:
      return "U64";
  }
  throw Error(ErrorKind::internal, "safetensors: unknown element type");
}

FileSummary write_safetensors(const fs::path& path, std::span<const StoredTensor> tensors, const Metadata& metadata) {
  std::string header = "{\"__metadata__\":{";
  const char* separator = "";
  for (const auto& [key, text] : metadata) {
    header += separator + json_string(key) + ":" + json_string(text);
    separator = ",";
  }
  header += "}";
  std::int64_t offset = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto bytes = static_cast<std::int64_t>(tensor.bytes.size());
    require(elements(path, tensor) * element_bytes(tensor.dtype) == bytes, ErrorKind::internal,
            "write_safetensors: a tensor's bytes do not fit its shape");
    header += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", json_string(tensor.name),
                          tensor.dtype, fmt::join(tensor.shape, ","), offset, offset + bytes);
    offset += bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  const std::uint64_t length = header.size();

  Output output(path);
  output.write(&length, sizeof length);
  output.write(header.data(), header.size());
  for (const StoredTensor& tensor : tensors) output.write(tensor.bytes.data(), tensor.bytes.size());
  return output.finish();
}

SafetensorsFile SafetensorsFile::open(const fs::path& path) {
  SafetensorsFile file{MappedFile(path)};
  const std::int64_t size = file.mapping_.size();
  constexpr std::int64_t prefix = sizeof(std::uint64_t);
  if (size < prefix) fail(path, "is no safetensors file: it has {} bytes", size);
  const auto length = file.mapping_.at<std::uint64_t>(0);
  if (length > most_header_bytes || static_cast<std::int64_t>(length) > size - prefix) {
    fail(path, "is no safetensors file or is cut short: a header of {} bytes, {} bytes in all", length, size);
  }
  const std::string_view header(reinterpret_cast<const char*>(file.mapping_.data()) + prefix, length);
  const std::byte* data = file.mapping_.data() + prefix + length;
  const std::int64_t data_bytes = size - prefix - static_cast<std::int64_t>(length);

  std::vector<std::pair<std::int64_t, std::int64_t>> extents;
  try {
    simdjson::dom::parser parser;
    const simdjson::dom::object root = parser.parse(header.data(), header.size());
    for (const auto& [key, value] : root) {
      const std::string name(key);
      if (name == "__metadata__") {
        for (const auto& [entry, text] : simdjson::dom::object(value)) {
          file.metadata_[std::string(entry)] = std::string(std::string_view(text));
        }
        continue;
      }
      StoredTensor tensor{.name = name, .dtype = std::string(std::string_view(value["dtype"])), .shape = {}, .bytes = {}};
      for (const simdjson::dom::element side : simdjson::dom::array(value["shape"])) tensor.shape.push_back(std::int64_t(side));
      const std::int64_t begin = value["data_offsets"].at(0);
      const std::int64_t end = value["data_offsets"].at(1);
      if (begin < 0 || end < begin || end > data_bytes) {
        fail(path, "the bytes [{}, {}) of '{}' are not in the file, which has {} bytes of tensors", begin, end, name, data_bytes);
      }
      const std::int64_t width = element_bytes(tensor.dtype);
      if (width == 0) fail(path, "'{}' has the unknown type '{}'", name, tensor.dtype);
      const std::int64_t count = elements(path, tensor);
      if (count > std::numeric_limits<std::int64_t>::max() / width || count * width != end - begin) {
        fail(path, "'{}' has {} bytes, its shape and type want {} elements of {}", name, end - begin, count, width);
      }
      tensor.bytes = {data + begin, static_cast<std::size_t>(end - begin)};
      extents.emplace_back(begin, end);
      file.tensors_.push_back(std::move(tensor));
    }
  } catch (const simdjson::simdjson_error& error) {
    fail(path, "the header of this safetensors file cannot be read: {}", error.what());
  }
  std::ranges::sort(extents);
  std::int64_t reached = 0;
  for (const auto& [begin, end] : extents) {
    if (begin != reached) fail(path, "tensors overlap or leave a gap at byte {} of their data", std::min(begin, reached));
    reached = end;
  }
  if (reached != data_bytes) fail(path, "{} bytes behind the last tensor belong to none", data_bytes - reached);
  return file;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &StoredTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

FileSummary SafetensorsFile::summary() const {
  return {mapping_.size(), crc32_of(0, mapping_.data(), static_cast<std::size_t>(mapping_.size()))};
}

}  // namespace scape
