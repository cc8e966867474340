// Every collective on real ranks, against what a loop over the ranks gives: exact results, exact counters, on immediate and queued
// streams, with a limit on the elements of one MPI call so low that everything travels in pieces, along the paths of a GPU's
// memory, and where there are GPUs on theirs.
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <future>
#include <numeric>

#include "comm/probe.hpp"
#include "scape/build_info.hpp"
#include "scape/error.hpp"
#include "scape/kernels.hpp"
#include "support/rig.hpp"

namespace scape::testing {
namespace {

using ::testing::HasSubstr;
using Counts = std::vector<std::int64_t>;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

// Small whole numbers: exact in every type, also as sums over eight ranks.
template <class T>
T value(int rank, std::int64_t i) {
  return static_cast<T>((rank + 1) * (i % 6 + 1));
}
template <class T>
T reduced(ReduceOp op, int ranks, std::int64_t i) {
  const int factor = op == ReduceOp::sum ? ranks * (ranks + 1) / 2 : op == ReduceOp::max ? ranks : 1;
  return static_cast<T>(factor * (i % 6 + 1));
}

std::int64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}
std::int64_t before(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

// Equal, unequal, with empty parts, and nothing at all.
std::vector<Counts> block_counts() {
  const auto ranks = static_cast<std::size_t>(world_size());
  std::vector<Counts> all(6, Counts(ranks));
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto rank = static_cast<std::int64_t>(r);
    all[0][r] = 5;
    all[1][r] = 3 * rank + 1;
    all[2][r] = rank == 0 ? 0 : 17;
    all[3][r] = r + 1 == ranks ? 64 : 0;
    all[4][r] = 0;
    all[5][r] = 100 - rank * 13;
  }
  return all;
}

struct Way {
  std::string transport;
  Streams streams;
  Device device = cpu_device;
};
std::vector<Way> ways() {
  std::vector<Way> all;
  for (const Streams streams : {Streams::immediate, Streams::queued}) {
    for (const char* transport : {"mpi", "mpi_in_pieces", "self", "staged", "direct", "mixed"}) all.push_back({transport, streams});
  }
  const int gpus = device_count(DeviceKind::cuda);
  if (gpus > 0) {
    const Device gpu{DeviceKind::cuda, world_rank() % gpus};
    for (const char* transport : {"staged", "probed"}) all.push_back({transport, Streams::queued, gpu});
    if (world_size() <= gpus && build_info::with_nccl) all.push_back({"nccl", Streams::queued, gpu});
  }
  return all;
}

std::unique_ptr<Transport> make_transport(const std::string& name, Device device = cpu_device) {
  if (name == "nccl") return detail::make_nccl_transport(MPI_COMM_WORLD, device);
  if (name == "self") return detail::make_self_transport();
  if (name == "mpi") return detail::make_mpi_transport(MPI_COMM_WORLD);
  constexpr std::int64_t piece = 7;
  std::unique_ptr<Transport> in_pieces = detail::make_mpi_transport(MPI_COMM_WORLD, piece);
  if (name == "mpi_in_pieces") return in_pieces;
  if (name == "probed") {
    static const detail::MpiPaths paths = detail::probe_mpi(MPI_COMM_WORLD, device);
    return detail::make_device_mpi_transport(std::move(in_pieces), device, paths);
  }
  const detail::CollectiveSet direct(name == "direct" ? 0b11111 : name == "mixed" ? 0b01010 : 0);
  return detail::make_device_mpi_transport(std::move(in_pieces), device, {.direct = direct, .reason = "as the test wants"});
}

class Collectives : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const std::string& transport = GetParam().transport;
    if (transport == "self" && world_size() > 1) GTEST_SKIP() << "serves one rank";
    comm_ = std::make_unique<Communicator>(make_transport(transport, device()));
    if (GetParam().streams == Streams::queued) stream_ = Stream(device());
  }
  void TearDown() override { stream_.synchronize(); }

  // Makes a vector by value(i).
  template <class T, class Value>
  Buffer<T> filled(std::int64_t size, Value value_at) const {
    std::vector<T> values;
    for (std::int64_t i = 0; i < size; ++i) values.push_back(static_cast<T>(value_at(i)));
    Buffer<T> buffer(size, device());
    copy(buffer.span(), std::span<const T>(values), stream_);
    stream_.synchronize();
    return buffer;
  }
  template <class T, class Value>
  void expect(const Buffer<T>& buffer, Value value_at) {
    std::vector<T> values(static_cast<std::size_t>(buffer.size()));
    copy(Span<T>(values), buffer, stream_);
    stream_.synchronize();
    for (std::int64_t i = 0; i < buffer.size(); ++i) {
      const T found = values[static_cast<std::size_t>(i)];
      if (found == static_cast<T>(value_at(i))) continue;
      ADD_FAILURE() << "element " << i << " of " << buffer.size() << " is " << +found << ", not " << +value_at(i);
      return;
    }
  }
  // What one call added to the counters.
  void expect_counted(const Traffic& earlier, Collective kind, std::int64_t bytes) {
    const Traffic since = comm_->traffic().since(earlier);
    EXPECT_EQ(since[kind].calls, 1) << to_string(kind);
    EXPECT_EQ(since[kind].payload_bytes, bytes) << to_string(kind);
    EXPECT_NEAR(since[kind].wire_bytes, wire_bytes(kind, static_cast<double>(bytes), ranks()), 1e-6) << to_string(kind);
    EXPECT_EQ(since.total().calls, 1);
  }
  [[nodiscard]] static Device device() { return GetParam().device; }
  [[nodiscard]] int rank() const { return comm_->rank(); }
  [[nodiscard]] int ranks() const { return comm_->size(); }

  template <class T>
  void all_reduce() {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max}) {
      for (const std::int64_t n : {0, 1, 6, 7, 8, 1000}) {
        const Buffer<T> data = filled<T>(n, [&](auto i) { return value<T>(rank(), i); });
        const Traffic earlier = comm_->traffic();
        comm_->all_reduce(data.span(), op, stream_);
        expect(data, [&](auto i) { return reduced<T>(op, ranks(), i); });
        expect_counted(earlier, Collective::all_reduce, n * static_cast<std::int64_t>(sizeof(T)));
      }
    }
  }
  template <class T>
  void reduce_scatter() {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max}) {
      for (const Counts& counts : block_counts()) {
        const std::int64_t begin = before(counts, rank());
        const Buffer<T> input = filled<T>(sum_of(counts), [&](auto i) { return value<T>(rank(), i); });
        const Buffer<T> output(counts[static_cast<std::size_t>(rank())], device());
        const Traffic earlier = comm_->traffic();
        comm_->reduce_scatter_v(input.span(), output.span(), counts, op, stream_);
        expect(output, [&](auto i) { return reduced<T>(op, ranks(), begin + i); });
        expect(input, [&](auto i) { return value<T>(rank(), i); });
        expect_counted(earlier, Collective::reduce_scatter, input.span().size_bytes());
      }
    }
  }
  template <class T>
  void all_gather() {
    for (const Counts& counts : block_counts()) {
      const auto owner = [&](std::int64_t i) {
        int r = 0;
        while (i >= before(counts, r + 1)) ++r;
        return r;
      };
      const auto gathered = [&](auto i) { return value<T>(owner(i), i - before(counts, owner(i))); };
      const std::int64_t mine = counts[static_cast<std::size_t>(rank())];
      const Buffer<T> part = filled<T>(mine, [&](auto i) { return value<T>(rank(), i); });
      // From a buffer of its own on every rank, in place on every rank, and in place on the even ranks only.
      for (const int in_place : {0, 1, 2}) {
        const Buffer<T> all(sum_of(counts), device());
        const Span<T> place = all.span().subspan(before(counts, rank()), mine);
        const bool own_place = in_place == 1 || (in_place == 2 && rank() % 2 == 0);
        if (own_place) copy(place, part.span(), stream_);
        const Traffic earlier = comm_->traffic();
        comm_->all_gather_v(own_place ? place : part.span(), all.span(), counts, stream_);
        expect(all, gathered);
        expect_counted(earlier, Collective::all_gather, all.span().size_bytes());
      }
    }
    for (const std::int64_t n : {0, 1, 9}) {
      const Buffer<T> part = filled<T>(n, [&](auto i) { return value<T>(rank(), i); });
      const Buffer<T> all(n * ranks(), device());
      comm_->all_gather(part.span(), all.span(), stream_);
      expect(all, [&](auto i) { return value<T>(static_cast<int>(i / n), i % n); });
    }
  }
  template <class T>
  void all_to_all() {
    // Rank r sends count(r, to) elements, so that matrices of counts with empty rows, columns and parts occur.
    const std::vector<std::function<std::int64_t(int, int)>> shapes{
        [](int, int) { return std::int64_t{4}; },
        [](int from, int to) { return std::int64_t{from} * 5 + std::int64_t{to} * 11; },
        [](int from, int) { return std::int64_t{from == 0 ? 20 : 0}; },
        [](int, int to) { return std::int64_t{to == 0 ? 20 : 0}; },
        [](int, int) { return std::int64_t{0}; },
    };
    for (const auto& count : shapes) {
      Counts sent, received;
      for (int other = 0; other < ranks(); ++other) {
        sent.push_back(count(rank(), other));
        received.push_back(count(other, rank()));
      }
      const auto locate = [](const Counts& counts, std::int64_t i) {
        int r = 0;
        while (i >= before(counts, r + 1)) ++r;
        return std::pair(r, i - before(counts, r));
      };
      const auto element = [](int from, int to, std::int64_t i) { return value<T>(from, to + i); };
      const Buffer<T> send = filled<T>(sum_of(sent), [&](auto i) {
        const auto [to, at] = locate(sent, i);
        return element(rank(), to, at);
      });
      const Buffer<T> receive(sum_of(received), device());
      const Traffic earlier = comm_->traffic();
      comm_->all_to_all_v(send.span(), sent, receive.span(), received, stream_);
      expect(receive, [&](auto i) {
        const auto [from, at] = locate(received, i);
        return element(from, rank(), at);
      });
      expect_counted(earlier, Collective::all_to_all, send.span().size_bytes());
    }
  }
  template <class T>
  void broadcast() {
    for (int root = 0; root < ranks(); ++root) {
      for (const std::int64_t n : {0, 1, 7, 50}) {
        const Buffer<T> data = filled<T>(n, [&](auto i) { return value<T>(rank(), i); });
        const Traffic earlier = comm_->traffic();
        comm_->broadcast(data.span(), root, stream_);
        expect(data, [&](auto i) { return value<T>(root, i); });
        expect_counted(earlier, Collective::broadcast, n * static_cast<std::int64_t>(sizeof(T)));
      }
    }
  }

  std::unique_ptr<Communicator> comm_;  // outlives the queue of the stream
  Stream stream_;
};
INSTANTIATE_TEST_SUITE_P(Ways, Collectives, ::testing::ValuesIn(ways()), [](const auto& test) {
  const Way& way = test.param;
  return way.transport + (way.device != cpu_device ? "_gpu" : way.streams == Streams::queued ? "_queued" : "_immediate");
});

