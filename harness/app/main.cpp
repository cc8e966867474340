// The `scape` program. Exit status: 0 done, 1 internal error, 2 usage, 3 bad input, 4 stopped before the last step, 5 a rank
// failed, 6 training diverged (scape/error.hpp).
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "commands.hpp"
#include "scape/baselines.hpp"
#include "scape/build_info.hpp"
#include "scape/error.hpp"

namespace scape {

Registry make_registry() {
  Registry registry;
  register_core(registry);
  register_baselines(registry);
  return registry;
}

CLI::Validator at_least(std::int64_t least) {
  return {[least](const std::string& text) {
            std::int64_t number = 0;
            const bool good = CLI::detail::lexical_cast(text, number) && number >= least;
            return good ? std::string() : fmt::format("'{}' must be a whole number of at least {}", text.substr(0, 60), least);
          },
          fmt::format(">= {}", least)};
}

std::vector<Setting> parse_settings(const std::vector<std::string>& assignments) {
  std::vector<Setting> settings;
  for (const std::string& assignment : assignments) settings.push_back(parse_setting(assignment, "--set"));
  return settings;
}

namespace {

// A check of CLI11: says what is wrong, or nothing.
template <class Number>
std::string whole_number(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return "";
  return fmt::format("'{}' is no whole number from {} to {}", text.substr(0, 60), std::numeric_limits<Number>::min(),
                     std::numeric_limits<Number>::max());
}

// What a person may have meant by an argument that no option takes, among the options of the command that was given.
void refuse_argument(const CLI::App& app, const std::string& argument) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::vector<std::string> names;
  for (const CLI::Option* option : command->get_options()) names.push_back(option->get_name());
  const bool setting = !argument.starts_with('-') && argument.find('=') != std::string::npos;
  throw Error(ErrorKind::usage, command->get_name() + ": unexpected argument '" + argument + "'; did you mean '" +
                                    (setting ? "--set " + argument : nearest_name(argument, names)) + "'?");
}

// On every option and argument of every command: an empty one is a variable that the shell did not know, only a prompt may be
// empty; and CLI11 takes a number that is too large for the largest there is, and a negative one for a seed.
void check_arguments(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) check_arguments(*command);
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("UINT")) option->check(whole_number<std::uint64_t>);
    if (type.starts_with("INT")) option->check(whole_number<std::int64_t>);
    if (type.starts_with("TEXT") && option->get_name() != "--prompt") {
      option->check([](const std::string& text) { return std::string(text.empty() ? "is empty" : ""); });
    }
  }
}

int run(int argc, char** argv) {
  CLI::App app("Trains language models with communication-efficient optimizers and measures what they save and cost.", "scape");
  app.set_version_flag("--version", std::string(build_info::version));
  app.require_subcommand(1);
  app.footer(
      "`scape COMMAND --help` explains a command. Exit status: 0 done, 1 internal error, 2 usage, 3 bad input,\n"
      "4 stopped before the last step, 5 a rank failed, 6 training diverged.");
  Action action;
  add_train_command(app, action, argc, argv);
  add_sweep_command(app, action);
  add_data_command(app, action);
  add_evaluate_command(app, action, argc, argv);
  add_generate_command(app, action);
  add_exchange_commands(app, action);
  add_info_command(app, action);
  check_arguments(app);

  if (argc > 1 && argv[1][0] != '-') {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    const std::string given = argv[1];
    if (std::find(names.begin(), names.end(), given) == names.end()) {
      throw Error(ErrorKind::usage, "unknown command '" + given + "'; did you mean '" + nearest_name(given, names) + "'?");
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    refuse_argument(app, app.remaining(true).front());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_status(ErrorKind::usage);
  }
  return action();
}

}  // namespace

}  // namespace scape

int main(int argc, char** argv) {
  int status = 0;
  try {
    status = scape::run(argc, argv);
  } catch (const scape::Error& error) {
    std::fprintf(stderr, "scape: %s\n", error.what());
    status = scape::exit_status(error.kind());
  } catch (const std::exception& error) {
    if (std::ferror(stdout) == 0) {  // else printing threw
      std::fprintf(stderr, "scape: internal error: %s\n", error.what());
      status = scape::exit_status(scape::ErrorKind::internal);
    }
  }
  const bool printed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (printed || status != 0) return status;
  std::fprintf(stderr, "scape: what was printed is lost: standard output cannot be written\n");
  return scape::exit_status(scape::ErrorKind::input);
}
