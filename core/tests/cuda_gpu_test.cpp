// The CUDA backend on a GPU, skipped where there is none: the kernel suite, streams and events, and vectors of more than 2^31
// elements. What must hold without a GPU is tested everywhere.
#include <atomic>
#include <bit>
#include <future>
#include <new>
#include <stdexcept>
#include <vector>

#include "methods/offload.hpp"
#include "support/kernel_suite.hpp"
#include "support/message_of.hpp"

namespace scape::testing {

namespace {

constexpr Device gpu{DeviceKind::cuda, 0};

INSTANTIATE_TEST_SUITE_P(Gpu, KernelSuite,
                         ::testing::Values(KernelsUnderTest{"cuda", gpu, update_kernels, sparse_kernels, quant_kernels}),
                         kernels_name);

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count(DeviceKind::cuda) == 0) GTEST_SKIP() << "no CUDA device";
  }
};

template <class T>
T read(Span<const T> value, const Stream& stream) {
  T host{};
  copy<T>(Span<T>(std::span(&host, 1)), value, stream);
  stream.synchronize();
  return host;
}

TEST(WithoutGpu, ADeviceThatIsNotThereIsRefusedWithAReason) {
  const Device missing{DeviceKind::cuda, device_count(DeviceKind::cuda)};
  EXPECT_THROW(Stream{missing}, Error);
  const std::string message = message_of(ErrorKind::usage, [&] { const Buffer<float> buffer(1, missing); });
  EXPECT_NE(message.find("is not there"), std::string::npos) << message;
}

TEST_F(Gpu, MemoryIsZeroAndCopiesInOrder) {
  EXPECT_FALSE(device_name(gpu).empty());
  const Stream stream(gpu);
  const Buffer<float> device(1000, gpu);
  const PinnedBuffer<float> pinned(1000, gpu);
  for (float& value : pinned.host()) value = 5;
  copy<float>(pinned, device, stream);
  stream.synchronize();
  for (const float value : pinned.host()) ASSERT_EQ(value, 0);

  stream.enqueue([&] {
    for (float& value : pinned.host()) value = 3;
  });
  copy<float>(device, pinned, stream);
  EXPECT_EQ(read<float>(device.span().subspan(999, 1), stream), 3);
  zero<float>(device, stream);
  EXPECT_EQ(read<float>(device.span().subspan(999, 1), stream), 0);
}

TEST_F(Gpu, AStreamWaitsForAnEventOfAnother) {
  const Stream first(gpu);
  const Stream second(gpu);
  std::atomic<bool> released = false;
  std::atomic<int> order = 0;
  int first_at = 0;
  int second_at = 0;
  Event begin(gpu);
  Event done(gpu);
  EXPECT_TRUE(done.ready());  // not recorded
  begin.record(first);
  first.enqueue([&] {
    released.wait(false);
    first_at = ++order;
  });
  done.record(first);
  second.wait(done);
  second.enqueue([&] { second_at = ++order; });
  EXPECT_FALSE(done.ready());
  released = true;
  released.notify_all();
  second.synchronize();
  EXPECT_EQ(first_at, 1);
  EXPECT_EQ(second_at, 2);
  EXPECT_TRUE(done.ready());
  EXPECT_GT(seconds_between(begin, done), 0);
}

TEST_F(Gpu, AFailedHostOperationBreaksItsStreamAndWhoWaitsForIt) {
  const Stream broken(gpu);
  const Stream waiting(gpu);
  const Stream other(gpu);
  Event before(gpu);
  Event after(gpu);
  bool dropped = true;
  before.record(broken);
  broken.enqueue([] { throw std::runtime_error("as planned"); });
  after.record(broken);
  broken.enqueue([&] { dropped = false; });
  waiting.wait(after);
  other.wait(before);
  EXPECT_THROW(broken.synchronize(), std::runtime_error);
  EXPECT_THROW(after.synchronize(), std::runtime_error);
  EXPECT_THROW(waiting.synchronize(), std::runtime_error);
  EXPECT_NO_THROW(before.synchronize());
  EXPECT_NO_THROW(other.synchronize());
  EXPECT_TRUE(dropped);
}

TEST_F(Gpu, PartsOfHostMemoryComeAndGoInOrder) {
  constexpr std::int64_t n = 100'000;
  const OffloadableVector x(n, gpu, true), sum(n, gpu, true);
  for (std::int64_t j = 0; j < n; ++j) x.span().data()[j] = static_cast<float>(j);
  const Stream stream(gpu);
  Staging staging(gpu, 1000, 2);
  const std::array vectors{Staging::Vector{x.span(), true, Staging::Use::update},
                           Staging::Vector{sum.span(), true, Staging::Use::update}};
  for (int round = 0; round < 3; ++round) {
    staging.for_each_part({0, n}, vectors, stream, [&](Range, Span<float> of_x, Span<float> of_sum) {
      update_kernels(gpu).scale(of_x, 2, stream);
      update_kernels(gpu).add(of_sum, of_x, 1, stream);
    });
  }
  stream.synchronize();
  for (std::int64_t j = 0; j < n; ++j) ASSERT_EQ(sum.span().data()[j], static_cast<float>((2 + 4 + 8) * j)) << j;
}

