// scape info: what this build and machine can do. scape info model: what a model takes, before anyone pays for it.
#include <fmt/format.h>
#include <mpi.h>

#include <array>
#include <memory>

#include "commands.hpp"
#include "method_memory.hpp"
#include "model/model.hpp"
#include "scape/build_info.hpp"
#include "scape/communicator.hpp"
#include "scape/device.hpp"
#include "scape/error.hpp"
#include "train/run_config.hpp"

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

// What communicator=mpi would do with GPU memory here.
void print_mpi_on_gpu() {
  int argc = 0;
  char** argv = nullptr;
  const MpiSession mpi(argc, argv);
  const auto communicator = make_communicator("mpi", MPI_COMM_WORLD, {DeviceKind::cuda, 0});
  fmt::print("          MPI on GPU memory: {} ({})\n", communicator->name(), communicator->reason());
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
  if (gpus > 0) print_mpi_on_gpu();
  fmt::print("models\n");
  for (const std::string& name : model_presets()) {
    const ModelConfig config = model_config(name);
    fmt::print("  {:12} {:>12} parameters with a vocabulary of {}, context {}\n", name, parameter_layout(config).size(),
               config.vocab, config.context);
  }
  fmt::print("methods   see scape train --list\n");
  return 0;
}

struct ModelArguments {
  std::string model;
  std::vector<std::string> settings;
  std::vector<int> ranks{1};
};

// "layers.3.ffn.in" is one of "layers.*.ffn.in".
std::string family(const std::string& tensor) {
  if (!tensor.starts_with("layers.")) return tensor;
  return "layers.*" + tensor.substr(tensor.find('.', std::string("layers.").size()));
}

void print_parameters(const ParameterLayout& layout) {
  struct Row {
    std::string name, shape;
    std::int64_t tensors = 0, elements = 0;
  };
  std::vector<Row> rows;
  for (const ParameterTensor& tensor : layout.tensors()) {
    const std::string name = family(tensor.name);
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
    if (row == rows.end()) row = rows.insert(row, {name, fmt::format("{}", fmt::join(tensor.shape, " x "))});
    ++row->tensors;
    row->elements += tensor.range.size();
  }
  fmt::print("\n{:28} {:>14} {:>8} {:>15}\n", "parameters", "shape", "tensors", "elements");
  for (const Row& row : rows) fmt::print("{:28} {:>14} {:>8} {:>15}\n", row.name, row.shape, row.tensors, row.elements);
  fmt::print("{:28} {:>14} {:>8} {:>15}\n", "all", "", layout.tensors().size(), layout.size());
}

// One line: a name and a number of megabytes for each number of ranks.
void print_memory(const std::string& name, const std::vector<double>& bytes) {
  fmt::print("{:<37}", name);
  for (const double b : bytes) fmt::print(" {:>11.1f}", b / 1e6);
  fmt::print("\n");
}

void print_method_memory(const Registry& registry, const std::string& optimizer, const std::string& sync,
                         const std::vector<Setting>& settings, const std::vector<int>& ranks, const std::vector<double>& model) {
  std::vector<Setting> all{{"optimizer", optimizer, "info"}, {"sync", sync, "info"}};
  all.insert(all.end(), settings.begin(), settings.end());
  const RunConfig config(registry, all);
  const ParameterLayout layout = parameter_layout(config.model);
  std::vector<std::vector<MemoryItem>> memory;
  std::vector<double> total = model;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    memory.push_back(method_memory(config.method(), layout, ranks[i]));
    for (const MemoryItem& item : memory[i]) total[i] += item.bytes;
  }
  fmt::print("\n");
  print_memory(fmt::format("optimizer={}{}", optimizer, sync.empty() ? "" : " sync=" + sync), total);
  for (std::size_t item = 0; item < memory.front().size(); ++item) {
    std::vector<double> bytes;
    for (const std::vector<MemoryItem>& of_ranks : memory) bytes.push_back(of_ranks[item].bytes);
    print_memory("  " + memory.front()[item].name, bytes);
  }
}

