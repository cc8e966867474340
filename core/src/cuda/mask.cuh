// Device code over masks: sets of coordinates as one bit each (scape/kernels.hpp). A thread takes a mask word and visits its
// set bits; where they go in a packed vector is known from the mask's index, so no thread waits for another.
#pragma once

#include <cstdint>

#include "cuda/block.cuh"
#include "scape/kernels.hpp"

namespace scape::cuda {

inline constexpr std::uint64_t all_bits = ~std::uint64_t{0};

/// The parts of a MaskView that device code needs.
struct Mask {
  const std::uint64_t* words;
  const std::int64_t* offsets;
  std::int64_t size;  // words
};
[[nodiscard]] inline Mask device_mask(const MaskView& mask) {
  return {mask.words.data(), mask.offsets.data(), mask.words.size()};
}

/// Set bits before word `w`: the index, and at most seven words that lie in the same cache line.
template <class Thread>
__device__ std::int64_t bits_before(const Thread& t, const Mask& mask, std::int64_t w) {
  const std::int64_t block = w / MaskView::block_words;
  std::int64_t count = mask.offsets[block];
  for (std::int64_t i = block * MaskView::block_words; i < w; ++i) count += t.popcount(mask.words[i]);
  return count;
}

/// The bits of a word, which starts at coordinate `start`, that stand for coordinates of `range`. The two overlap.
__device__ inline std::uint64_t bits_within(std::int64_t start, const Range& range) {
  std::uint64_t bits = all_bits;
  if (range.begin > start) bits &= all_bits << (range.begin - start);
  if (range.end < start + MaskView::word_bits) bits &= all_bits >> (start + MaskView::word_bits - range.end);
  return bits;
}

/// visit(coordinate, place) for every set bit of `range`, place being its rank among all set bits.
template <class Thread, class Visit>
__device__ void for_each_set(const Thread& t, const Range& range, const Mask& mask, const Visit& visit) {
  for (std::int64_t w = range.begin / MaskView::word_bits + global_index(t); w * MaskView::word_bits < range.end;
       w += global_threads(t)) {
    const std::int64_t start = w * MaskView::word_bits;
    const std::uint64_t inside = bits_within(start, range);
    std::uint64_t word = mask.words[w] & inside;
    if (word == 0) continue;
    std::int64_t place = bits_before(t, mask, w) + t.popcount(mask.words[w] & ~inside & (inside - 1));
    for (; word != 0; word &= word - 1) visit(start + t.lowest_bit(word), place++);
  }
}
template <class Thread, class Visit>
__device__ void for_each_set(const Thread& t, const Mask& mask, const Visit& visit) {
  for_each_set(t, Range{0, mask.size * MaskView::word_bits}, mask, visit);
}

// 16 bytes per word.
struct SetRange {
  std::uint64_t* words;
  Range range;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    const std::int64_t first = range.begin / MaskView::word_bits;
    for (std::int64_t w = first + global_index(t); w * MaskView::word_bits < range.end; w += global_threads(t)) {
      words[w] |= bits_within(w * MaskView::word_bits, range);
    }
  }
};

// 24 bytes per word.
struct Unite {
  std::uint64_t* words;
  const std::uint64_t* other;
  std::int64_t size;  // words

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    for (std::int64_t w = global_index(t); w < size; w += global_threads(t)) words[w] |= other[w];
  }
};

/// An index entry for each block of mask words; every block of threads makes a run of entries.
struct MaskIndex {
  const std::uint64_t* words;
  std::int64_t size;  // words
  std::int64_t* offsets;
  std::int64_t run;  // entries of each block of threads

  [[nodiscard]] __device__ std::int64_t entries() const { return (size + MaskView::block_words - 1) / MaskView::block_words; }
  template <class Thread>
  __device__ std::int64_t count(const Thread& t, std::int64_t entry) const {
    std::int64_t count = 0;
    for (std::int64_t w = entry * MaskView::block_words; w < (entry + 1) * MaskView::block_words && w < size; ++w) {
      count += t.popcount(words[w]);
    }
    return count;
  }
};

