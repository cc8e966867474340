// A vector between guard elements: shows whether a kernel writes outside of what it was given. Its start is an odd multiple of
// the element size, so that nothing may rely on the alignment of a whole buffer.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "scape/buffer.hpp"

namespace scape::testing {

template <class T>
class Guarded {
 public:
  explicit Guarded(const std::vector<T>& values) : memory_(static_cast<std::int64_t>(values.size()) + 2 * guard) {
    std::memset(memory_.data(), pattern, static_cast<std::size_t>(memory_.span().size_bytes()));
    std::copy(values.begin(), values.end(), memory_.data() + guard);
  }
  explicit Guarded(std::int64_t size) : Guarded(std::vector<T>(static_cast<std::size_t>(size))) {}

  [[nodiscard]] Span<T> span() const { return memory_.span().subspan(guard, memory_.size() - 2 * guard); }
  operator Span<T>() const { return span(); }        // NOLINT(google-explicit-constructor)
  operator Span<const T>() const { return span(); }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] std::vector<T> values() const { return {memory_.data() + guard, memory_.data() + memory_.size() - guard}; }
  /// Whether the guard elements are as they were.
  [[nodiscard]] bool intact() const {
    const auto untouched = [](const T* from, std::int64_t count) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(from);
      return std::all_of(bytes, bytes + count * static_cast<std::int64_t>(sizeof(T)), [](unsigned char b) { return b == pattern; });
    };
    return untouched(memory_.data(), guard) && untouched(memory_.data() + memory_.size() - guard, guard);
  }

 private:
  static constexpr std::int64_t guard = 7;
  static constexpr unsigned char pattern = 0xa5;
  Buffer<T> memory_;
};

}  // namespace scape::testing
