// Options, declared once. An options struct lists its members in `declare(OptionTable&)`; command line, TOML files, sweeps
// and the attributes of a run file all go through that table and so use the same names, limits and defaults.
//
//   struct TopKOptions {
//     double density = 0.01;
//     void declare(OptionTable& t) { t.add("density", density, "kept fraction of each tensor", {.above = 0, .max = 1}); }
//   };
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace scape {

/// One `name = text` from a file or the command line; `origin` says where ("--set", "gpt-mini.toml:12") in messages.
struct Setting {
  std::string name;
  std::string text;
  std::string origin;
};

/// "name=text" as a Setting. Throws Error(usage) if there is no '=' or no name.
[[nodiscard]] Setting parse_setting(std::string_view assignment, std::string origin);

using OptionValue = std::variant<bool, std::int64_t, double, std::string>;

/// Limits of a number; NaN and infinities are never accepted.
struct NumberLimits {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  double above = -std::numeric_limits<double>::infinity();  // exclusive
  double below = std::numeric_limits<double>::infinity();   // exclusive
};

class OptionTable {
 public:
  struct Option {
    std::string name;
    std::string help;
    std::string accepts;                        // "number in (0, 1]", "keep | decay | none", …
    std::function<bool(std::string_view)> set;  // false: the text is not acceptable
    std::function<OptionValue()> value;
    bool given = false;
  };

  // The variables must outlive the table. Declaring one name twice throws Error(internal).
  void add(std::string name, bool& variable, std::string help);
  void add(std::string name, std::int64_t& variable, std::string help, NumberLimits limits = {});
  void add(std::string name, double& variable, std::string help, NumberLimits limits = {});
  void add(std::string name, std::string& variable, std::string help);
  /// One of a few names.
  template <class Enum>
  void add(std::string name, Enum& variable, std::string help, std::vector<std::pair<std::string, Enum>> names);

  /// Applies one setting. Throws Error(usage) naming origin, option and what is accepted; for an unknown name also the
  /// nearest known one.
  void set(const Setting& setting);
  [[nodiscard]] bool contains(std::string_view name) const;
  [[nodiscard]] const std::vector<Option>& options() const { return options_; }

 private:
  void insert(Option option);
  void add_choice(std::string name, std::string help, std::vector<std::string> names, std::function<void(std::size_t)> assign,
                  std::function<std::size_t()> current);
  std::vector<Option> options_;
};

template <class Enum>
void OptionTable::add(std::string name, Enum& variable, std::string help, std::vector<std::pair<std::string, Enum>> names) {
  std::vector<std::string> texts;
  for (const auto& entry : names) texts.push_back(entry.first);
  add_choice(
      std::move(name), std::move(help), std::move(texts), [&variable, names](std::size_t i) { variable = names[i].second; },
      [&variable, names] {
        std::size_t i = 0;
        while (i < names.size() && names[i].second != variable) ++i;
        return i;
      });
}

/// "true", "3", "0.01" (shortest text that reads back to the same number), "text".
[[nodiscard]] std::string to_string(const OptionValue& value);

/// The candidate with the smallest edit distance to `name`; empty when there is none.
[[nodiscard]] std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace scape
