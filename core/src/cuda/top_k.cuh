// The k elements of largest magnitude, by radix select (Alabi et al. 2012) on the bits of |x|, whose order is that of |x|.
//
//   three times FindDigit   a histogram of the next digit of the elements that share the digits so far; the last block to
//                           finish finds the digit of the k-th largest in it
//   MarkLargest             sets the bits of what is above the threshold, and of the first of what equals it
//
// Each reads x once: 16 bytes per element in all, and nothing waits for the host. Every block has a run of whole mask words,
// so no two blocks write to one word, and only the one block whose run holds the last chosen tie must look at their order.
#pragma once

#include <cstdint>

#include "cuda/block.cuh"
#include "scape/kernels.hpp"

namespace scape::cuda {

/// x [n] at the bits first, first + 1, … of a mask. Positions count from the first bit of the word that x starts in.
struct Placed {
  const float* x;
  std::int64_t n;
  std::int64_t lead;  // position of x[0], below 64
  std::int64_t run;   // words of each block
};

/// Words that a block looks at in one turn: two per warp, so that a thread has four loads in flight.
inline constexpr int words_per_warp = 2;
inline constexpr int words_per_turn = words_per_warp * block_warps;

struct FindDigit {
  Placed in;
  std::int64_t k;
  int pass;
  Scratch* scratch;

  struct Shared {
    std::uint32_t histogram[1 << first_digit_bits];
    BlockShared<std::int64_t> block;
    std::uint32_t digit;
  };

  template <class Thread>
  __device__ void operator()(const Thread& t, Shared& shared) const {
    const Selection selection = pass == 0 ? Selection{0, k} : scratch->selection;
    const bool last_pass = pass == digit_passes - 1;
    const int bits = pass == 0 ? first_digit_bits : digit_bits;
    const int shift = (digit_passes - 1 - pass) * digit_bits;

    for (int d = t.index(); d < 1 << bits; d += block_threads) shared.histogram[d] = 0;
    t.sync();
    count_digits(t, shared, bits, shift, selection.prefix);
    t.sync();
    for (int d = t.index(); d < 1 << bits; d += block_threads) {
      const std::uint32_t count = shared.histogram[d];
      if (count != 0) t.atomic_add(&scratch->histogram[d], std::uint64_t{count});
      if (last_pass) scratch->last_histogram[t.block()][d] = count;
    }
    if (!last_block(t, shared.block.last, &scratch->ticket)) return;
    find_digit(t, shared, bits, selection);
    if (last_pass) count_ties_before(t, shared);
  }

 private:
  template <class Thread>
  __device__ void count_digits(const Thread& t, Shared& shared, int bits, int shift, std::uint32_t prefix) const {
    constexpr int in_flight = 4;  // loads of a thread that do not wait for each other
    const std::int64_t run_begin = t.block() * in.run * MaskView::word_bits - in.lead;
    const std::int64_t run_end = run_begin + in.run * MaskView::word_bits;
    const std::int64_t begin = run_begin < 0 ? 0 : run_begin;
    const std::int64_t end = run_end < in.n ? run_end : in.n;
    for (std::int64_t first = begin + t.index(); first < end; first += in_flight * block_threads) {
      float x[in_flight];
      for (int i = 0; i < in_flight; ++i) {
        const std::int64_t j = first + i * block_threads;
        x[i] = j < end ? in.x[j] : 0;
      }
      for (int i = 0; i < in_flight && first + i * block_threads < end; ++i) {
        const std::uint32_t digits = magnitude(t, x[i]) >> shift;
        if (digits >> bits == prefix) t.atomic_add(&shared.histogram[digits & ((1U << bits) - 1)], 1U);
      }
    }
  }

  // The digit of the wanted-th largest element. Threads take neighbouring digits, from the top down, and leave zeros.
  template <class Thread>
  __device__ void find_digit(const Thread& t, Shared& shared, int bits, const Selection& selection) const {
    const int per_thread = (1 << bits) / block_threads;
    const int top = (1 << bits) - 1 - t.index() * per_thread;
    std::int64_t mine = 0;
    for (int i = 0; i < per_thread; ++i) mine += static_cast<std::int64_t>(scratch->histogram[top - i]);
    std::int64_t total = 0;
    std::int64_t above = exclusive_scan(t, shared.block, mine, total);
    for (int i = 0; i < per_thread; ++i) {
      const auto count = static_cast<std::int64_t>(scratch->histogram[top - i]);
      scratch->histogram[top - i] = 0;
      if (above < selection.wanted && selection.wanted <= above + count) {
        shared.digit = static_cast<std::uint32_t>(top - i);
        scratch->selection = {selection.prefix << bits | shared.digit, selection.wanted - above};
      }
      above += count;
    }
    t.sync();
  }

