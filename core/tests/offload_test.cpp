// Parts of vectors that lie in host memory: which parts there are, where they lie on the device, and that their ways up, through
// the compute stream and down again keep their order.
#include "methods/offload.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace scape {
namespace {

using Use = Staging::Use;

TEST(Staging, VisitsWholeRangesOfWhatIsNotOffloaded) {
  const Buffer<float> x(1000);
  Staging staging(cpu_device, 64, 0);
  std::vector<Range> parts;
  const std::array vectors{Staging::Vector{x.span(), false, Use::update}};
  for (const Range range : {Range{0, 1000}, Range{7, 600}, Range{3, 3}}) {
    staging.for_each_part(range, vectors, Stream(), [&](Range part, Span<float> here) {
      parts.push_back(part);
      EXPECT_EQ(here.data(), x.data() + part.begin);
      EXPECT_EQ(here.size(), part.size());
    });
  }
  EXPECT_EQ(parts, (std::vector<Range>{{0, 1000}, {7, 600}}));
}

TEST(Staging, CutsAtMultiplesOfAPieceAndKeepsTheAlignment) {
  const OffloadableVector x(1000, cpu_device, true);
  const Buffer<float> y(1000);
  Staging staging(cpu_device, 100, 1);  // whole cache lines: 112
  std::vector<Range> parts;
  staging.for_each_part({7, 340}, std::array{Staging::Vector{y.span()}, Staging::Vector{x.span(), true}}, Stream(),
                        [&](Range part, Span<const float> of_y, Span<const float> of_x) {
                          parts.push_back(part);
                          EXPECT_EQ(of_y.data(), y.data() + part.begin);
                          EXPECT_EQ(of_x.size(), part.size());
                          const auto place = [](const float* at) { return reinterpret_cast<std::uintptr_t>(at) % 64; };
                          EXPECT_EQ(place(of_x.data()), place(of_y.data()));
                        });
  EXPECT_EQ(parts, (std::vector<Range>{{7, 112}, {112, 224}, {224, 336}, {336, 340}}));
}

// The compute stream is far behind its caller, so a part that is taken too early, or overwritten, has the wrong values.
TEST(Staging, KeepsTheOrderOfReadsAndWrites) {
  constexpr std::int64_t size = 500;
  const auto slowly = [](const Stream& stream, std::function<void()> operation) {
    stream.enqueue([operation = std::move(operation)] {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      operation();
    });
  };
  for (const std::int64_t piece : {64, 1000}) {
    const OffloadableVector x(size, cpu_device, true), doubled(size, cpu_device, true);
    const Buffer<float> read(size);
    Staging staging(cpu_device, piece, 2);
    const Stream stream(cpu_device);
    constexpr int rounds = 6;
    for (int round = 1; round <= rounds; ++round) {
      const std::array both{Staging::Vector{x.span(), true, Use::update}, Staging::Vector{doubled.span(), true, Use::write}};
      staging.for_each_part({0, size}, both, stream, [&](Range part, Span<float> a, Span<float> b) {
        slowly(stream, [=] {
          for (std::int64_t i = 0; i < part.size(); ++i) {
            a.data()[i] += static_cast<float>(part.begin + i);
            b.data()[i] = 2 * a.data()[i];
          }
        });
      });
      staging.for_each_part({0, size}, std::array{Staging::Vector{doubled.span(), true, Use::read}}, stream,
                            [&](Range part, Span<const float> b) {
                              slowly(stream, [=, to = read.span().subspan(part.begin, part.size())] {
                                for (std::int64_t i = 0; i < part.size(); ++i) to.data()[i] += b.data()[i];
                              });
                            });
    }
    stream.synchronize();
    for (std::int64_t j = 0; j < size; ++j) {
      EXPECT_EQ(x.span().data()[j], static_cast<float>(rounds * j)) << j;
      EXPECT_EQ(doubled.span().data()[j], static_cast<float>(2 * rounds * j)) << j;
      EXPECT_EQ(read.data()[j], static_cast<float>(rounds * (rounds + 1) * j)) << j;  // 2 j (1 + 2 + … + rounds)
    }
  }
}

}  // namespace
}  // namespace scape