TEST_P(Collectives, AllReduce) {
  all_reduce<float>();
  all_reduce<double>();
  all_reduce<std::uint8_t>();
  all_reduce<std::uint64_t>();
}
TEST_P(Collectives, ReduceScatter) {
  reduce_scatter<float>();
  reduce_scatter<double>();
  reduce_scatter<std::uint8_t>();
  reduce_scatter<std::uint64_t>();
}
TEST_P(Collectives, AllGather) {
  all_gather<float>();
  all_gather<double>();
  all_gather<std::uint8_t>();
  all_gather<std::uint64_t>();
}
TEST_P(Collectives, AllToAll) {
  all_to_all<float>();
  all_to_all<double>();
  all_to_all<std::uint8_t>();
  all_to_all<std::uint64_t>();
}
TEST_P(Collectives, Broadcast) {
  broadcast<float>();
  broadcast<double>();
  broadcast<std::uint8_t>();
  broadcast<std::uint64_t>();
}

// An element of 64 bits keeps all of them, through a sum as through a copy.
TEST_P(Collectives, WholeWordsSurvive) {
  const auto bit = std::uint64_t{1} << 63 | std::uint64_t{1} << rank();
  const Buffer<std::uint64_t> all(ranks(), device());
  const Buffer<std::uint64_t> mine = filled<std::uint64_t>(1, [&](auto) { return bit; });
  comm_->all_gather(mine.span(), all.span(), stream_);
  expect(all, [](auto i) { return std::uint64_t{1} << 63 | std::uint64_t{1} << i; });
}

