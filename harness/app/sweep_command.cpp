// scape sweep: all runs of a TOML file.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <tuple>

#include "commands.hpp"
#include "scape/error.hpp"
#include "train/sweep.hpp"

namespace scape {

namespace {

// "2/8" as 1 and 8.
std::pair<int, int> part_of(const std::string& text) {
  int part = 0;
  int parts = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%d/%d%c", &part, &parts, &rest) != 2 || part < 1 || part > parts) {
    throw Error(ErrorKind::usage, "--part takes I/N with 1 <= I <= N, not '" + text + "'");
  }
  return {part - 1, parts};
}

}  // namespace

void add_sweep_command(CLI::App& app, Action& action) {
  struct Arguments {
    SweepOptions options;
    std::vector<std::string> settings;
    std::string part = "1/1";
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("sweep", "run every run of a TOML file, one MPI job each; run again, it does what is missing");
  command->add_option("file", arguments->options.file, "TOML file with common options and [[run]] tables")->required();
  command->add_option("--out", arguments->options.folder, "folder for the run files")->required();
  command->add_option("--ranks", arguments->options.ranks, "MPI ranks of each run")->capture_default_str()->check(at_least(1));
  command->add_option(
      "--launcher", arguments->options.launcher,
      "command that starts the ranks, \"{ranks}\" being their number (default: mpirun; \"srun -n {ranks}\", \"ibrun\")");
  command->add_flag("--overwrite", arguments->options.overwrite, "replace runs in the folder that have other options or data");
  command->add_option("--part", arguments->part, "I/N: only runs I, I + N, … of the file, for job arrays")->capture_default_str();
  command->add_option("--set", arguments->settings, "option for every run, name=value; may be repeated");
  command->callback([arguments, &action] {
    action = [arguments] {
      SweepOptions& options = arguments->options;
      options.program = std::filesystem::read_symlink("/proc/self/exe");
      if (options.launcher.empty()) options.launcher = default_launcher(options.ranks);
      std::tie(options.part, options.parts) = part_of(arguments->part);
      options.overrides = parse_settings(arguments->settings);
      return run_sweep(make_registry(), options);
    };
  });
}

}  // namespace scape
