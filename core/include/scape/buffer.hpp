// Memory that knows its device. Span<T> is a view, Buffer<T> owns; the only way from either to a std::span that the host
// may read is host(), which checks that the memory is the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "scape/device.hpp"
#include "scape/error.hpp"
#include "scape/stream.hpp"

namespace scape {

namespace detail {
void* allocate(std::size_t bytes, Device device);         // zeroed, aligned to 64 bytes or more
void* allocate_pinned(std::size_t bytes, Device device);  // host memory that `device` can copy from asynchronously
void deallocate(void* data, Device device) noexcept;
void deallocate_pinned(void* data, Device device) noexcept;
/// Bytes that this thread has asked for so far, freed ones too: what an object allocates while it is built is a difference of two.
[[nodiscard]] std::int64_t allocated_bytes() noexcept;
void copy_bytes(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes, const Stream& stream);
void zero_bytes(void* data, Device device, std::size_t bytes, const Stream& stream);
}  // namespace detail

/// View of `size` elements on `device`.
template <class T>
class Span {
 public:
  Span() = default;
  Span(T* data, std::int64_t size, Device device) : data_(data), size_(size), device_(device) {}
  /// Host memory.
  Span(std::span<T> host)
      : data_(host.data()), size_(static_cast<std::int64_t>(host.size())) {}  // NOLINT(google-explicit-constructor)
  /// Span<T> to Span<const T>.
  template <class U>
  requires(std::is_same_v<const U, T> && !std::is_const_v<U>) Span(Span<U> other)
      : data_(other.data()), size_(other.size()), device_(other.device()) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_ * static_cast<std::int64_t>(sizeof(T)); }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] Device device() const noexcept { return device_; }

  /// Elements [offset, offset + count). Throws Error(internal) when they are not all inside.
  [[nodiscard]] Span subspan(std::int64_t offset, std::int64_t count) const {
    require(offset >= 0 && count >= 0 && offset <= size_ - count, ErrorKind::internal, "Span::subspan: range outside the span");
    return {data_ + offset, count, device_};
  }
  /// The host's view. Throws Error(internal) when the memory is not the host's.
  [[nodiscard]] std::span<T> host() const {
    require(device_.kind == DeviceKind::cpu, ErrorKind::internal, "Span::host: the memory is on a GPU");
    return {data_, static_cast<std::size_t>(size_)};
  }

 private:
  T* data_ = nullptr;
  std::int64_t size_ = 0;
  Device device_{};
};

namespace detail {
// Owner of raw memory; `Pinned` selects page-locked host memory for transfers to and from `device`.
template <class T, bool Pinned>
class OwnedMemory {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  OwnedMemory() = default;
  explicit OwnedMemory(std::int64_t size, Device device = cpu_device) : size_(size), device_(device) {
    require(size >= 0, ErrorKind::internal, "Buffer: negative size");
    if (size > most_elements) throw std::bad_alloc();  // its bytes, rounded up to the alignment, would not fit a size
    const auto bytes = static_cast<std::size_t>(size) * sizeof(T);
    data_ = static_cast<T*>(Pinned ? allocate_pinned(bytes, device) : allocate(bytes, device));
  }
  OwnedMemory(OwnedMemory&& other) noexcept { swap(other); }
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    OwnedMemory moved(std::move(other));
    swap(moved);
    return *this;
  }
  OwnedMemory(const OwnedMemory&) = delete;
  OwnedMemory& operator=(const OwnedMemory&) = delete;
  ~OwnedMemory() {
    if (data_ != nullptr) Pinned ? deallocate_pinned(data_, device_) : deallocate(data_, device_);
  }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] Device device() const noexcept { return Pinned ? cpu_device : device_; }
  [[nodiscard]] Span<T> span() const noexcept { return {data_, size_, device()}; }
  operator Span<T>() const noexcept { return span(); }        // NOLINT(google-explicit-constructor)
  operator Span<const T>() const noexcept { return span(); }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] std::span<T> host() const { return span().host(); }

 private:
  void swap(OwnedMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(device_, other.device_);
  }
  static constexpr std::int64_t most_elements = (std::numeric_limits<std::int64_t>::max() - 4096) / sizeof(T);
  T* data_ = nullptr;
  std::int64_t size_ = 0;
  Device device_{};
};
}  // namespace detail

/// Owned memory on a device, zero at first. Throws std::bad_alloc when there is not enough.
template <class T>
using Buffer = detail::OwnedMemory<T, false>;

/// Owned page-locked host memory for transfers to and from `device`, zero at first.
template <class T>
using PinnedBuffer = detail::OwnedMemory<T, true>;

/// Copies equally long spans, ordered on `stream`; a span of the host must stay alive until the stream got there.
template <class T>
void copy(Span<T> to, std::type_identity_t<Span<const T>> from, const Stream& stream) {
  require(to.size() == from.size(), ErrorKind::internal, "copy: spans differ in size");
  detail::copy_bytes(to.data(), to.device(), from.data(), from.device(), static_cast<std::size_t>(to.size_bytes()), stream);
}

/// The value of a one-element span; waits for the stream.
template <class T>
std::remove_const_t<T> read(Span<T> value, const Stream& stream) {
  std::remove_const_t<T> result{};
  copy(Span<std::remove_const_t<T>>(std::span(&result, 1)), value, stream);
  stream.synchronize();
  return result;
}

/// Sets every byte to zero, ordered on `stream`.
template <class T>
void zero(Span<T> data, const Stream& stream) {
  detail::zero_bytes(data.data(), data.device(), static_cast<std::size_t>(data.size_bytes()), stream);
}

}  // namespace scape