TEST_P(Collectives, IsOrderedOnItsStream) {
  const Buffer<float> data(1000, device());
  const Buffer<float> ones = filled<float>(1000, [](auto) { return 1; });
  for (int round = 0; round < 20; ++round) {
    copy(data.span(), ones, stream_);
    comm_->all_reduce(data.span(), ReduceOp::sum, stream_);
    comm_->barrier(stream_);
    update_kernels(device()).divide(data, 2, stream_);
  }
  expect(data, [&](auto) { return static_cast<float>(ranks()) / 2; });
  EXPECT_EQ(comm_->traffic()[Collective::all_reduce].calls, 20);
  EXPECT_EQ(comm_->traffic()[Collective::all_reduce].payload_bytes, 80'000);
  EXPECT_GT(comm_->traffic()[Collective::all_reduce].seconds, 0);
}

// Two communicators of the same ranks on two streams, queued in another order on every second rank.
TEST_P(Collectives, DuplicatesServeTwoStreamsAtOnce) {
  const std::unique_ptr<Communicator> other = comm_->duplicate();
  EXPECT_EQ(other->rank(), rank());
  EXPECT_EQ(other->size(), ranks());
  EXPECT_EQ(other->name(), comm_->name());
  constexpr std::int64_t rounds = 12;
  constexpr std::int64_t n = 60;
  const Buffer<double> a = filled<double>(rounds * n, [&](auto) { return rank() + 1.0; });
  const Buffer<double> b = filled<double>(rounds * n, [&](auto) { return 10.0 * rank(); });
  const Stream one(device()), two(device());
  for (std::int64_t i = 0; i < rounds; ++i) {
    const auto first = [&] { comm_->all_reduce(a.span().subspan(i * n, n), ReduceOp::sum, one); };
    const auto second = [&] { other->all_reduce(b.span().subspan(i * n, n), ReduceOp::max, two); };
    rank() % 2 == 0 ? (first(), second()) : (second(), first());
  }
  one.synchronize();
  two.synchronize();
  expect(a, [&](auto) { return ranks() * (ranks() + 1) / 2.0; });
  expect(b, [&](auto) { return 10.0 * (ranks() - 1); });
  EXPECT_EQ(comm_->traffic().total().calls, rounds);
  EXPECT_EQ(other->traffic().total().calls, rounds);  // counters of its own
  EXPECT_EQ(other->traffic()[Collective::all_reduce].payload_bytes, rounds * n * 8);
}

TEST_P(Collectives, RefuseCountsThatDoNotFit) {
  const auto expect_refused = [](auto call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::internal) << error.what();
    }
  };
  const Buffer<float> four(4), one(1), all(4 * ranks());
  const Counts fours(static_cast<std::size_t>(ranks()), 4);
  const Counts too_many(static_cast<std::size_t>(ranks()) + 1, 4);
  Counts negative = fours;
  negative[0] = -4;
  if (ranks() > 1) negative[1] = 12;
  const Traffic earlier = comm_->traffic();
  expect_refused([&] { comm_->all_gather_v(one.span(), all.span(), fours, stream_); });
  expect_refused([&] { comm_->all_gather_v(four.span(), four.span(), too_many, stream_); });
  expect_refused([&] { comm_->all_gather_v(four.span(), all.span(), negative, stream_); });
  expect_refused([&] { comm_->all_gather_v(four.span(), all.span(), Counts{}, stream_); });
  expect_refused([&] { comm_->reduce_scatter_v(all.span(), one.span(), fours, ReduceOp::sum, stream_); });
  expect_refused([&] { comm_->reduce_scatter_v(one.span(), four.span(), fours, ReduceOp::sum, stream_); });
  expect_refused([&] { comm_->all_to_all_v(one.span(), fours, all.span(), fours, stream_); });
  expect_refused([&] { comm_->all_to_all_v(all.span(), fours, one.span(), fours, stream_); });
  expect_refused([&] { comm_->all_to_all_v(all.span(), Counts{}, all.span(), fours, stream_); });
  EXPECT_EQ(comm_->traffic().since(earlier).total().calls, 0);
}

