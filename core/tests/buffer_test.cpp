// Spans and buffers: zeroed aligned memory, checked ranges, the checked way to the host, copies ordered on a stream.
#include "scape/buffer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include "support/message_of.hpp"

namespace scape {
namespace {

using testing::message_of;

TEST(Buffer, IsZeroedAndAligned) {
  for (const std::int64_t size : {1, 3, 16, 17, 1000, 100'000}) {
    { std::ranges::fill(Buffer<std::uint8_t>(size).span().host(), std::uint8_t{0xff}); }  // likely the next buffer's memory
    const Buffer<std::uint8_t> buffer(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
    EXPECT_EQ(std::ranges::count(buffer.span().host(), 0), size);
    const PinnedBuffer<double> pinned(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pinned.data()) % 64, 0U);
    EXPECT_EQ(std::ranges::count(pinned.span().host(), 0.0), size);
  }
}

TEST(Buffer, MovesAndEmptiesItsSource) {
  Buffer<int> a(4);
  a.host()[2] = 7;
  const int* data = a.data();
  Buffer<int> b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(a.size(), 0);
  Buffer<int> c(1);
  c = std::move(b);
  EXPECT_EQ(c.host()[2], 7);
  EXPECT_EQ(b.size(), 0);  // NOLINT(bugprone-use-after-move)
  c = Buffer<int>();
  EXPECT_EQ(c.size(), 0);
}

TEST(Buffer, OfNothingIsUsable) {
  const Stream stream;
  const Buffer<float> empty(0);
  EXPECT_TRUE(empty.span().empty());
  EXPECT_EQ(empty.span().subspan(0, 0).size(), 0);
  copy(empty.span(), Buffer<float>(0).span(), stream);
  zero(empty.span(), stream);
}

TEST(Buffer, RefusesSizesThatCannotBe) {
  message_of(ErrorKind::internal, [] { const Buffer<float> buffer(-1); });
  for (const std::int64_t size : {std::int64_t{1} << 61, std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_THROW(const Buffer<double> buffer(size), std::bad_alloc) << size;
    EXPECT_THROW(const PinnedBuffer<double> buffer(size), std::bad_alloc) << size;
  }
  EXPECT_THROW(const Buffer<std::uint8_t> buffer(std::numeric_limits<std::int64_t>::max()), std::bad_alloc);
  EXPECT_THROW(const Buffer<float> buffer(4, Device{DeviceKind::cuda, 4096}), Error);
}

TEST(Span, ChecksItsBounds) {
  const Buffer<int> buffer(10);
  const Span<int> span = buffer;
  EXPECT_EQ(span.subspan(3, 7).data(), span.data() + 3);
  EXPECT_EQ(span.subspan(10, 0).size(), 0);
  EXPECT_EQ(span.subspan(2, 5).size_bytes(), 20);
  constexpr auto huge = std::numeric_limits<std::int64_t>::max();
  for (const auto& [offset, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {-1, 2}, {0, 11}, {10, 1}, {11, 0}, {3, -1}, {huge, 1}, {1, huge}, {huge, huge}}) {
    message_of(ErrorKind::internal, [&] { (void)span.subspan(offset, count); });
  }
}

TEST(Span, GivesOnlyHostMemoryToTheHost) {
  float value = 1;
  const Span<float> device(&value, 1, Device{DeviceKind::cuda, 0});
  message_of(ErrorKind::internal, [&] { (void)device.host(); });
  message_of(ErrorKind::internal, [&] { (void)Span<const float>(device).host(); });  // the device survives the conversion
  message_of(ErrorKind::internal, [&] { (void)device.subspan(0, 1).host(); });
  EXPECT_EQ(Span<float>(&value, 1, cpu_device).host()[0], 1);
}

TEST(Copy, IsOrderedOnItsStream) {
  const Stream stream(cpu_device);
  const Buffer<int> a(1000);
  const Buffer<int> b(1000);
  stream.enqueue([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::ranges::fill(a.span().host(), 5);
  });
  copy(b.span(), a.span(), stream);
  zero(a.span(), stream);
  EXPECT_EQ(read(b.span().subspan(999, 1), stream), 5);
  EXPECT_EQ(read(a.span().subspan(0, 1), stream), 0);
  message_of(ErrorKind::internal, [&] { copy(b.span(), a.span().subspan(0, 999), stream); });
}

TEST(Copy, RefusesAStreamOfAnotherDevice) {
  float value = 1;
  const Span<float> device(&value, 1, Device{DeviceKind::cuda, 0});
  const Buffer<float> host(1);
  const Stream stream;
  message_of(ErrorKind::internal, [&] { copy(device, host.span(), stream); });
  message_of(ErrorKind::internal, [&] { copy(host.span(), device, stream); });
  message_of(ErrorKind::internal, [&] { zero(device, stream); });
}

}  // namespace
}  // namespace scape
