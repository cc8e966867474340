// README.md lists every registered method with its summary, source, options and bytes; this keeps the page true.
#include <gmock/gmock.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "scape/baselines.hpp"

namespace scape {
namespace {

using ::testing::HasSubstr;

std::string readme() {
  std::ifstream file(SCAPE_BASELINES_README);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

template <class Options>
std::vector<std::string> option_lines(Options& options) {
  std::vector<std::string> lines;
  OptionTable table;
  options.declare(table);
  for (const OptionTable::Option& option : table.options()) {
    std::string accepts = option.accepts;
    for (auto bar = accepts.find(" | "); bar != std::string::npos; bar = accepts.find(" | ")) accepts.replace(bar, 3, ", ");
    lines.push_back("| `" + option.name + "` | " + accepts + " | " + to_string(option.value()) + " | " + option.help + " |");
  }
  return lines;
}

// The lines that the page must contain for one method.
template <class Base>
std::vector<std::string> lines_for(const Method<Base>& method) {
  std::vector<std::string> lines{"## " + method.name + " — " + method.summary, "Source: " + method.source + "."};
  const auto recipe = method.recipe();
  for (const std::string& line : option_lines(*recipe)) lines.push_back(line);
  return lines;
}

Registry all_methods() {
  Registry registry;
  register_core(registry);
  register_baselines(registry);
  return registry;
}

// SCAPE's options are on the page of its own header.
TEST(Readme, ListsEveryMethodWithItsOptions) {
  const Registry registry = all_methods();
  std::vector<std::string> lines;
  const auto add = [&](const auto& methods) {
    for (const auto& method : methods.all()) {
      const std::vector<std::string> its = lines_for(method);
      lines.insert(lines.end(), its.begin(), method.name == "scape" ? its.begin() + 2 : its.end());
    }
  };
  add(registry.optimizers);
  add(registry.syncs);
  add(registry.rules);
  CommonOptions common;
  for (const std::string& line : option_lines(common)) lines.push_back(line);
  const std::string text = readme();
  for (const std::string& line : lines) EXPECT_THAT(text, HasSubstr(line + "\n"));
}

// The numbers of the table of bytes, where the formula alone gives them: rows "| `method option=value …` | formula | megabytes |".
TEST(Readme, NumbersOfTheTableOfBytes) {
  const Registry registry = all_methods();
  ParameterLayout layout;
  layout.add("w", {1000, 1000}, TensorRole::matrix);
  std::set<std::string> methods;
  std::istringstream text(readme());
  for (std::string line; std::getline(text, line);) {
    std::smatch row;
    if (!std::regex_match(line, row, std::regex(R"(\| `(\w+)([^`]*)` \| .* \| ([^|]+) \|)")) || line.ends_with("meaning |"))
      continue;
    const std::string name = row[1];
    const bool sync = registry.syncs.find(name) != nullptr;
    if (!sync && registry.optimizers.find(name) == nullptr) continue;
    methods.insert(name);
    if (row[3].str().find(' ') != std::string::npos) continue;  // known after a step only
    MethodChoice choice(registry, sync ? "adamw" : name, sync ? name : "");
    OptionTable table;
    choice.declare(table);
    std::istringstream settings(row[2]);
    for (std::string setting; settings >> setting;) table.set(parse_setting(setting, "README.md"));
    const auto method = choice.make({layout, cpu_device, 0, 8, 100, 1});
    EXPECT_NEAR(std::stod(row[3]), method->expected_wire_bytes(200) / 1e6, 0.0005) << line;
  }
  EXPECT_EQ(methods.size(), registry.syncs.all().size() + registry.optimizers.all().size()) << ::testing::PrintToString(methods);
}

}  // namespace
}  // namespace scape
