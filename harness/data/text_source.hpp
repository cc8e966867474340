// Text as it comes, at constant memory: bytes of plain, gzip (RFC 1952) or Zstandard (RFC 8878) files, told apart by their first
// bytes; and the documents in them: pieces of a text, or one field of each line of JSON (JSON Lines, the form of SlimPajama).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace scape {

class ByteSource {
 public:
  /// Throws Error(input) when the file cannot be read.
  [[nodiscard]] static std::unique_ptr<ByteSource> open(const std::filesystem::path& path);
  virtual ~ByteSource() = default;

  /// Puts up to `count` bytes there, fewer only at the end. Throws Error(input), naming the file and the byte of it, when it cannot
  /// be read or its compressed form is damaged or cut off.
  [[nodiscard]] virtual std::size_t read(char* to, std::size_t count) = 0;
  /// Bytes of the file that were taken so far.
  [[nodiscard]] virtual std::int64_t position() const = 0;
  [[nodiscard]] virtual bool compressed() const = 0;
};

/// Whether the file holds lines of JSON: its name ends in .jsonl, .jsonl.gz or .jsonl.zst.
[[nodiscard]] bool is_json_lines(const std::filesystem::path& path);

/// Gets a document and how many bytes of the file were taken up to its end.
using DocumentSink = std::function<void(std::string text, std::int64_t position)>;

/// Cuts a text into documents of at most `longest` bytes: behind the last blank line of the second half of each, else behind a
/// line, else at its end.
void for_each_piece(const std::filesystem::path& path, std::int64_t longest, const DocumentSink& sink);

/// Gets a line, with room behind it that a JSON parser may read, its number from 1 on, and how many bytes of the file were taken.
using LineSink = std::function<void(std::string_view line, std::int64_t number, std::int64_t position)>;

/// The lines of a text, without those of white space and without a byte order mark of UTF-8 before the first. Memory: the longest
/// line.
void for_each_line(const std::filesystem::path& path, const LineSink& sink);

/// The text of `field` in each line. Lines of white space are skipped. Throws Error(input), naming the file and the line, for a
/// line that is no JSON object, or has no such field, or another thing than text in it. Memory: the longest line.
void for_each_line(const std::filesystem::path& path, const std::string& field, const DocumentSink& sink);

}  // namespace scape
