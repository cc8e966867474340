// TOML to settings.
#include "train/settings_file.hpp"

#include <toml++/toml.h>
#include <algorithm>
#include <set>

#include "scape/error.hpp"

namespace scape {

namespace {

using Path = std::filesystem::path;

toml::table parse(const Path& path) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  if (type != std::filesystem::file_type::regular && type != std::filesystem::file_type::not_found) {
    throw Error(ErrorKind::input, path.string() + ": is not a file");  // TOML++ takes a folder for an empty one
  }
  try {
    return toml::parse_file(path.string());
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    const std::string where = at.line > 0 ? ":" + std::to_string(at.line) + ":" + std::to_string(at.column) : "";
    throw Error(ErrorKind::input, path.string() + where + ": " + std::string(error.description()));
  }
}

std::string origin(const Path& path, const toml::node& node) {
  return path.filename().string() + ":" + std::to_string(node.source().begin.line);
}

Setting to_setting(const Path& path, std::string name, const toml::node& node) {
  std::string text;
  if (const auto* value = node.as_string()) {
    text = value->get();
  } else if (const auto* flag = node.as_boolean()) {
    text = to_string(OptionValue(flag->get()));
  } else if (const auto* whole = node.as_integer()) {
    text = to_string(OptionValue(whole->get()));
  } else if (const auto* number = node.as_floating_point()) {
    text = to_string(OptionValue(number->get()));
  } else {
    throw Error(ErrorKind::usage, origin(path, node) + ": '" + name + "' must be a number, text, true or false");
  }
  return {std::move(name), std::move(text), origin(path, node)};
}

// Entries of a table in the order of the file (a toml::table sorts its keys).
std::vector<std::pair<std::string, const toml::node*>> in_file_order(const toml::table& table) {
  std::vector<std::pair<std::string, const toml::node*>> entries;
  for (const auto& [key, node] : table) entries.emplace_back(std::string(key.str()), &node);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    const auto& x = a.second->source().begin;
    const auto& y = b.second->source().begin;
    return std::pair(x.line, x.column) < std::pair(y.line, y.column);
  });
  return entries;
}

// One run table, lists expanded.
std::vector<PlannedRun> expand(const Path& path, const toml::table& table, const std::vector<Setting>& common) {
  const auto* name = table.get_as<std::string>("name");
  if (name == nullptr || name->get().empty()) {
    throw Error(ErrorKind::usage,
                path.filename().string() + ":" + std::to_string(table.source().begin.line) + ": this run has no name");
  }
  std::vector<PlannedRun> runs{{name->get(), common}};
  for (const auto& [key, node] : in_file_order(table)) {
    if (key == "name") continue;
    std::vector<PlannedRun> expanded;
    for (const PlannedRun& run : runs) {
      const auto with = [&](const toml::node& value, bool named) {
        PlannedRun next = run;
        next.settings.push_back(to_setting(path, key, value));
        if (named) next.name += "-" + key + "=" + next.settings.back().text;
        expanded.push_back(std::move(next));
      };
      if (const auto* list = node->as_array()) {
        if (list->empty())
          throw Error(ErrorKind::usage, origin(path, *node) + ": '" + key + "' is an empty list: it leaves no run");
        for (const toml::node& value : *list) with(value, true);
      } else {
        with(*node, false);
      }
    }
    runs = std::move(expanded);
  }
  return runs;
}

}  // namespace

std::vector<Setting> read_settings(const Path& path) {
  std::vector<Setting> settings;
  const toml::table table = parse(path);
  for (const auto& [key, node] : in_file_order(table)) settings.push_back(to_setting(path, key, *node));
  return settings;
}

std::vector<PlannedRun> read_sweep(const Path& path) {
  const toml::table table = parse(path);
  std::vector<Setting> common;
  for (const auto& [key, node] : in_file_order(table)) {
    if (key != "run") common.push_back(to_setting(path, key, *node));
  }
  std::vector<PlannedRun> runs;
  const auto* tables = table.get_as<toml::array>("run");
  for (std::size_t i = 0; tables != nullptr && i < tables->size(); ++i) {
    const auto* run = tables->get(i)->as_table();
    if (run == nullptr) throw Error(ErrorKind::usage, origin(path, *tables->get(i)) + ": 'run' must be a table, written [[run]]");
    for (PlannedRun& planned : expand(path, *run, common)) runs.push_back(std::move(planned));
  }
  std::set<std::string> names;
  for (const PlannedRun& run : runs) {
    if (run.name.find('/') != std::string::npos)
      throw Error(ErrorKind::usage, path.string() + ": '/' in the name of run '" + run.name + "'");
    if (!names.insert(run.name).second) throw Error(ErrorKind::usage, path.string() + ": two runs are named '" + run.name + "'");
  }
  if (runs.empty()) throw Error(ErrorKind::usage, path.string() + ": no [[run]] in this sweep");
  return runs;
}

}  // namespace scape