int print_model(const ModelArguments& arguments) {
  const Registry registry = make_registry();
  std::vector<Setting> settings{{"model", arguments.model, "info model"}};
  for (const std::string& assignment : arguments.settings) settings.push_back(parse_setting(assignment, "info model"));
  const bool chosen =
      std::any_of(settings.begin(), settings.end(), [](const Setting& s) { return s.name == "optimizer" || s.name == "sync"; });
  if (!chosen) settings.insert(settings.begin(), {"optimizer", "adamw", "info model"});
  const RunConfig config(registry, settings);
  const TrainOptions& train = config.train;
  const ParameterLayout layout = parameter_layout(config.model);
  print_parameters(layout);
  fmt::print("\n{:.4g} floating-point operations per token, forward and backward, at a context of {}\n",
             flops_per_token(config.model), config.model.context);

  fmt::print("\n{:<37}", "memory of a rank [MB]");
  for (const int ranks : arguments.ranks) fmt::print(" {:>11}", fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s"));
  fmt::print("\n");
  std::vector<double> parameters, gradients, narrow_weights, activations, sum;
  std::vector<std::string> shapes;
  for (const int ranks : arguments.ranks) {
    const std::int64_t sequences =
        train.micro_batch > 0 ? train.micro_batch : std::max<std::int64_t>(1, train.global_batch / ranks);
    const ModelMemory memory = model_memory(config.model, sequences, train.sequence_length);
    parameters.push_back(static_cast<double>(memory.parameters));
    gradients.push_back(static_cast<double>(memory.gradients));
    narrow_weights.push_back(static_cast<double>(memory.narrow_weights));
    activations.push_back(static_cast<double>(memory.activations));
    sum.push_back(parameters.back() + gradients.back() + narrow_weights.back() + activations.back());
    shapes.push_back(fmt::format("{} x {}", sequences, train.sequence_length));
  }
  print_memory("parameters", parameters);
  print_memory("gradients", gradients);
  if (config.model.compute == Compute::bf16) print_memory("weights in bfloat16", narrow_weights);
  print_memory("activations", activations);
  fmt::print("{:<37}", "  sequences x tokens at a time");
  for (const std::string& shape : shapes) fmt::print(" {:>11}", shape);
  fmt::print("\n\nwith a method: the sum, then the method's own part\n");
  settings.erase(settings.begin(), settings.begin() + (chosen ? 0 : 1));
  const auto method = [&](const std::string& optimizer, const std::string& sync) {
    print_method_memory(registry, optimizer, sync, settings, arguments.ranks, sum);
  };
  if (chosen) {
    method(train.optimizer, train.sync);
    return 0;
  }
  for (const auto& optimizer : registry.optimizers.all()) method(optimizer.name, "");
  for (const auto& rule : registry.rules.all()) method(rule.name, "dense");
  for (const auto& sync : registry.syncs.all()) {
    if (sync.name != "dense") method("adamw", sync.name);
  }
  return 0;
}

}  // namespace

void add_info_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("info", "what this build and this machine can do");
  command->callback([&action, command] {  // called after that of a subcommand
    if (command->get_subcommands().empty()) action = print_info;
  });

  CLI::App* model = command->add_subcommand("model", "parameters, work and memory of a model, nothing allocated");
  const auto arguments = std::make_shared<ModelArguments>();
  model->add_option("name", arguments->model, "preset")->required();
  model->add_option("settings", arguments->settings,
                    "key=value: any option of a run; with optimizer= or sync=, only that method is shown");
  model->add_option("--ranks", arguments->ranks, "numbers of ranks, as in 1,8,64")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  model->footer(
      "Megabytes are 10^6 bytes of one rank. A method's buffers are measured on small layouts and extrapolated; what it makes\n"
      "only while it runs is not seen. Activations are those of micro_batch sequences; without it, of global_batch over the "
      "ranks.\nOn a GPU, offload=residual puts scape/residual into the host's memory, offload=replica the parameters too.");
  model->callback([&action, arguments] { action = [arguments] { return print_model(*arguments); }; });
}

}  // namespace scape