TEST(MpiTransport, AFailedCallIsACommunicationError) {
  const Buffer<float> data(1);
  const auto expect_communication_error = [](auto call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::communication);
      EXPECT_THAT(error.what(), HasSubstr("MPI_Bcast"));
    }
  };
  for (const char* transport : {"mpi", "staged", "direct"}) {
    Communicator comm(make_transport(transport));
    expect_communication_error([&] { comm.broadcast(data.span(), comm.size(), Stream()); });  // no such root
    const Stream queued(cpu_device);
    comm.broadcast(data.span(), comm.size(), queued);
    expect_communication_error([&] { queued.synchronize(); });
  }
}

TEST(DeviceMpiTransport, SaysWhichPathsItTakesAndWhy) {
  EXPECT_EQ(make_transport("staged")->name(), "staged");
  EXPECT_EQ(make_transport("direct")->name(), "cuda_aware");
  EXPECT_EQ(make_transport("mixed")->name(), "mpi(direct: reduce_scatter, all_to_all; staged: all_reduce, all_gather, broadcast)");
  const std::unique_ptr<Communicator> other = Communicator(make_transport("mixed")).duplicate();
  EXPECT_EQ(other->name(), make_transport("mixed")->name());
  EXPECT_EQ(other->reason(), "as the test wants");
  EXPECT_EQ(Communicator(make_transport("mpi")).reason(), "");
}

