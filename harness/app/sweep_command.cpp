// scape sweep: all runs of a TOML file.
#include <filesystem>
#include <memory>

#include "commands.hpp"
#include "train/sweep.hpp"

namespace scape {

void add_sweep_command(CLI::App& app, Action& action) {
  struct Arguments {
    SweepOptions options;
    std::vector<std::string> settings;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("sweep", "run every run of a TOML file, one MPI job each; run again, it does what is missing");
  command->add_option("file", arguments->options.file, "TOML file with common options and [[run]] tables")->required();
  command->add_option("--out", arguments->options.folder, "folder for the run files")->required();
  command->add_option("--ranks", arguments->options.ranks, "MPI ranks of each run")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option(
      "--launcher", arguments->options.launcher,
      "command that starts the ranks, \"{ranks}\" being their number (default: mpirun; \"srun -n {ranks}\", \"ibrun\")");
  command->add_option("--set", arguments->settings, "option for every run, name=value; may be repeated");
  command->callback([arguments, &action] {
    action = [arguments] {
      SweepOptions& options = arguments->options;
      options.program = std::filesystem::read_symlink("/proc/self/exe");
      if (options.launcher.empty()) options.launcher = default_launcher(options.ranks);
      options.overrides = parse_settings(arguments->settings);
      return run_sweep(make_registry(), options);
    };
  });
}

}  // namespace scape
