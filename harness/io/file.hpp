// What all readers and writers of files share: mapping a file, locking it, the one way to say what is wrong with it (its name, then
// what and at which byte), checksums, and names that are safely on the disk.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "scape/error.hpp"

namespace scape {

template <class... Args>
[[noreturn]] void fail(const std::filesystem::path& path, fmt::format_string<Args...> message, Args&&... args) {
  throw Error(ErrorKind::input, fmt::format("{}: {}", path.string(), fmt::format(message, std::forward<Args>(args)...)));
}

/// "No space left on device": what the operating system says about an errno.
[[nodiscard]] std::string reason(int code);

/// CRC-32 (zlib) of `bytes` more bytes, continued from `previous`, which is 0 at first.
[[nodiscard]] std::uint32_t crc32_of(std::uint32_t previous, const void* data, std::size_t bytes);

/// Writes `path`, replacing it, and waits until it is on the disk. Throws Error(input) when it cannot be written.
void write_text(const std::filesystem::path& path, std::string_view text);

/// For a file that is about to be written: throws Error(usage) when there is something else at `path` than a file of its own kind,
/// which begins with `begin`. `kind`: "a token file", for the message.
void expect_own_kind(const std::filesystem::path& path, std::string_view begin, const char* kind);

/// Waits until the names in a folder are on the disk. Throws Error(input) when there is no such folder.
void sync_folder(const std::filesystem::path& folder);

/// Keeps other writers off a file or folder until it is destroyed or the process ends, however it ends.
class FileLock {
 public:
  /// Throws Error(input) when `path` is missing or another process holds it. On a file system without locks it holds nothing.
  explicit FileLock(const std::filesystem::path& path);
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  FileLock(const FileLock&) = delete;
  ~FileLock();

 private:
  int descriptor_ = -1;
};
/// The same for a file that is open as `descriptor`, until that is closed.
void lock(int descriptor, const std::filesystem::path& path);

/// Copies share one mapping.
class MappedFile {
 public:
  /// Throws Error(input) when there is no such file or it is empty.
  explicit MappedFile(std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  /// The value at byte `offset`, which need not be aligned and must be inside.
  template <class T>
  [[nodiscard]] T at(std::int64_t offset) const {
    T value;
    std::memcpy(&value, data_.get() + offset, sizeof value);
    return value;
  }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const std::byte> data_;
  std::int64_t size_ = 0;
};

}  // namespace scape
