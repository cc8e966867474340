// Starts scape_mpi_probe, reads what it says, and starts it again without the collective that ended it.
#include "comm/probe.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <vector>

#include "comm/probe_paths.hpp"
#include "comm/process.hpp"

namespace scape::detail {

namespace {

// What Open MPI and MPICH know of themselves; other libraries do not say.
bool library_denies_cuda() {
  const auto query = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support"));
  return query != nullptr && query() == 0;
}

std::string from_environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

std::string probe_program() {
  const bool built = std::filesystem::exists(built_probe_path);
  return from_environment("SCAPE_MPI_PROBE", built ? built_probe_path : installed_probe_path);
}

// What the program said of each thing, by its first word; a fault is not made good by an "ok" of another rank.
std::map<std::string, std::string> statements(const std::string& text) {
  std::map<std::string, std::string> said;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = std::min(line.find(' '), line.size());
    std::string& about = said[line.substr(0, end)];
    if (about.empty() || about == "ok") about = line.substr(std::min(end + 1, line.size()), 200);
  }
  return said;
}

MpiPaths probe_here(Device device, std::chrono::milliseconds limit) {
  if (device.kind == DeviceKind::cuda && library_denies_cuda()) return {{}, "the MPI library says that it is not CUDA-aware"};
  const std::string program = probe_program();
  if (!std::filesystem::exists(program)) return {{}, "not probed: " + program + " is not there (SCAPE_MPI_PROBE names another)"};
  MpiPaths paths{{}, "probed"};
  std::vector<Collective> open(all_collectives.begin(), all_collectives.end());
  const auto fault = [&](const std::string& what) { paths.reason += (paths.reason == "probed" ? ": " : "; ") + what; };
  while (!open.empty()) {
    std::vector<std::string> words{from_environment("SCAPE_MPIEXEC", mpiexec_path), "-n", "2", program, scape::to_string(device)};
    for (const Collective collective : open) words.emplace_back(scape::to_string(collective));
    Process process(words);
    process.wait(limit);
    const std::string ending = process.fault();
    const std::map<std::string, std::string> said = statements(process.output());
    if (!said.contains("ready")) {
      const auto why = said.find("error");
      fault("the probe did not start" + (why != said.end() ? ": " + why->second : ending.empty() ? "" : ", " + ending));
      break;
    }
    std::erase_if(open, [&](Collective collective) {
      const auto found = said.find(scape::to_string(collective));
      if (found == said.end()) return false;
      if (found->second == "ok") {
        paths.direct.set(static_cast<std::size_t>(collective));
      } else {
        fault(found->first + ": " + found->second);
      }
      return true;
    });
    if (open.empty()) break;
    fault(scape::to_string(open.front()) + (": " + (ending.empty() ? "no answer" : ending)));
    open.erase(open.begin());
  }
  return paths;
}

}  // namespace

MpiPaths probe_mpi(MPI_Comm world, Device device, std::chrono::milliseconds limit) {
  int rank = 0;
  MPI_Comm_rank(world, &rank);
  MpiPaths paths;
  if (rank == 0) {
    try {
      paths = probe_here(device, limit);
    } catch (const std::exception& error) {
      paths = {{}, std::string("not probed: ") + error.what()};
    }
  }
  std::uint64_t bits = paths.direct.to_ullong();
  std::uint64_t length = paths.reason.size();
  MPI_Bcast(&bits, 1, MPI_UINT64_T, 0, world);
  MPI_Bcast(&length, 1, MPI_UINT64_T, 0, world);
  paths.reason.resize(length);
  MPI_Bcast(paths.reason.data(), static_cast<int>(length), MPI_CHAR, 0, world);
  paths.direct = CollectiveSet(bits);
  return paths;
}

}  // namespace scape::detail