  // counts[b] ← elements that equal the threshold in the blocks before b.
  template <class Thread>
  __device__ void count_ties_before(const Thread& t, Shared& shared) const {
    std::int64_t before = 0;
    for (int first = 0; first < t.blocks(); first += block_threads) {
      const int b = first + t.index();
      const std::int64_t mine = b < t.blocks() ? scratch->last_histogram[b][shared.digit] : 0;
      std::int64_t total = 0;
      const std::int64_t below = exclusive_scan(t, shared.block, mine, total);
      if (b < t.blocks()) scratch->counts[b] = before + below;
      before += total;
    }
  }
};

struct MarkLargest {
  Placed in;
  std::uint64_t* words;  // from the one that x starts in
  const Scratch* scratch;

  struct Shared {
    int ties[block_warps];
  };

  template <class Thread>
  __device__ void operator()(const Thread& t, Shared& shared) const {
    constexpr int halves = 2 * words_per_warp;  // a warp looks at half a word at once
    const int lane = t.index() % warp_threads;
    const int warp = t.index() / warp_threads;
    const std::uint32_t threshold = scratch->selection.prefix;
    const std::int64_t ties = scratch->last_histogram[t.block()][threshold & ((1U << digit_bits) - 1)];
    const std::int64_t room = scratch->selection.wanted - scratch->counts[t.block()];  // for ties from this block on
    const bool in_order = 0 < room && room < ties;
    std::int64_t earlier = 0;  // ties of this block before the turn

    for (std::int64_t turn = 0; turn < in.run && at(t, turn) < in.n; turn += words_per_turn) {
      const std::int64_t word = t.block() * in.run + turn + warp * words_per_warp;
      const std::int64_t first = word * MaskView::word_bits + lane - in.lead;
      float x[halves];
      for (int h = 0; h < halves; ++h) {
        const std::int64_t j = first + h * warp_threads;
        x[h] = 0 <= j && j < in.n ? in.x[j] : 0;
      }
      bool equal[halves];
      std::uint32_t chosen[halves];
      std::uint32_t equals[halves];
      for (int h = 0; h < halves; ++h) {
        const std::int64_t j = first + h * warp_threads;
        const bool inside = 0 <= j && j < in.n;
        equal[h] = inside && magnitude(t, x[h]) == threshold;
        chosen[h] = t.ballot(inside && magnitude(t, x[h]) > threshold);
        equals[h] = t.ballot(equal[h]);
      }
      if (in_order) {
        int mine = 0;
        for (int h = 0; h < halves; ++h) mine += t.popcount(equals[h]);
        if (lane == 0) shared.ties[warp] = mine;
        t.sync();
        std::int64_t before = earlier;
        for (int w = 0; w < block_warps; ++w) {
          if (w < warp) before += shared.ties[w];
          earlier += shared.ties[w];
        }
        t.sync();
        for (int h = 0; h < halves; ++h) {
          const std::int64_t rank = before + t.popcount(equals[h] & ((1U << lane) - 1));
          before += t.popcount(equals[h]);
          equals[h] = t.ballot(equal[h] && rank < room);
        }
      }
      if (lane < words_per_warp) {
        std::uint64_t bits = 0;
        for (int h = 0; h < halves; ++h) {
          const std::uint32_t half = chosen[h] | (room > 0 ? equals[h] : 0);
          if (h / 2 == lane) bits |= std::uint64_t{half} << (h % 2 * warp_threads);
        }
        if (bits != 0) words[word + lane] |= bits;
      }
    }
  }

 private:
  // Element at the first bit of a turn.
  template <class Thread>
  __device__ std::int64_t at(const Thread& t, std::int64_t turn) const {
    return (t.block() * in.run + turn) * MaskView::word_bits - in.lead;
  }
};

/// Sets the bits first + i of the k largest |x[i]|, 0 < k ≤ n; see SparseKernels::top_k.
template <class Launcher>
void top_k(const float* x, std::int64_t n, std::int64_t k, std::uint64_t* words, std::int64_t first, const Stream& stream) {
  Scratch* scratch = Launcher::scratch(stream);
  const std::int64_t lead = first % MaskView::word_bits;
  const Runs runs = divide_into_runs(mask_words(lead + n), words_per_turn, Launcher::most_joint_blocks);
  const Placed in{x, n, lead, runs.size};
  for (int pass = 0; pass < digit_passes; ++pass) Launcher::launch(FindDigit{in, k, pass, scratch}, runs.blocks, stream);
  Launcher::launch(MarkLargest{in, words + first / MaskView::word_bits, scratch}, runs.blocks, stream);
}

}  // namespace scape::cuda
