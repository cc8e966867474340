// Vectors that lie in pinned host memory between steps (offload = residual, replica) and come to the device part by part, through
// two staging buffers, so that one part is computed on while others are on their way:
//
//   upload      part 0 │ part 1 │        │ part 2 │ …
//   compute            │ part 0 │ part 1 │        │ part 2 │ …
//   download                    │ part 0 │ part 1 │        …
//
// On the CPU both memories are the host's; the way of the numbers is the same, and so are their bits.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <tuple>

#include "scape/buffer.hpp"
#include "scape/parameters.hpp"

namespace scape {

/// [size] floats on a device or, offloaded, in host memory that it can copy from asynchronously. Zero at first.
class OffloadableVector {
 public:
  OffloadableVector(std::int64_t size, Device device, bool offloaded)
      : here_(offloaded ? 0 : size, device), away_(offloaded ? size : 0, device) {}
  [[nodiscard]] Span<float> span() const { return away_.size() > 0 ? away_.span() : here_.span(); }

 private:
  Buffer<float> here_;
  PinnedBuffer<float> away_;
};

class Staging {
 public:
  enum class Use { read, write, update };
  struct Vector {
    Span<float> all;  // [W]
    bool offloaded = false;
    Use use = Use::read;
  };

  /// Two buffers for `piece` coordinates of so many offloaded vectors; none for 0 vectors.
  Staging(Device device, std::int64_t piece, int vectors);

  /// visit(part, that part of each vector, on the device) for parts that cover `range`, in order; one part if no vector is
  /// offloaded. What a visit queues on `stream` has its part there, and what `stream` does afterwards finds it written back.
  template <class Visit, std::size_t n>
  void for_each_part(Range range, const std::array<Vector, n>& vectors, const Stream& stream, Visit visit) {
    const bool offloaded = std::ranges::any_of(vectors, &Vector::offloaded);
    if (offloaded) start(stream);
    for (Range part{range.begin, range.begin}; part.end < range.end;) {
      part = {part.end, offloaded ? std::min(range.end, (part.end / piece_ + 1) * piece_) : range.end};
      std::array<Span<float>, n> spans;
      int staged = 0;
      for (std::size_t i = 0; i < n; ++i) {
        spans[i] = vectors[i].offloaded ? place(staged++, part) : vectors[i].all.subspan(part.begin, part.size());
      }
      if (offloaded) fetch(part, vectors, spans, stream);
      std::apply([&](const auto&... span) { visit(part, span...); }, spans);
      if (offloaded) give_back(part, vectors, spans, stream);
    }
    if (offloaded) finish(stream);
  }

 private:
  using Vectors = std::span<const Vector>;
  using Parts = std::span<const Span<float>>;
  struct Slot {
    Buffer<float> memory;  // [vectors · vector_room()]
    Event arrived, left, free;
  };

  // A part lies in its slot as in a vector that starts on a cache line, so that kernels move both alike.
  static constexpr std::int64_t line = 16;  // floats
  [[nodiscard]] std::int64_t vector_room() const { return piece_ + line; }
  [[nodiscard]] Span<float> place(int vector, Range part) const;

  void start(const Stream& stream);
  void fetch(Range part, Vectors vectors, Parts parts, const Stream& stream);
  void give_back(Range part, Vectors vectors, Parts parts, const Stream& stream);
  void finish(const Stream& stream) const;

  std::int64_t piece_;
  std::array<Slot, 2> slots_;
  std::size_t slot_ = 0;  // of the part that is visited
  Event started_;
  Stream upload_, download_;
};

}  // namespace scape
