// README.md lists every registered baseline with its summary, source and options; this keeps the page true.
#include <gmock/gmock.h>

#include <fstream>
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

// The lines that the page must contain for one method.
template <class Base>
std::vector<std::string> lines_for(const Method<Base>& method) {
  std::vector<std::string> lines{"## " + method.name + " — " + method.summary, "Source: " + method.source + "."};
  const auto recipe = method.recipe();
  OptionTable table;
  recipe->declare(table);
  for (const OptionTable::Option& option : table.options()) {
    std::string accepts = option.accepts;
    for (auto bar = accepts.find(" | "); bar != std::string::npos; bar = accepts.find(" | ")) accepts.replace(bar, 3, ", ");
    lines.push_back("| `" + option.name + "` | " + accepts + " | " + to_string(option.value()) + " | " + option.help + " |");
  }
  return lines;
}

TEST(Readme, ListsEveryMethodWithItsOptions) {
  Registry registry;
  register_baselines(registry);
  std::vector<std::string> lines;
  const auto add = [&](const auto& methods) {
    for (const auto& method : methods.all()) {
      for (const std::string& line : lines_for(method)) lines.push_back(line);
    }
  };
  add(registry.optimizers);
  add(registry.syncs);
  add(registry.rules);
  ASSERT_FALSE(lines.empty());
  const std::string text = readme();
  for (const std::string& line : lines) EXPECT_THAT(text, HasSubstr(line + "\n"));
}

}  // namespace
}  // namespace scape