TEST_F(Gpu, StreamsOfTheHostAndOfTheGpuTakeTurns) {
  constexpr std::int64_t rounds = 200;
  const Stream host(cpu_device);
  const Stream device(gpu);
  const PinnedBuffer<float> counter(1, gpu);
  const Buffer<float> seen(rounds, gpu);
  Event raised;
  Event taken(gpu);
  for (std::int64_t i = 0; i < rounds; ++i) {
    host.enqueue([&] { counter.data()[0] += 1; });
    raised.record(host);
    device.wait(raised);
    copy<float>(seen.span().subspan(i, 1), counter, device);
    taken.record(device);
    host.wait(taken);
  }
  std::vector<float> values(rounds);
  copy<float>(Span<float>(values), seen, device);
  device.synchronize();
  host.synchronize();
  for (std::int64_t i = 0; i < rounds; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], static_cast<float>(i + 1));
  Stream().wait(taken);  // an immediate one waits, too
}

// With host operations that block, the first stream would hold the second one up.
TEST_F(Gpu, AStreamThatWaitsForTheHostHoldsNoOtherUp) {
  const Stream first_host(cpu_device);
  const Stream second_host(cpu_device);
  const Stream first(gpu);
  const Stream second(gpu);
  const Stream other_host(cpu_device);
  std::promise<void> first_gate;
  std::promise<void> second_gate;
  Event event;
  first_host.enqueue([&] { first_gate.get_future().wait(); });
  second_host.enqueue([&] { second_gate.get_future().wait(); });
  event.record(first_host);
  first.wait(event);
  event.record(second_host);
  second.wait(event);
  Event on_device(gpu);
  std::atomic<bool> opened = false;
  bool passed = false;
  on_device.record(first);
  other_host.wait(on_device);  // for the record on `first`
  other_host.enqueue([&] { passed = opened; });
  on_device.record(second);
  EXPECT_FALSE(on_device.ready());
  second_gate.set_value();
  second.synchronize();
  EXPECT_TRUE(on_device.ready());
  opened = true;
  first_gate.set_value();
  first.synchronize();
  other_host.synchronize();
  EXPECT_TRUE(passed);
}

TEST_F(Gpu, AFailureOfTheHostReachesTheStreamThatWaitsForIt) {
  const Stream broken(cpu_device);
  const Stream waiting(gpu);
  const Stream next(gpu);
  const Stream host(cpu_device);
  Event before;
  Event after;
  before.record(broken);
  broken.enqueue([] { throw std::runtime_error("as planned"); });
  after.record(broken);
  waiting.wait(before);
  EXPECT_NO_THROW(waiting.synchronize());
  waiting.wait(after);
  Event passed_on(gpu);
  passed_on.record(waiting);
  next.wait(passed_on);
  host.wait(passed_on);
  EXPECT_THROW(waiting.synchronize(), std::runtime_error);
  EXPECT_THROW(next.synchronize(), std::runtime_error);
  EXPECT_THROW(host.synchronize(), std::runtime_error);
}

TEST_F(Gpu, VectorsOfMoreThan2To31Elements) {
  const std::int64_t n = (std::int64_t{1} << 31) + 1000;
  const Stream stream(gpu);
  Buffer<float> x;
  try {
    x = Buffer<float>(n, gpu);
  } catch (const std::bad_alloc&) {
    GTEST_SKIP() << "less than 9 GB of memory";
  }
  const std::vector<std::pair<std::int64_t, float>> values{{1, 0.5F}, {n - 70, -2}, {n - 1, 3}};
  for (const auto& [j, value] : values) {
    copy<float>(x.span().subspan(j, 1), Span<const float>(std::span(&value, 1)), stream);
  }
  const Buffer<double> sum(1, gpu);
  update_kernels(gpu).sum_of_squares(x, sum, stream);
  EXPECT_EQ(read<double>(sum, stream), 13.25);

  const Buffer<std::uint64_t> words(mask_words(n), gpu);
  const Buffer<std::int64_t> offsets(mask_blocks(n), gpu);
  sparse_kernels(gpu).top_k(x, 4, words, 0, stream);  // the fourth: of all the zeros the first
  sparse_kernels(gpu).index_mask(words, offsets, stream);
  const MaskView mask{words, offsets, n, 4};
  const Buffer<float> packed(4, gpu);
  const Buffer<std::uint32_t> indices(4, gpu);
  sparse_kernels(gpu).pack(x, mask, packed, stream);
  sparse_kernels(gpu).indices(mask, indices, stream);
  const std::vector<std::int64_t> expected{0, 1, n - 70, n - 1};
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(read<std::uint32_t>(indices.span().subspan(i, 1), stream), expected[static_cast<std::size_t>(i)]);
    EXPECT_EQ(read<float>(packed.span().subspan(i, 1), stream), i == 0 ? 0 : values[static_cast<std::size_t>(i - 1)].second);
  }
}

}  // namespace

}  // namespace scape::testing
