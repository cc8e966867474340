// Codes of masks, made and read a 64-bit word at a time.
#include "methods/mask_coding.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "scape/error.hpp"

namespace scape {

namespace {

static_assert(std::endian::native == std::endian::little, "the bytes of a word are its bits in order");

constexpr std::int64_t word_bits = MaskView::word_bits;
constexpr std::int64_t block_size = 65536;
constexpr std::array exact_codings{MaskCoding::bitmap, MaskCoding::index32, MaskCoding::index16, MaskCoding::elias_fano};
constexpr std::int64_t largest_index32 = std::int64_t{1} << 32;

std::int64_t bytes_for(std::int64_t bits) {
  return (bits + 7) / 8;
}
std::int64_t blocks_of(std::int64_t n) {
  return (n + block_size - 1) / block_size;
}

// Elias–Fano's parts.
struct Split {
  int low_bits;
  std::int64_t low_size, high_size;  // bits
};
Split elias_fano_split(std::int64_t n, std::int64_t k) {
  const auto low = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n / k))) - 1;
  return {low, k * low, k + ((n - 1) >> low)};
}

// `count` ≤ 64 bits from bit `first` on.
std::uint64_t bits_at(std::span<const std::uint64_t> words, std::int64_t first, std::int64_t count) {
  if (count == 0) return 0;
  const auto word = static_cast<std::size_t>(first / word_bits);
  const std::int64_t shift = first % word_bits;
  std::uint64_t bits = words[word] >> shift;
  if (shift + count > word_bits) bits |= words[word + 1] << (word_bits - shift);
  return count == word_bits ? bits : bits & ((std::uint64_t{1} << count) - 1);
}

// Adds `count` ≤ 64 bits, of which none but the lowest `count` are set, at bit `first` on, where there are zeros.
void put_bits(std::span<std::uint64_t> words, std::int64_t first, std::int64_t count, std::uint64_t bits) {
  if (count == 0) return;
  const auto word = static_cast<std::size_t>(first / word_bits);
  const std::int64_t shift = first % word_bits;
  words[word] |= bits << shift;
  if (shift + count > word_bits) words[word + 1] |= bits >> (word_bits - shift);
}

// Calls visit(bit) for each set bit, ascending.
template <class Visit>
void for_each_set(std::span<const std::uint64_t> words, Visit visit) {
  for (std::size_t w = 0; w < words.size(); ++w) {
    for (std::uint64_t word = words[w]; word != 0; word &= word - 1) {
      visit(static_cast<std::int64_t>(w) * word_bits + std::countr_zero(word));
    }
  }
}

template <class Integer>
void store(std::uint8_t*& to, std::int64_t value) {
  const auto integer = static_cast<Integer>(value);
  std::memcpy(to, &integer, sizeof(integer));
  to += sizeof(integer);
}
template <class Integer>
std::int64_t load(const std::uint8_t*& from) {
  Integer integer = 0;
  std::memcpy(&integer, from, sizeof(integer));
  from += sizeof(integer);
  return static_cast<std::int64_t>(integer);
}

// Either may be null where there is nothing to copy.
void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

std::vector<std::uint64_t> zero_words(std::int64_t bits) {
  return std::vector<std::uint64_t>(static_cast<std::size_t>(mask_words(bits)));
}

void check(bool sound) {
  require(sound, ErrorKind::communication, "scape: a coded mask arrived damaged");
}

void set_bit(std::span<std::uint64_t> bits, std::int64_t j, std::int64_t n) {
  check(j < n);
  bits[static_cast<std::size_t>(j / word_bits)] |= std::uint64_t{1} << j % word_bits;
}

void encode_elias_fano(std::span<const std::uint64_t> bits, std::int64_t n, std::int64_t k, std::uint8_t* to) {
  const auto [low_bits, low_size, high_size] = elias_fano_split(n, k);
  std::vector<std::uint64_t> low = zero_words(low_size);
  std::vector<std::uint64_t> high = zero_words(high_size);
  std::int64_t i = 0;
  const std::uint64_t low_mask = (std::uint64_t{1} << low_bits) - 1;
  for_each_set(bits, [&, low_bits = low_bits](std::int64_t j) {
    put_bits(low, i * low_bits, low_bits, static_cast<std::uint64_t>(j) & low_mask);
    put_bits(high, i + (j >> low_bits), 1, 1);
    ++i;
  });
  copy_bytes(to, low.data(), bytes_for(low_size));
  copy_bytes(to + bytes_for(low_size), high.data(), bytes_for(high_size));
}

void decode_elias_fano(const std::uint8_t* from, std::int64_t n, std::int64_t k, std::span<std::uint64_t> bits) {
  const auto [low_bits, low_size, high_size] = elias_fano_split(n, k);
  std::vector<std::uint64_t> low = zero_words(low_size);
  std::vector<std::uint64_t> high = zero_words(high_size);
  copy_bytes(low.data(), from, bytes_for(low_size));
  copy_bytes(high.data(), from + bytes_for(low_size), bytes_for(high_size));
  std::int64_t i = 0;
  for_each_set(high, [&, low_bits = low_bits](std::int64_t position) {
    check(i < k);
    const auto low_part = static_cast<std::int64_t>(bits_at(low, i * low_bits, low_bits));
    set_bit(bits, (position - i) << low_bits | low_part, n);
    ++i;
  });
}

