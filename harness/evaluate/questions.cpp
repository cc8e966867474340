#include "evaluate/questions.hpp"

#include <simdjson.h>

#include "data/text_source.hpp"
#include "io/file.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

namespace dom = simdjson::dom;

// `take` gets each line's object and its place.
template <class Take>
void for_each_object(const std::filesystem::path& path, const Take& take) {
  dom::parser parser;
  bool any = false;
  for_each_line(path, [&](std::string_view text, std::int64_t number, std::int64_t) {
    dom::object object;
    const auto error = parser.parse(text.data(), text.size(), false).get(object);
    if (error == simdjson::INCORRECT_TYPE) fail(path, "line {}: not a JSON object", number);
    if (error) fail(path, "line {}: damaged JSON: {}", number, simdjson::error_message(error));
    take(object, fmt::format("{}: line {}", path.string(), number));
    any = true;
  });
  if (!any) fail(path, "holds no question");
}

template <class T>
T field(const dom::object& object, const std::string& name, const char* expected, const std::string& place) {
  dom::element value;
  if (object.at_key(name).get(value) != simdjson::SUCCESS) throw Error(ErrorKind::input, place + ": no field '" + name + "'");
  T found{};
  if (value.get(found) != simdjson::SUCCESS) throw Error(ErrorKind::input, place + ": field '" + name + "' is not " + expected);
  return found;
}

}  // namespace

std::vector<ChoiceQuestion> read_choice_questions(const std::filesystem::path& path) {
  std::vector<ChoiceQuestion> questions;
  for_each_object(path, [&](const dom::object& object, const std::string& place) {
    ChoiceQuestion question{.place = place,
                            .context = std::string(field<std::string_view>(object, "context", "text", place)),
                            .choices = {},
                            .label = field<std::int64_t>(object, "label", "a whole number", place)};
    for (const dom::element element : field<dom::array>(object, "choices", "a list", place)) {
      std::string_view choice;
      if (element.get(choice) != simdjson::SUCCESS || choice.empty()) {
        throw Error(ErrorKind::input, place + ": a choice is empty or not text");
      }
      question.choices.emplace_back(choice);
    }
    if (question.choices.size() < 2) throw Error(ErrorKind::input, place + ": fewer than two choices");
    if (question.label < 0 || question.label >= std::ssize(question.choices)) {
      throw Error(ErrorKind::input,
                  fmt::format("{}: label {} is none of the {} choices", place, question.label, question.choices.size()));
    }
    questions.push_back(std::move(question));
  });
  return questions;
}

std::vector<LastWordQuestion> read_last_word_questions(const std::filesystem::path& path) {
  std::vector<LastWordQuestion> questions;
  for_each_object(path, [&](const dom::object& object, const std::string& place) {
    constexpr const char* space = " \t\n\r";
    std::string_view text = field<std::string_view>(object, "text", "text", place);
    text = text.substr(0, text.find_last_not_of(space) + 1);
    const std::size_t cut = text.find_last_of(space);
    if (cut == std::string_view::npos || text.find_first_not_of(space) > cut) {
      throw Error(ErrorKind::input, place + ": the text has no word before its last");
    }
    questions.push_back({place, std::string(text.substr(0, cut)), std::string(text.substr(cut))});
  });
  return questions;
}

}  // namespace scape