// On a queued stream, whatever comes before a collective: it waits for that, and the caller for nothing.
TEST(DeviceMpiTransport, StartsWhenItsStreamGetsThereWithoutHoldingTheCallerUp) {
  for (const char* transport : {"staged", "direct"}) {
    Communicator comm(make_transport(transport));
    const Stream stream(cpu_device);
    const Buffer<float> data(3), copied(3);
    std::promise<void> opened;
    stream.enqueue([&] {
      opened.get_future().wait();
      std::fill_n(data.data(), 3, 1.0F);
    });
    comm.all_reduce(data.span(), ReduceOp::sum, stream);
    copy(copied.span(), data.span(), stream);
    EXPECT_EQ(data.data()[0], 0);
    opened.set_value();
    stream.synchronize();
    EXPECT_EQ(copied.data()[2], static_cast<float>(comm.size())) << transport;
  }
}

TEST(MakeCommunicator, ChoosesByNameAndRefusesWithTheReason) {
  const auto usage_error = [](std::string_view name, Device device) -> std::string {
    try {
      return "made " + make_communicator(name, MPI_COMM_WORLD, device)->name();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
  };
  const bool alone = world_size() == 1;
  EXPECT_EQ(usage_error("auto", cpu_device), alone ? "made self" : "made mpi");
  EXPECT_EQ(usage_error("mpi", cpu_device), "made mpi");
  EXPECT_THAT(usage_error("self", cpu_device), HasSubstr(alone ? "made self" : "one rank, not " + std::to_string(world_size())));
  EXPECT_THAT(usage_error("mpii", cpu_device), HasSubstr("did you mean 'mpi'"));
  EXPECT_THAT(usage_error("nccl", cpu_device), HasSubstr("'nccl'"));
  for (const char* name : {"staged", "cuda_aware"})
    EXPECT_THAT(usage_error(name, cpu_device), HasSubstr("not of the host; use 'mpi'"));
  const Device missing{DeviceKind::cuda, device_count(DeviceKind::cuda)};
  for (const char* name : {"mpi", "staged", "cuda_aware"}) {
    EXPECT_THAT(usage_error(name, missing),
                HasSubstr("'" + std::string(name) + "': device " + to_string(missing) + " is not there"));
  }
  EXPECT_EQ(make_communicator("auto", MPI_COMM_SELF, cpu_device)->name(), "self");
}

}  // namespace
}  // namespace scape::testing
