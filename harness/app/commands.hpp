// Subcommands of the `scape` program. Each add_… declares its arguments and, when it is the one that was given, puts what is to
// be done into `action`, which returns the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scape/config.hpp"
#include "scape/registry.hpp"

namespace scape {

using Action = std::function<int()>;

void add_train_command(CLI::App& app, Action& action, int argc, char** argv);
void add_sweep_command(CLI::App& app, Action& action);
void add_data_command(CLI::App& app, Action& action);
void add_info_command(CLI::App& app, Action& action);
void add_evaluate_command(CLI::App& app, Action& action, int argc, char** argv);
void add_generate_command(CLI::App& app, Action& action);
void add_exchange_commands(CLI::App& app, Action& action);

/// Every method there is: core and baselines.
[[nodiscard]] Registry make_registry();

/// For CLI::Option::check().
[[nodiscard]] CLI::Validator at_least(std::int64_t least);

/// "--set name=value" arguments as settings.
[[nodiscard]] std::vector<Setting> parse_settings(const std::vector<std::string>& assignments);

}  // namespace scape
