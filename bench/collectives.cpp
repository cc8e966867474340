// bench_collectives: every collective of the communicator over message sizes, and all-reduce of one vector in many calls, as
// tensor by tensor; run it with mpirun. Each benchmark first checks the result with small whole numbers, which floats sum exactly
// in any order.
#include <chrono>
#include <memory>
#include <vector>

#include "bandwidth.hpp"
#include "support.hpp"

namespace scape::bench {

namespace {

using Clock = std::chrono::steady_clock;

// Element i of rank r's input.
float value(std::int64_t r, std::int64_t i) {
  return static_cast<float>((i + 31 * r) % 128);
}

// One collective with its memory, called again and again.
class Exchange {
 public:
  /// `calls`: the all-reduce is done in so many.
  Exchange(Collective kind, const Message& message, std::int64_t calls, Communicator& comm, Device device)
      : kind_(kind),
        calls_(calls),
        message_(message),
        comm_(comm),
        stream_(stream_on(device)),
        blocks_(static_cast<std::size_t>(comm.size()), message.elements_block),
        input_(kind == Collective::all_gather ? message.elements_block : message.elements, device),
        output_(kind == Collective::reduce_scatter ? message.elements_block : message.elements, device) {}

  void run() {
    switch (kind_) {
      case Collective::all_reduce:
        for (std::int64_t call = 0; call < calls_; ++call) {
          const std::int64_t begin = output_.size() * call / calls_;
          const std::int64_t end = output_.size() * (call + 1) / calls_;
          comm_.all_reduce(output_.span().subspan(begin, end - begin), ReduceOp::sum, stream_);
        }
        return;
      case Collective::reduce_scatter:
        return comm_.reduce_scatter_v(input_, output_.span(), blocks_, ReduceOp::sum, stream_);
      case Collective::all_gather:
        return comm_.all_gather_v(input_, output_.span(), blocks_, stream_);
      case Collective::all_to_all:
        return comm_.all_to_all_v(input_, blocks_, output_.span(), blocks_, stream_);
      case Collective::broadcast:
        return comm_.broadcast(output_.span(), 0, stream_);
    }
  }

  void synchronize() const { stream_.synchronize(); }

  // Runs once with known input. Leaves zeros, which stay zeros however often they are summed.
  bool correct() {
    fill(input_);
    if (kind_ == Collective::all_reduce || kind_ == Collective::broadcast) fill(output_);
    run();
    std::vector<float> result(static_cast<std::size_t>(output_.size()));
    copy(Span<float>(result), output_, stream_);
    zero(input_.span(), stream_);
    zero(output_.span(), stream_);
    synchronize();
    for (std::int64_t i = 0; i < output_.size(); ++i) {
      if (result[static_cast<std::size_t>(i)] != expected(i)) return false;
    }
    return true;
  }

 private:
  void fill(Buffer<float>& buffer) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < buffer.size(); ++i) values.push_back(value(comm_.rank(), i));
    copy(buffer.span(), std::span<const float>(values), stream_);
    synchronize();
  }

  // Element i of this rank's output.
  [[nodiscard]] float expected(std::int64_t i) const {
    const std::int64_t me = comm_.rank();
    const std::int64_t block = message_.elements_block;
    switch (kind_) {
      case Collective::all_reduce:
        return sum(i);
      case Collective::reduce_scatter:
        return sum(me * block + i);
      case Collective::all_gather:
        return value(i / block, i % block);
      case Collective::all_to_all:
        return value(i / block, me * block + i % block);
      case Collective::broadcast:
        return value(0, i);
    }
    return 0;
  }
  [[nodiscard]] float sum(std::int64_t i) const {
    float total = 0;
    for (int r = 0; r < comm_.size(); ++r) total += value(r, i);
    return total;
  }

  Collective kind_;
  std::int64_t calls_;
  Message message_;
  Communicator& comm_;
  Stream stream_;
  std::vector<std::int64_t> blocks_;  // [ranks] elements
  Buffer<float> input_, output_;
};

void measure(benchmark::State& state, Collective kind, const Message& message, std::int64_t calls, Communicator& comm,
             Device device) {
  Exchange exchange(kind, message, calls, comm, device);
  require_same_iterations(state);
  if (slowest(exchange.correct() ? 0 : 1) > 0) return fail(state, "wrong result");
  for (auto _ : state) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto begin = Clock::now();
    exchange.run();
    exchange.synchronize();
    state.SetIterationTime(slowest(std::chrono::duration<double>(Clock::now() - begin).count()));
  }
  using benchmark::Counter;
  state.counters["algbw"] = Counter(message.bytes(), Counter::kIsIterationInvariantRate);
  state.counters["busbw"] = Counter(message.bytes() * bus_factor(kind, comm.size()), Counter::kIsIterationInvariantRate);
}

void declare(const std::vector<std::string>& arguments) {
  if (arguments.size() > 1) require_no_arguments({arguments[1]});
  std::vector<Device> measured = devices();
  if (!arguments.empty()) measured = {measured.back()};  // a name is for one kind of device
  for (const Device device : measured) {
    const std::string communicator = arguments.empty() ? "auto" : arguments.front();
    const std::shared_ptr<Communicator> comm = make_communicator(communicator, MPI_COMM_WORLD, device);
    benchmark::AddCustomContext(to_string(device) + " communicator", comm->name());
    const std::string kind = device.kind == DeviceKind::cpu ? "cpu/" : "cuda/";
    const auto add = [&](Collective collective, std::int64_t bytes, std::int64_t calls) {
      const std::optional<Message> message = message_of(collective, bytes, comm->size());
      if (!message) return;
      const std::string name = kind + to_string(collective) + "/bytes:" + std::to_string(bytes);
      benchmark::RegisterBenchmark((calls == 1 ? name : name + "/calls:" + std::to_string(calls)).c_str(),
                                   [=](benchmark::State& state) { measure(state, collective, *message, calls, *comm, device); })
          ->UseManualTime();
    };
    for (const Collective collective : all_collectives) {
      for (std::int64_t bytes = 4; bytes <= std::int64_t{64} << 20; bytes *= 16) add(collective, bytes, 1);
    }
    for (const std::int64_t bytes : {std::int64_t{16} << 10, std::int64_t{256} << 10, std::int64_t{4} << 20}) {
      add(Collective::all_reduce, bytes, 256);
    }
  }
}

}  // namespace

}  // namespace scape::bench

int main(int argc, char** argv) {
  return scape::bench::run(argc, argv, scape::bench::declare,
                           "COMMUNICATOR   this one instead of auto, on one kind of device: on GPUs where there are any\n\n");
}
