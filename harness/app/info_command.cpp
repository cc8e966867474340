// scape info: what this build and machine can do.
#include <fmt/format.h>
#include <mpi.h>

#include <array>
#include <memory>

#include "commands.hpp"
#include "model/config.hpp"
#include "scape/build_info.hpp"
#include "scape/device.hpp"

namespace scape {

namespace {

const char* yes_no(bool value) {
  return value ? "yes" : "no";
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find(','));
}

int print_info() {
  fmt::print("scape {}  {} build, {}, tuned for this processor: {}\n", build_info::version, build_info::build_type,
             build_info::compiler, yes_no(build_info::native));
  fmt::print("mpi       {}\n", mpi_version());
  fmt::print("cpu       {}\n", device_name(cpu_device));
  const int gpus = device_count(DeviceKind::cuda);
  fmt::print("cuda      built in: {}, NCCL: {}, GPUs here: {}\n", yes_no(build_info::with_cuda), yes_no(build_info::with_nccl),
             gpus);
  if (build_info::with_cuda && gpus == 0)
    fmt::print("          no GPU: the CUDA backend is here but cannot run; everything runs on the CPU\n");
  for (int i = 0; i < gpus; ++i) fmt::print("          cuda:{} {}\n", i, device_name({DeviceKind::cuda, i}));
  fmt::print("models\n");
  for (const std::string& name : model_presets()) {
    const ModelConfig config = model_config(name);
    fmt::print("  {:12} {:>12} parameters with a vocabulary of {}, context {}\n", name, parameter_layout(config).size(),
               config.vocab, config.context);
  }
  fmt::print("methods   see scape train --list\n");
  return 0;
}

}  // namespace

void add_info_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("info", "what this build and this machine can do");
  command->callback([&action] { action = print_info; });
}

}  // namespace scape
