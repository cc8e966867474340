#include "data/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace scape {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const auto why = [](int code) { return std::generic_category().message(code); };
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path_, "cannot be opened: {}", why(errno));
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
  if (address == MAP_FAILED) fail(path_, "cannot be mapped: {}", why(code));
  size_ = status.st_size;
  data_ = {static_cast<const std::byte*>(address),
           [bytes](const std::byte* data) { ::munmap(const_cast<std::byte*>(data), bytes); }};
}

}  // namespace scape