// counts[b] ← set bits in the runs before block b. 8 bytes per word.
struct CountRuns {
  MaskIndex index;
  Scratch* scratch;

  using Shared = BlockShared<std::int64_t>;
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared& shared) const {
    std::int64_t mine = 0;
    for (std::int64_t i = t.index(); i < index.run; i += block_threads) mine += index.count(t, t.block() * index.run + i);
    const std::int64_t sum = block_sum(t, shared, mine);
    if (t.index() == 0) scratch->counts[t.block()] = sum;
    if (!last_block(t, shared.last, &scratch->ticket)) return;
    std::int64_t before = 0;
    for (int first = 0; first < t.blocks(); first += block_threads) {
      const int b = first + t.index();
      std::int64_t total = 0;
      const std::int64_t count = b < t.blocks() ? scratch->counts[b] : 0;
      const std::int64_t below = exclusive_scan(t, shared, count, total);
      if (b < t.blocks()) scratch->counts[b] = before + below;
      before += total;
    }
  }
};

// 9 bytes per word.
struct WriteIndex {
  MaskIndex index;
  const Scratch* scratch;

  using Shared = BlockShared<std::int64_t>;
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared& shared) const {
    std::int64_t before = scratch->counts[t.block()];
    for (std::int64_t i = 0; i < index.run; i += block_threads) {
      const std::int64_t entry = t.block() * index.run + i + t.index();
      std::int64_t total = 0;
      const std::int64_t below = exclusive_scan(t, shared, index.count(t, entry), total);
      if (entry < index.entries()) index.offsets[entry] = before + below;
      before += total;
    }
  }
};

// 16 bytes per word.
struct CountCommon {
  const std::uint64_t* a;
  const std::uint64_t* b;
  std::int64_t size;  // words
  Scratch* scratch;
  std::int64_t* result;

  using Shared = BlockShared<std::int64_t>;
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared& shared) const {
    std::int64_t count = 0;
    for (std::int64_t w = global_index(t); w < size; w += global_threads(t)) count += t.popcount(a[w] & b[w]);
    grid_sum(t, shared, count, scratch->counts, &scratch->ticket, result);
  }
};

// The mask (8.1 bytes per word), and for each set bit 4 bytes packed and a memory sector of x.
struct Pack {
  Range range;
  const float* x;  // from coordinate range.begin on
  Mask mask;
  float* packed;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    for_each_set(t, range, mask, [&](std::int64_t j, std::int64_t place) { packed[place] = x[j - range.begin]; });
  }
};

// As Pack.
struct Unpack {
  Range range;
  const float* packed;  // null: zeros
  Mask mask;
  float* x;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    for_each_set(t, range, mask,
                 [&](std::int64_t j, std::int64_t place) { x[j - range.begin] = packed == nullptr ? 0 : packed[place]; });
  }
};

// The mask, and 4 bytes for each set bit.
struct Indices {
  Mask mask;
  std::uint32_t* indices;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    for_each_set(t, mask, [&](std::int64_t j, std::int64_t place) { indices[place] = static_cast<std::uint32_t>(j); });
  }
};

/// See SparseKernels::index_mask.
template <class Launcher>
void index_mask(const std::uint64_t* words, std::int64_t size, std::int64_t* offsets, const Stream& stream) {
  Scratch* scratch = Launcher::scratch(stream);
  const Runs runs = divide_into_runs(pieces(size, MaskView::block_words), block_threads, Launcher::most_joint_blocks);
  const MaskIndex index{words, size, offsets, runs.size};
  Launcher::launch(CountRuns{index, scratch}, runs.blocks, stream);
  Launcher::launch(WriteIndex{index, scratch}, runs.blocks, stream);
}

}  // namespace scape::cuda
