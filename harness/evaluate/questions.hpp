// Questions out of JSON Lines, plain, gzip or zstd:
//   {"context": "…", "choices": ["…", "…"], "label": 1}     the form of HellaSwag, ARC, PIQA: which choice goes on the context
//   {"text": "…"}                                           LAMBADA (Paperno et al., arXiv 1606.06031): which word ends the text
// Further fields are not looked at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace scape {

struct ChoiceQuestion {
  std::string place;  // "file: line 3"
  std::string context;
  std::vector<std::string> choices;  // two or more, none empty
  std::int64_t label = 0;            // index of the right one
};

struct LastWordQuestion {
  std::string place;
  std::string context;
  std::string word;  // with the white space before it
};

/// Throw Error(input) naming file and line for a line that is no such question, and for a file without any.
[[nodiscard]] std::vector<ChoiceQuestion> read_choice_questions(const std::filesystem::path& path);
[[nodiscard]] std::vector<LastWordQuestion> read_last_word_questions(const std::filesystem::path& path);

}  // namespace scape
