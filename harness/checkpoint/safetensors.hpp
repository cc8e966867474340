// The safetensors file format: named tensors behind a JSON header. Checkpoints are written in it and models exchanged, so that
// other tools open both. Layout: 8 bytes little-endian header length, the header
//   {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …}
// and the tensors' bytes, row-major, without gaps; offsets count from the end of the header.
// Format: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/file.hpp"
#include "scape/dtype.hpp"

namespace scape {

struct StoredTensor {
  std::string name;
  std::string dtype;                // "F32", "BF16", "U64", …
  std::vector<std::int64_t> shape;  // row-major
  std::span<const std::byte> bytes;
};

using Metadata = std::map<std::string, std::string>;

/// The format's name of a type: "F32", "I64", …
[[nodiscard]] std::string safetensors_dtype(DType type);

/// Size and checksum of a file, for whoever keeps account of it.
struct FileSummary {
  std::int64_t bytes = 0;
  std::uint32_t crc = 0;  // CRC-32 (zlib) of the whole file
};

/// Writes `path`, replacing it, and waits until it is on the disk. Throws Error(input) naming the path and the reason; the file is
/// removed then.
FileSummary write_safetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors,
                              const Metadata& metadata = {});

/// A file, mapped read-only. Copies share the mapping.
class SafetensorsFile {
 public:
  /// Throws Error(input) naming the path and what is wrong where: not such a file, a header that does not parse, a tensor whose
  /// bytes lie outside the file or do not fit its shape, two tensors that overlap, bytes that belong to no tensor.
  [[nodiscard]] static SafetensorsFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return mapping_.path(); }
  [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const Metadata& metadata() const { return metadata_; }
  /// nullptr when there is no tensor of this name.
  [[nodiscard]] const StoredTensor* find(std::string_view name) const;
  /// Of the whole file; reads all of it.
  [[nodiscard]] FileSummary summary() const;

 private:
  explicit SafetensorsFile(MappedFile mapping) : mapping_(std::move(mapping)) {}

  MappedFile mapping_;
  std::vector<StoredTensor> tensors_;
  Metadata metadata_;
};

/// `text` as a JSON string, quotes included.
[[nodiscard]] std::string json_string(std::string_view text);

}  // namespace scape
