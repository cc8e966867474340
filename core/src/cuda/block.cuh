// What device code is written against, and what the threads of a block and the blocks of a grid do together.
//
// A kernel is a struct that holds its arguments: `operator()(const Thread& t, Shared& shared) const` is what one thread does,
// `Shared` the memory that a block shares (not initialised). Nothing else of CUDA is used, so that the tests run the very
// same code on the CPU. A Thread offers
//   index() of block_threads, block() of blocks()
//   sync()                                          barrier of the block
//   ballot(p), shuffle_up(x, d), shuffle_xor(x, d)  among the 32 threads of a warp, all of which must take part
//   atomic_add(p, x)                                returns the old value
//   fence()                                         earlier writes are seen by the whole device before later ones
//   popcount(word), lowest_bit(word)                of 64-bit words
//   bits(x), from_bits(word)                        of a float
// Blocks are always of block_threads threads. All sums have a fixed order: it depends on the sizes alone.
#pragma once

#include <cstdint>

namespace scape::cuda {

inline constexpr int warp_threads = 32;
inline constexpr int block_threads = 256;
inline constexpr int block_warps = block_threads / warp_threads;
/// Most blocks of a kernel whose blocks leave something behind for each other: 8 for each of the 132 processors of an H100.
inline constexpr int max_blocks = 1024;

/// Top-k finds the threshold digit by digit, from the top: 11, 10 and 10 bits of the 31 bits of a magnitude.
inline constexpr int digit_passes = 3;
inline constexpr int first_digit_bits = 11;
inline constexpr int digit_bits = 10;

struct Selection {
  std::uint32_t prefix;  // digits of the threshold so far
  std::int64_t wanted;   // elements still to choose among those that share the prefix
};

/// Working memory of the kernels of one stream; operations of a stream do not overlap, so one serves them all. Zero at first;
/// every kernel leaves `ticket` and `histogram` zero.
struct Scratch {
  unsigned ticket;                                            // blocks that have finished
  double sums[max_blocks];                                    // of each block
  std::int64_t counts[max_blocks];                            // of each block, or before it
  std::uint64_t histogram[1 << first_digit_bits];             // elements by digit
  std::uint32_t last_histogram[max_blocks][1 << digit_bits];  // those of each block, in the last pass
  Selection selection;
};

/// Number of pieces of `size` that cover n.
[[nodiscard]] constexpr std::int64_t pieces(std::int64_t n, std::int64_t size) {
  return (n + size - 1) / size;
}

/// Neighbouring items for each of the blocks of a grid, a multiple of a grain.
struct Runs {
  std::int64_t size;    // items in a run; the last may be shorter
  std::int64_t blocks;  // at least one
};
[[nodiscard]] constexpr Runs divide_into_runs(std::int64_t n, std::int64_t grain, std::int64_t most_blocks) {
  const std::int64_t size = n == 0 ? grain : pieces(pieces(n, most_blocks), grain) * grain;
  return {size, n == 0 ? 1 : pieces(n, size)};
}

template <class Thread>
__device__ std::int64_t global_index(const Thread& t) {
  return static_cast<std::int64_t>(t.block()) * block_threads + t.index();
}
template <class Thread>
__device__ std::int64_t global_threads(const Thread& t) {
  return static_cast<std::int64_t>(t.blocks()) * block_threads;
}

/// The bits of |x|, whose order is that of |x|.
template <class Thread>
__device__ std::uint32_t magnitude(const Thread& t, float x) {
  return t.bits(x) & 0x7fffffffU;
}

/// Memory for the functions below, T being what they add.
template <class T>
struct BlockShared {
  T warp[block_warps];
  bool last;
};

/// Thread 0 gets the sum over the block: a tree in each warp, then the warps in order.
template <class Thread, class T>
__device__ T block_sum(const Thread& t, BlockShared<T>& shared, T value) {
  for (int distance = warp_threads / 2; distance > 0; distance /= 2) value += t.shuffle_xor(value, distance);
  if (t.index() % warp_threads == 0) shared.warp[t.index() / warp_threads] = value;
  t.sync();
  T sum{};
  if (t.index() == 0) {
    for (const T part : shared.warp) sum += part;
  }
  return sum;
}

/// The sum over the threads before this one; `total` ← the sum over the block.
template <class Thread, class T>
__device__ T exclusive_scan(const Thread& t, BlockShared<T>& shared, T value, T& total) {
  const int lane = t.index() % warp_threads;
  const int warp = t.index() / warp_threads;
  T inclusive = value;
  for (int distance = 1; distance < warp_threads; distance *= 2) {
    const T below = t.shuffle_up(inclusive, distance);
    if (lane >= distance) inclusive += below;
  }
  t.sync();  // an earlier scan has been read
  if (lane == warp_threads - 1) shared.warp[warp] = inclusive;
  t.sync();
  T before{};
  total = T{};
  for (int w = 0; w < block_warps; ++w) {
    if (w == warp) before = total;
    total += shared.warp[w];
  }
  return before + inclusive - value;
}

/// True in all threads of the block that gets here last: it sees what all other blocks wrote before.
template <class Thread>
__device__ bool last_block(const Thread& t, bool& shared_last, unsigned* ticket) {
  t.fence();
  t.sync();
  if (t.index() == 0) {
    shared_last = t.atomic_add(ticket, 1U) + 1 == static_cast<unsigned>(t.blocks());
    if (shared_last) *ticket = 0;
  }
  t.sync();
  t.fence();
  return shared_last;
}

/// *result ← the sum over the grid; `partial` is a place for each block.
template <class Thread, class T>
__device__ void grid_sum(const Thread& t, BlockShared<T>& shared, T value, T* partial, unsigned* ticket, T* result) {
  const T sum = block_sum(t, shared, value);
  if (t.index() == 0) partial[t.block()] = sum;
  if (!last_block(t, shared.last, ticket)) return;
  T mine{};
  for (int b = t.index(); b < t.blocks(); b += block_threads) mine += partial[b];
  const T total = block_sum(t, shared, mine);
  if (t.index() == 0) *result = total;
}

}  // namespace scape::cuda
