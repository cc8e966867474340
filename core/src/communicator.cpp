// Front of the collectives: argument checks, counters, and the choice of a transport.
#include "scape/communicator.hpp"

#include <algorithm>
#include <numeric>

#include "comm/probe.hpp"
#include "comm/transports.hpp"
#include "scape/build_info.hpp"
#include "scape/config.hpp"
#include "scape/error.hpp"

namespace scape {

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::broadcast:
      return "broadcast";
  }
  return "";
}

double wire_bytes(Collective collective, double payload_bytes, int ranks) {
  const double share = static_cast<double>(ranks - 1) / ranks;
  return (collective == Collective::all_reduce ? 2 : 1) * share * payload_bytes;
}

CollectiveTraffic Traffic::total() const {
  CollectiveTraffic sum;
  for (const CollectiveTraffic& one : of) {
    sum.calls += one.calls;
    sum.payload_bytes += one.payload_bytes;
    sum.wire_bytes += one.wire_bytes;
    sum.seconds += one.seconds;
  }
  return sum;
}

Traffic Traffic::since(const Traffic& earlier) const {
  Traffic difference = *this;
  for (std::size_t i = 0; i < of.size(); ++i) {
    difference.of[i].calls -= earlier.of[i].calls;
    difference.of[i].payload_bytes -= earlier.of[i].payload_bytes;
    difference.of[i].wire_bytes -= earlier.of[i].wire_bytes;
    difference.of[i].seconds -= earlier.of[i].seconds;
  }
  return difference;
}

// Counts the seconds of what has finished. With the mutex held.
void Communicator::settle() const {
  while (!unfinished_.empty() && unfinished_.front().end.ready()) {
    const Timing& timing = unfinished_.front();
    traffic_[timing.kind].seconds += seconds_between(timing.begin, timing.end);
    unfinished_.pop_front();
  }
}

Traffic Communicator::traffic() const {
  const std::lock_guard lock(mutex_);
  settle();
  return traffic_;
}

Communicator::Progress Communicator::progress() const {
  const std::lock_guard lock(mutex_);
  settle();
  if (!unfinished_.empty()) {
    const std::int64_t oldest = traffic_.total().calls + 1 - static_cast<std::int64_t>(unfinished_.size());
    return {.queued = queued_, .unfinished = oldest, .kind = unfinished_.front().kind};
  }
  if (being_queued_) return {.queued = queued_, .unfinished = queued_, .kind = *being_queued_};
  return {.queued = queued_};
}

void Communicator::announce(Collective kind) {
  const std::lock_guard lock(mutex_);
  ++queued_;
  being_queued_ = kind;
}

void Communicator::count(Timing timing, std::int64_t payload_bytes) {
  const std::lock_guard lock(mutex_);
  being_queued_.reset();
  CollectiveTraffic& traffic = traffic_[timing.kind];
  ++traffic.calls;
  traffic.payload_bytes += payload_bytes;
  traffic.wire_bytes += scape::wire_bytes(timing.kind, static_cast<double>(payload_bytes), size());
  unfinished_.push_back(std::move(timing));
}

void Communicator::check_counts(const char* operation, std::span<const std::int64_t> counts, std::int64_t total) const {
  const bool fits = counts.size() == static_cast<std::size_t>(size()) &&
                    std::ranges::all_of(counts, [](auto n) { return n >= 0; }) &&
                    std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == total;
  if (!fits) throw Error(ErrorKind::internal, std::string(operation) + ": counts do not match the spans or the number of ranks");
}

void Communicator::check_part(const char* operation, std::span<const std::int64_t> counts, std::int64_t mine) const {
  if (counts[static_cast<std::size_t>(rank())] != mine) {
    throw Error(ErrorKind::internal, std::string(operation) + ": this rank's count does not match its span");
  }
}

std::unique_ptr<Communicator> make_communicator(std::string_view name, MPI_Comm world, Device device) {
  int ranks = 0;
  MPI_Comm_size(world, &ranks);
  const bool gpu = device.kind == DeviceKind::cuda;
  const auto error = [&](const std::string& what) {
    return Error(ErrorKind::usage, "communicator '" + std::string(name) + "'" + what);
  };
  if (name == "auto") name = ranks == 1 ? "self" : gpu && build_info::with_nccl ? "nccl" : "mpi";
  if (name == "self") {
    if (ranks != 1) throw error(" serves one rank, not " + std::to_string(ranks));
    return std::make_unique<Communicator>(detail::make_self_transport());
  }
  if (name == "mpi" && !gpu) return std::make_unique<Communicator>(detail::make_mpi_transport(world));
  const bool through_mpi = name == "mpi" || name == "staged" || name == "cuda_aware";
  if (!gpu && (through_mpi || name == "nccl")) throw error(" serves memory of a GPU, not of the host; use 'mpi'");
  if (name == "nccl") return std::make_unique<Communicator>(detail::make_nccl_transport(world, device));
  if (through_mpi) {
    if (device.index >= device_count(device.kind)) throw error(": device " + to_string(device) + " is not there");
    detail::MpiPaths paths;
    if (name != "staged") paths = detail::probe_mpi(world, device);
    if (name == "cuda_aware" && !paths.direct.all()) {
      throw error(": not for " + detail::to_string(~paths.direct) + " (" + paths.reason + "); 'mpi' stages what is not");
    }
    return std::make_unique<Communicator>(
        detail::make_device_mpi_transport(detail::make_mpi_transport(world), device, std::move(paths)));
  }
  throw Error(ErrorKind::usage, "unknown communicator '" + std::string(name) + "'; did you mean '" +
                                    nearest_name(name, {"auto", "self", "mpi", "staged", "cuda_aware", "nccl"}) + "'?");
}

}  // namespace scape