void encode_index16(std::span<const std::uint64_t> bits, std::int64_t n, std::uint8_t* to) {
  std::uint8_t* offsets = to + 4 * blocks_of(n);
  for (std::int64_t block = 0; block < blocks_of(n); ++block) {
    const std::int64_t words = std::min(block_size, n - block * block_size);
    const auto in_block =
        bits.subspan(static_cast<std::size_t>(block * block_size / word_bits), static_cast<std::size_t>(mask_words(words)));
    std::int64_t count = 0;
    for_each_set(in_block, [&](std::int64_t offset) {
      store<std::uint16_t>(offsets, offset);
      ++count;
    });
    store<std::uint32_t>(to, count);
  }
}

void decode_index16(const std::uint8_t* from, std::int64_t n, std::int64_t k, std::span<std::uint64_t> bits) {
  const std::uint8_t* offsets = from + 4 * blocks_of(n);
  std::int64_t left = k;
  for (std::int64_t block = 0; block < blocks_of(n); ++block) {
    const std::int64_t count = load<std::uint32_t>(from);
    left -= count;
    check(left >= 0);
    for (std::int64_t i = 0; i < count; ++i) set_bit(bits, block * block_size + load<std::uint16_t>(offsets), n);
  }
}

}  // namespace

MaskCoding resolve(MaskCoding coding, std::int64_t n, std::int64_t k) {
  if (coding != MaskCoding::automatic) return coding;
  return *std::min_element(exact_codings.begin(), exact_codings.end(),
                           [&](MaskCoding a, MaskCoding b) { return coded_bytes(a, n, k) < coded_bytes(b, n, k); });
}

std::int64_t coded_bytes(MaskCoding coding, std::int64_t n, std::int64_t k) {
  switch (coding) {
    case MaskCoding::bitmap:
      return bytes_for(n);
    case MaskCoding::index32:
      return n <= largest_index32 ? 4 * k : std::numeric_limits<std::int64_t>::max();
    case MaskCoding::index16:
      return k == 0 ? 0 : 4 * blocks_of(n) + 2 * k;
    case MaskCoding::elias_fano:
      if (k == 0) return 0;
      return bytes_for(elias_fano_split(n, k).low_size) + bytes_for(elias_fano_split(n, k).high_size);
    case MaskCoding::automatic:
      return coded_bytes(resolve(coding, n, k), n, k);
  }
  return 0;
}

void encode_mask(MaskCoding coding, std::span<const std::uint64_t> bits, std::int64_t n, std::int64_t k,
                 std::span<std::uint8_t> coded) {
  require(std::ssize(bits) == mask_words(n) && std::ssize(coded) == coded_bytes(coding, n, k), ErrorKind::internal,
          "encode_mask: a span has the wrong size");
  if (coded.empty()) return;
  std::uint8_t* to = coded.data();
  switch (resolve(coding, n, k)) {
    case MaskCoding::bitmap:
      std::memcpy(to, bits.data(), coded.size());
      break;
    case MaskCoding::index32:
      for_each_set(bits, [&](std::int64_t j) { store<std::uint32_t>(to, j); });
      break;
    case MaskCoding::index16:
      encode_index16(bits, n, to);
      break;
    default:
      encode_elias_fano(bits, n, k, to);
  }
}

void decode_mask(MaskCoding coding, std::span<const std::uint8_t> coded, std::int64_t n, std::int64_t k,
                 std::span<std::uint64_t> bits) {
  require(std::ssize(bits) == mask_words(n) && std::ssize(coded) == coded_bytes(coding, n, k), ErrorKind::internal,
          "decode_mask: a span has the wrong size");
  std::fill(bits.begin(), bits.end(), 0);
  if (coded.empty()) return;
  const std::uint8_t* from = coded.data();
  switch (resolve(coding, n, k)) {
    case MaskCoding::bitmap:
      std::memcpy(bits.data(), from, coded.size());
      check(n % word_bits == 0 || bits.back() >> n % word_bits == 0);
      break;
    case MaskCoding::index32:
      for (std::int64_t i = 0; i < k; ++i) set_bit(bits, load<std::uint32_t>(from), n);
      break;
    case MaskCoding::index16:
      decode_index16(from, n, k, bits);
      break;
    default:
      decode_elias_fano(from, n, k, bits);
  }
  std::int64_t count = 0;
  for (const std::uint64_t word : bits) count += std::popcount(word);
  check(count == k);
}

void copy_set_bits(std::span<const std::uint64_t> from, std::int64_t from_first, std::int64_t n, std::span<std::uint64_t> to,
                   std::int64_t to_first) {
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t count = std::min(word_bits - (to_first + i) % word_bits, n - i);
    put_bits(to, to_first + i, count, bits_at(from, from_first + i, count));
    i += count;
  }
}

}  // namespace scape
