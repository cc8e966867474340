// Option tables: parsing, limits, and error messages that name the origin, what is accepted and the nearest name.
#include "scape/config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "scape/error.hpp"

namespace scape {

namespace {

template <class Number>
std::string shortest(Number number) {
  std::array<char, 64> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), result.ptr};
}

template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

bool within(double number, const NumberLimits& limits) {
  return std::isfinite(number) && number >= limits.min && number <= limits.max && number > limits.above && number < limits.below;
}

std::string describe(const char* kind, const NumberLimits& limits) {
  const bool low = std::isfinite(std::max(limits.min, limits.above));
  const bool high = std::isfinite(std::min(limits.max, limits.below));
  std::string text = kind;
  if (low && high) {
    text += " in ";
    text += limits.above >= limits.min ? "(" + shortest(limits.above) : "[" + shortest(limits.min);
    text += ", ";
    text += limits.below <= limits.max ? shortest(limits.below) + ")" : shortest(limits.max) + "]";
  } else if (low) {
    text += limits.above >= limits.min ? " above " + shortest(limits.above) : " of at least " + shortest(limits.min);
  } else if (high) {
    text += limits.below <= limits.max ? " below " + shortest(limits.below) : " of at most " + shortest(limits.max);
  }
  return text;
}

}  // namespace

Setting parse_setting(std::string_view assignment, std::string origin) {
  const auto equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw Error(ErrorKind::usage, origin + ": '" + std::string(assignment) + "' is not of the form name=value");
  }
  return {std::string(assignment.substr(0, equals)), std::string(assignment.substr(equals + 1)), std::move(origin)};
}

void OptionTable::insert(Option option) {
  if (contains(option.name)) throw Error(ErrorKind::internal, "option '" + option.name + "' is declared twice");
  options_.push_back(std::move(option));
}

void OptionTable::add(std::string name, bool& variable, std::string help) {
  auto set = [&variable](std::string_view text) {
    if (text != "true" && text != "false") return false;
    variable = text == "true";
    return true;
  };
  insert({std::move(name), std::move(help), "true | false", set, [&variable] { return OptionValue(variable); }});
}

void OptionTable::add(std::string name, std::int64_t& variable, std::string help, NumberLimits limits) {
  auto set = [&variable, limits](std::string_view text) {
    std::int64_t number = 0;
    if (!parse_number(text, number) || !within(static_cast<double>(number), limits)) return false;
    variable = number;
    return true;
  };
  insert({std::move(name), std::move(help), describe("whole number", limits), set, [&variable] { return OptionValue(variable); }});
}

void OptionTable::add(std::string name, double& variable, std::string help, NumberLimits limits) {
  auto set = [&variable, limits](std::string_view text) {
    double number = 0;
    if (!parse_number(text, number) || !within(number, limits)) return false;
    variable = number;
    return true;
  };
  insert({std::move(name), std::move(help), describe("number", limits), set, [&variable] { return OptionValue(variable); }});
}

void OptionTable::add(std::string name, std::string& variable, std::string help) {
  auto set = [&variable](std::string_view text) {
    variable = std::string(text);
    return true;
  };
  insert({std::move(name), std::move(help), "text", set, [&variable] { return OptionValue(variable); }});
}

void OptionTable::add_choice(std::string name, std::string help, std::vector<std::string> names,
                             std::function<void(std::size_t)> assign, std::function<std::size_t()> current) {
  std::string accepts;
  for (const std::string& choice : names) accepts += (accepts.empty() ? "" : " | ") + choice;
  auto set = [names, assign = std::move(assign)](std::string_view text) {
    const auto found = std::find(names.begin(), names.end(), text);
    if (found == names.end()) return false;
    assign(static_cast<std::size_t>(found - names.begin()));
    return true;
  };
  insert({std::move(name), std::move(help), accepts, set,
          [names, current = std::move(current)] { return OptionValue(names.at(current())); }});
}

bool OptionTable::contains(std::string_view name) const {
  return std::any_of(options_.begin(), options_.end(), [&](const Option& option) { return option.name == name; });
}

void OptionTable::set(const Setting& setting) {
  std::vector<std::string> names;
  for (Option& option : options_) {
    names.push_back(option.name);
    if (option.name != setting.name) continue;
    if (!option.set(setting.text)) {
      throw Error(ErrorKind::usage,
                  setting.origin + ": " + setting.name + " = '" + setting.text + "' is not accepted; give " + option.accepts);
    }
    option.given = true;
    return;
  }
  throw Error(ErrorKind::usage, setting.origin + ": unknown option '" + setting.name + "'; did you mean '" +
                                    nearest_name(setting.name, names) + "'?");
}

std::string to_string(const OptionValue& value) {
  struct Visitor {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::int64_t number) const { return shortest(number); }
    std::string operator()(double number) const { return shortest(number); }
    std::string operator()(const std::string& text) const { return text; }
  };
  return std::visit(Visitor{}, value);
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  // Levenshtein distance, one row at a time.
  auto distance = [&](std::string_view other) {
    std::vector<std::size_t> row(other.size() + 1);
    for (std::size_t j = 0; j <= other.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= name.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i);
      for (std::size_t j = 1; j <= other.size(); ++j) {
        const std::size_t substituted = diagonal + (name[i - 1] == other[j - 1] ? 0 : 1);
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
      }
    }
    return row.back();
  };
  const auto best = std::min_element(candidates.begin(), candidates.end(),
                                     [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
  return best == candidates.end() ? std::string() : *best;
}

}  // namespace scape
