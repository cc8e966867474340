// Files through the operating system.
#include "io/file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>

namespace scape {

std::string reason(int code) {
  return std::generic_category().message(code);
}

std::uint32_t crc32_of(std::uint32_t previous, const void* data, std::size_t bytes) {
  if (bytes == 0) return previous;  // zlib begins anew when `data` is null
  return static_cast<std::uint32_t>(crc32_z(previous, static_cast<const unsigned char*>(data), bytes));
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  bool good = file != nullptr;
  if (good) {
    good = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
    good = std::fclose(file) == 0 && good;
  }
  if (!good) fail(path, "cannot be written: {}", reason(errno));
}

void expect_own_kind(const std::filesystem::path& path, std::string_view begin, const char* kind) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return;
  std::string found(begin.size(), '\0');
  if (std::filesystem::is_regular_file(status)) std::ifstream(path, std::ios::binary).read(found.data(), std::ssize(found));
  if (found != begin)
    throw Error(ErrorKind::usage, fmt::format("{}: exists and is not {}: name another file", path.string(), kind));
}

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(folder, "cannot be opened: {}", reason(errno));
  ::fsync(descriptor);  // some file systems refuse it for folders, and need none
  ::close(descriptor);
}

void lock(int descriptor, const std::filesystem::path& path) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) fail(path, "another process has it open");
}

FileLock::FileLock(const std::filesystem::path& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail(path, "cannot be opened: {}", reason(errno));
  try {
    lock(descriptor_, path);
    struct stat held {};
    struct stat there {};
    const bool same = ::fstat(descriptor_, &held) == 0 && ::stat(path.c_str(), &there) == 0 && held.st_ino == there.st_ino;
    if (!same) fail(path, "another process has just replaced it");
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path_, "cannot be opened: {}", reason(errno));
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* address = MAP_FAILED;
  if (known && S_ISREG(status.st_mode) && bytes > 0) {
    address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  }
  const int code = errno;
  ::close(descriptor);
  if (known && !S_ISREG(status.st_mode)) fail(path_, "is not a file");
  if (known && bytes == 0) fail(path_, "is empty (byte 0)");
  if (address == MAP_FAILED) fail(path_, "cannot be mapped: {}", reason(code));
  size_ = status.st_size;
  data_ = {static_cast<const std::byte*>(address),
           [bytes](const std::byte* data) { ::munmap(const_cast<std::byte*>(data), bytes); }};
}

}  // namespace scape
