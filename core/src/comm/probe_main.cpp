// scape_mpi_probe DEVICE COLLECTIVE…: do these collectives of the MPI library take memory of the device? It is a program of its
// own, because a collective that does not may crash or hang. Prints "ready", then for each collective "NAME ok" when every element
// on every rank is right, otherwise "NAME" and what is wrong; "error" and why when it cannot begin.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "comm/probe.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

Device parse_device(const std::string& name) {
  if (name.starts_with("cuda:")) return {DeviceKind::cuda, std::atoi(name.c_str() + std::strlen("cuda:"))};
  return cpu_device;
}

Collective parse_collective(const std::string& name) {
  for (const Collective collective : all_collectives) {
    if (name == to_string(collective)) return collective;
  }
  throw Error(ErrorKind::usage, "unknown collective '" + name + "'");
}

// Element i of rank r's input: small whole numbers, so that sums are exact.
float value(std::int64_t r, std::int64_t i) {
  return static_cast<float>((r + 1) * (i % 6 + 1));
}

// Whether all elements on this rank are right, in blocks of this many per rank.
bool right(Collective kind, Communicator& comm, Device device, std::int64_t block) {
  const std::int64_t me = comm.rank();
  const std::int64_t ranks = comm.size();
  const std::int64_t n = ranks * block;
  const std::vector<std::int64_t> blocks(static_cast<std::size_t>(ranks), block);
  const auto sum = [&](std::int64_t i) { return value(ranks * (ranks + 1) / 2 - 1, i); };
  const Stream stream(device);
  const Buffer<float> input(n, device), output(n, device);
  std::vector<float> host(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) host[static_cast<std::size_t>(i)] = value(me, i);
  copy(input.span(), Span<float>(host), stream);
  std::int64_t size = n;
  std::function<float(std::int64_t)> expected;
  switch (kind) {
    case Collective::all_reduce:
      copy(output.span(), input, stream);
      comm.all_reduce(output.span(), ReduceOp::sum, stream);
      expected = sum;
      break;
    case Collective::reduce_scatter:
      comm.reduce_scatter_v(input, output.span().subspan(0, block), blocks, ReduceOp::sum, stream);
      size = block;
      expected = [&](std::int64_t i) { return sum(me * block + i); };
      break;
    case Collective::all_gather:
      comm.all_gather_v(input.span().subspan(0, block), output.span(), blocks, stream);
      expected = [&](std::int64_t i) { return value(i / block, i % block); };
      break;
    case Collective::all_to_all:
      comm.all_to_all_v(input, blocks, output.span(), blocks, stream);
      expected = [&](std::int64_t i) { return value(i / block, me * block + i % block); };
      break;
    case Collective::broadcast:
      copy(output.span(), input, stream);
      comm.broadcast(output.span(), 0, stream);
      expected = [&](std::int64_t i) { return value(0, i); };
      break;
  }
  copy(Span<float>(host), output, stream);
  stream.synchronize();
  for (std::int64_t i = 0; i < size; ++i) {
    if (host[static_cast<std::size_t>(i)] != expected(i)) return false;
  }
  return true;
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);  // the next collective may be the last
}

int probe(Device device, const std::vector<std::string>& names) {
  Communicator comm(detail::make_device_mpi_transport(detail::make_mpi_transport(MPI_COMM_WORLD), device,
                                                      {.direct = detail::CollectiveSet().set(), .reason = {}}));
  MPI_Barrier(MPI_COMM_WORLD);
  if (comm.rank() == 0) say("ready");
  for (const std::string& name : names) {
    try {
      int all_right = 1;
      for (const std::int64_t block : {std::int64_t{7}, std::int64_t{1} << 15}) {  // messages are sent one way or another by size
        if (!right(parse_collective(name), comm, device, block)) all_right = 0;
      }
      MPI_Allreduce(MPI_IN_PLACE, &all_right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
      if (comm.rank() == 0) say(name + (all_right == 1 ? " ok" : " gives wrong numbers"));
    } catch (const std::exception& error) {
      say(name + " fails: " + error.what());
      MPI_Abort(MPI_COMM_WORLD, 1);  // the ranks are no longer at the same place
    }
  }
  return 0;
}

}  // namespace

}  // namespace scape

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives its launcher, and none its time
  alarm(2 * static_cast<unsigned>(scape::detail::probe_limit.count()));
  const scape::MpiSession mpi(argc, argv);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    std::fprintf(stderr, "usage: mpiexec -n 2 %s cpu|cuda:N COLLECTIVE...\n", argv[0]);
    return scape::exit_status(scape::ErrorKind::usage);
  }
  try {
    return scape::probe(scape::parse_device(arguments.front()), {arguments.begin() + 1, arguments.end()});
  } catch (const std::exception& error) {
    scape::say(std::string("error ") + error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}
