#include "data/token_set.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

namespace scape {
namespace {

namespace fs = std::filesystem;

constexpr const char* description_name = "tokens.toml";
constexpr std::string_view description_head = "# Tokens for data= of a run.";
constexpr std::int64_t description_version = 1;

// `named`: what the user named to get to this file.
std::shared_ptr<const TokenArray> open_array(const fs::path& path, std::int64_t vocabulary, const fs::path& named) {
  auto array = TokenArray::open(path, vocabulary);
  if (array->vocabulary == 0) {
    fail(path, "{} tokens{} do not say their vocabulary; write it down once: scape data describe {} --vocabulary N", array->format,
         array->format.starts_with("raw") ? " (byte 0: no known format begins like this)" : "", named.string());
  }
  return array;
}

// Token files of a folder by their names: those with "train" in it, those with "val", and the rest.
struct Folder {
  std::vector<fs::path> train, validation, other;
  explicit Folder(const fs::path& folder) {
    std::error_code error;
    std::set<fs::path> entries;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) entries.insert(it->path());
    if (error) fail(folder, "cannot be read: {}", error.message());
    for (const auto& path : entries) {
      const bool index = path.extension() == ".idx";
      if (!index && (path.extension() != ".bin" || entries.contains(fs::path(path).replace_extension(".idx")))) continue;
      const std::string name = path.stem().string();
      const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
      (has("train") ? train : has("val") ? validation : other).push_back(path);
    }
  }
};

// What a file gives to `split` unless a description says otherwise: its own split, or all of it.
TokenSegment usual_segment(const std::shared_ptr<const TokenArray>& array, Split split) {
  if (array->own == nullptr) return {.array = array, .tokens = array->tokens, .documents = array->documents};
  const auto i = static_cast<std::size_t>(split);
  return {.array = array,
          .begin = i == 1 ? array->own->tokens[0] : 0,
          .tokens = array->own->tokens[i],
          .documents = array->own->documents[i],
          .crc = array->own->token_crc[i]};
}

// A description, read key by key: what is not understood is refused.
class Description {
 public:
  explicit Description(const fs::path& path) : path_(path) {}

  TokenSet read() {
    const toml::table table = parse();
    if (const auto version = whole(table, "scape_tokens", 0, 1 << 30); version != description_version) {
      fail(path_, "scape_tokens = {}: this program reads version {}", version, description_version);
    }
    check_keys(table, {"scape_tokens", "vocabulary", "tokenizer", "tokenizer_crc32", "end_token", "source", "unigram_entropy",
                       "train", "validation"});
    TokenSet set;
    const auto vocabulary = whole(table, "vocabulary", 1, (std::int64_t{1} << 31) - 1);
    for (const auto split : {Split::train, Split::validation}) read_segments(table, split, vocabulary, set);
    for (const auto& train : set.splits[0]) {
      for (const auto& validation : set.splits[1]) {
        const auto begin = std::max(train.begin, validation.begin);
        if (train.array == validation.array && begin < std::min(train.begin + train.tokens, validation.begin + validation.tokens)) {
          fail(path_, "token {} of {} is in both splits", begin, train.array->file.path().string());
        }
      }
    }
    if (set.vocabulary != 0 && set.vocabulary != vocabulary) {
      refuse(*table.get("vocabulary"), fmt::format("'vocabulary' is {}, the token files have {}", vocabulary, set.vocabulary));
    }
    set.source = text(table, "source", set.source);
    set.end_token = static_cast<std::int32_t>(whole(table, "end_token", -1, vocabulary - 1, set.end_token));
    if (const auto* entropy = table.get("unigram_entropy")) {
      const auto value = entropy->value<double>();
      if (!value) refuse(*entropy, "'unigram_entropy' must be a number");
      set.unigram_entropy = *value;
    }
    const std::string name = text(table, "tokenizer", "");
    if (!name.empty() && set.tokenizer != TokenizerKind::unknown) {
      refuse(*table.get("tokenizer"), "'tokenizer': the token files hold their own");
    }
    if (name == "bytes") set.tokenizer = TokenizerKind::bytes;
    if (!name.empty() && name != "bytes") {
      set.tokenizer = TokenizerKind::sentencepiece;
      set.model.emplace(path_.parent_path() / name);
      const auto crc = crc32_of(0, set.model->data(), static_cast<std::size_t>(set.model->size()));
      if (const auto expected = checksum(table, "tokenizer_crc32"); expected && *expected != crc) {
        fail(set.model->path(), "checksum {:08x}, but {} expects {:08x}", crc, path_.string(), *expected);
      }
    }
    return set;
  }

 private:
  toml::table parse() const {
    try {
      return toml::parse_file(path_.string());
    } catch (const toml::parse_error& error) {
      const auto line = error.source().begin.line;
      fail(path_, "{}{}", line > 0 ? fmt::format("line {}: ", line) : "", error.description());
    }
  }
  [[noreturn]] void refuse(const toml::node& node, const std::string& what) const {
    fail(path_, "line {}: {}", node.source().begin.line, what);
  }
  void check_keys(const toml::table& table, const std::set<std::string_view>& known) const {
    for (const auto& [key, node] : table) {
      if (!known.contains(key.str())) refuse(node, fmt::format("unknown key '{}'", key.str()));
    }
  }
  std::int64_t whole(const toml::table& table, const char* key, std::int64_t least, std::int64_t most,
                     std::optional<std::int64_t> otherwise = {}) const {
    const auto* node = table.get(key);
    if (node == nullptr && otherwise) return *otherwise;
    if (node == nullptr) fail(path_, "line {}: no '{}'", table.source().begin.line, key);
    const auto* value = node->as_integer();
    if (value == nullptr || value->get() < least || value->get() > most) {
      refuse(*node, fmt::format("'{}' must be a whole number in [{}, {}]", key, least, most));
    }
    return value->get();
  }
  std::string text(const toml::table& table, const char* key, std::optional<std::string> otherwise = {}) const {
    const auto* node = table.get(key);
    if (node == nullptr && otherwise) return *otherwise;
    if (node == nullptr) fail(path_, "line {}: no '{}'", table.source().begin.line, key);
    if (!node->is_string()) refuse(*node, fmt::format("'{}' must be text", key));
    return node->as_string()->get();
  }

  std::optional<std::uint32_t> checksum(const toml::table& table, const char* key) const {
    const std::string digits = text(table, key, "");
    if (digits.empty()) return {};
    const bool right = digits.size() == 8 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!right) refuse(*table.get(key), fmt::format("'{}' must be eight hexadecimal digits, in small letters", key));
    return static_cast<std::uint32_t>(std::stoul(digits, nullptr, 16));
  }

  void read_segments(const toml::table& table, Split split, std::int64_t vocabulary, TokenSet& set) {
    const auto* node = table.get(to_string(split));
    if (node == nullptr) return;
    const auto form = fmt::format("'{0}' must be a list of tables, each written [[{0}]]", to_string(split));
    if (!node->is_array()) refuse(*node, form);
    for (const auto& entry : *node->as_array()) {
      if (!entry.is_table()) refuse(entry, form);
      const auto& part = *entry.as_table();
      check_keys(part, {"file", "bytes", "begin", "tokens", "documents", "crc32"});
      const fs::path file = path_.parent_path() / text(part, "file");
      auto& array = arrays_[fs::weakly_canonical(file)];
      if (!array) {
        array = open_array(file, vocabulary, file);
        set.adopt(*array);
      }
      if (const auto size = array->file.size(); whole(part, "bytes", 1, std::numeric_limits<std::int64_t>::max(), size) != size) {
        refuse(*part.get("bytes"), fmt::format("{} has {} bytes", file.string(), size));
      }
      const TokenSegment usual = usual_segment(array, split);
      TokenSegment segment{.array = array};
      segment.begin = whole(part, "begin", 0, array->tokens - 1, usual.begin);
      segment.tokens = whole(part, "tokens", 1, array->tokens - segment.begin, usual.begin + usual.tokens - segment.begin);
      const bool complete = segment.begin == usual.begin && segment.tokens == usual.tokens;
      segment.crc = checksum(part, "crc32");
      if (complete && usual.crc && segment.crc && *usual.crc != *segment.crc) {
        refuse(entry,
               fmt::format("{} has other tokens: checksum {:08x}, expected {:08x}", file.string(), *usual.crc, *segment.crc));
      }
      if (complete && !segment.crc) segment.crc = usual.crc;
      segment.documents = part.contains("documents") ? whole(part, "documents", 0, segment.tokens)
                          : complete                 ? usual.documents
                                                     : std::ssize(document_ends(segment));
      set.splits[static_cast<std::size_t>(split)].push_back(std::move(segment));
    }
  }

  const fs::path& path_;
  std::map<fs::path, std::shared_ptr<const TokenArray>> arrays_;
};

TokenSet find_in_folder(const fs::path& path) {
  if (fs::exists(path / description_name)) return Description(path / description_name).read();
  const Folder folder(path);
  if (folder.train.empty()) fail(path, "no {} in this folder, and no token files named train", description_name);
  TokenSet set;
  for (const auto& file : folder.train) set.add(open_array(file, 0, path), Split::train);
  for (const auto& file : folder.validation) set.add(open_array(file, 0, path), Split::validation);
  return set;
}

// Moves the last tokens of the training split to the validation split: `fraction` of them, to a document's end.
void split_off(TokenSet& set, double fraction) {
  auto& [train, validation] = set.splits;
  std::int64_t total = 0;
  for (const auto& segment : train) total += segment.tokens;
  auto wanted = static_cast<std::int64_t>(static_cast<double>(total) * fraction + 0.5);
  while (wanted > 0) {
    TokenSegment segment = std::move(train.back());
    train.pop_back();
    std::int64_t cut = std::max<std::int64_t>(segment.tokens - wanted, 0);
    const auto ends = document_ends(segment);
    const auto in_front = std::upper_bound(ends.begin(), ends.end(), cut) - ends.begin();
    if (in_front > 0) cut = ends[static_cast<std::size_t>(in_front - 1)];
    wanted -= segment.tokens - cut;
    TokenSegment back = segment;
    back.begin += cut;
    back.tokens -= cut;
    back.documents = std::ssize(ends) - in_front;
    validation.insert(validation.begin(), std::move(back));
    if (cut == 0) continue;
    segment.tokens = cut;
    segment.documents = in_front;
    train.push_back(std::move(segment));
    break;
  }
}

std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

// A path as a description in `folder` names it: what lies in the folder moves with it.
std::string named_from(const fs::path& folder, const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  const fs::path relative = absolute.lexically_relative(folder.lexically_normal());
  return (relative.empty() || *relative.begin() == ".." ? absolute : relative).string();
}

}  // namespace

void TokenSet::adopt(const TokenArray& array) {
  const fs::path& path = array.file.path();
  if (vocabulary != 0 && array.vocabulary != vocabulary) {
    fail(path, "a vocabulary of {}, the files before it have {}", array.vocabulary, vocabulary);
  }
  const auto* first = splits[0].empty() ? (splits[1].empty() ? nullptr : &splits[1].front()) : &splits[0].front();
  if (first != nullptr && first->array->format != array.format) {
    fail(path, "has the format {}, the files before it {}", array.format, first->array->format);
  }
  vocabulary = array.vocabulary;
  if (array.own == nullptr) return;
  if (first != nullptr && (first->array->own->model_crc != array.own->model_crc || end_token != array.own->end_token)) {
    fail(path, "was made with another tokenizer than the files before it");
  }
  tokenizer = static_cast<TokenizerKind>(array.own->tokenizer);
  end_token = array.own->end_token;
  if (first != nullptr) return;
  seed = array.own->seed;
  source.assign(array.own->source.data(), strnlen(array.own->source.data(), array.own->source.size()));
}

void TokenSet::add(const std::shared_ptr<const TokenArray>& array, Split split) {
  adopt(*array);
  for (const auto target : {Split::train, Split::validation}) {
    if (array->own == nullptr && target != split) continue;
    if (auto segment = usual_segment(array, target); segment.tokens > 0) {
      splits[static_cast<std::size_t>(target)].push_back(std::move(segment));
    }
  }
}

std::string_view TokenSet::tokenizer_model() const {
  if (model) return {reinterpret_cast<const char*>(model->data()), static_cast<std::size_t>(model->size())};
  for (const auto& split : splits) {
    if (!split.empty()) return split.front().array->tokenizer_model();
  }
  return {};
}

TokenSet find_tokens(const fs::path& path) {
  if (fs::is_directory(path)) return find_in_folder(path);
  if (path.extension() == ".toml") return Description(path).read();
  TokenSet set;
  const auto array = open_array(path, 0, path);
  set.add(array, Split::train);
  if (array->own != nullptr) set.unigram_entropy = array->own->unigram_entropy;
  return set;
}

std::vector<std::int64_t> document_ends(const TokenSegment& segment) {
  auto ends = segment.array->document_ends();
  std::erase_if(ends, [&](std::int64_t end) { return end <= segment.begin || end > segment.begin + segment.tokens; });
  for (auto& end : ends) end -= segment.begin;
  return ends;
}

std::uint32_t check_segment(const TokenSegment& segment, std::int64_t vocabulary, std::vector<std::int64_t>* frequencies,
                            const std::function<void(std::int64_t)>& progress) {
  constexpr std::int64_t part = 1 << 22;
  std::uint32_t crc = 0;
  for (std::int64_t done = 0; done < segment.tokens; done += part) {
    const auto count = std::min(part, segment.tokens - done);
    crc = check_tokens(*segment.array, segment.begin + done, count, vocabulary, crc, frequencies);
    if (progress) progress(count * segment.array->token_bytes);
  }
  return crc;
}

void write_token_set(const TokenSet& set, const fs::path& path) {
  const fs::path folder = fs::absolute(path).parent_path();
  std::string text = std::string(description_head) + " What the keys mean: harness/data/token_set.hpp\n";
  const auto put = [&](const char* key, const auto& value) { text += fmt::format("{} = {}\n", key, value); };
  put("scape_tokens", description_version);
  put("vocabulary", set.vocabulary);
  if (!set.source.empty()) put("source", quoted(set.source));
  if (!std::isnan(set.unigram_entropy)) put("unigram_entropy", set.unigram_entropy);
  const auto& any = set.splits[0].empty() ? set.splits[1] : set.splits[0];
  if (!any.empty() && any.front().array->own == nullptr) {
    if (set.model) {
      put("tokenizer", quoted(named_from(folder, set.model->path())));
      const auto model = set.tokenizer_model();
      put("tokenizer_crc32", quoted(fmt::format("{:08x}", crc32_of(0, model.data(), model.size()))));
    }
    if (set.tokenizer == TokenizerKind::bytes) put("tokenizer", quoted("bytes"));
    if (set.end_token >= 0) put("end_token", set.end_token);
  }
  for (const auto split : {Split::train, Split::validation}) {
    for (const auto& segment : set.splits[static_cast<std::size_t>(split)]) {
      text += fmt::format("\n[[{}]]\n", to_string(split));
      put("file", quoted(named_from(folder, segment.array->file.path())));
      put("bytes", segment.array->file.size());
      put("begin", segment.begin);
      put("tokens", segment.tokens);
      put("documents", segment.documents);
      if (segment.crc) put("crc32", quoted(fmt::format("{:08x}", *segment.crc)));
    }
  }
  const fs::path temporary = path.string() + fmt::format(".partial-{}", ::getpid());
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  std::error_code error;
  if (file) fs::rename(temporary, path, error);
  if (!file || error) {
    const auto code = errno;
    std::error_code ignored;
    fs::remove(temporary, ignored);
    fail(path, "cannot be written: {}", error ? error.message() : reason(code));
  }
}

fs::path describe_tokens(const DescribeOptions& options, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto need = [](bool condition, const std::string& message) {
    if (!condition) throw Error(ErrorKind::usage, message);
  };
  need(!options.paths.empty(), "no token file or folder named");
  need(options.validation_fraction == 0 || (options.validation_fraction > 0 && options.validation_fraction <= 0.5),
       "the fraction for validation must be in (0, 0.5]");
  const bool one_folder = options.paths.size() == 1 && fs::is_directory(options.paths.front());
  need(one_folder || !options.output.empty(), "name the description to write: --out NAME.toml");
  const fs::path output = options.output.empty() ? options.paths.front() / description_name : options.output;
  need(output.extension() == ".toml", fmt::format("{}: a description's name must end in .toml", output.string()));
  expect_own_kind(output, description_head, "a description by `scape data describe`");

  TokenSet set;
  std::set<fs::path> named;
  const auto add = [&](const fs::path& file, Split split) {
    need(named.insert(fs::weakly_canonical(file)).second, fmt::format("{}: is named twice", file.string()));
    const auto array = TokenArray::open(file, options.vocabulary);
    need(array->vocabulary > 0, fmt::format("{}: {} tokens do not say their vocabulary: give --vocabulary N (GPT-2: 50257)",
                                            file.string(), array->format));
    set.add(array, split);
  };
  for (const auto& path : options.paths) {
    if (!fs::is_directory(path)) {
      add(path, Split::train);
      continue;
    }
    const Folder folder(path);
    const auto& train = folder.train.empty() ? folder.other : folder.train;
    if (train.empty()) fail(path, "no token files in this folder");
    for (const auto& file : train) add(file, Split::train);
    for (const auto& file : folder.validation) add(file, Split::validation);
  }
  for (const auto& path : options.validation) add(path, Split::validation);
  if (options.validation_fraction > 0) {
    need(set.splits[1].empty(), "there are validation tokens already: give no fraction");
    split_off(set, options.validation_fraction);
  }
  need(!set.splits[1].empty(), "no validation tokens: give --validation with a fraction or a file");
  need(!set.splits[0].empty(), "no training tokens are left");

  if (!options.tokenizer.empty()) {
    need(set.tokenizer == TokenizerKind::unknown, "these files hold their tokenizer: give none");
    const Tokenizer tokenizer(options.tokenizer);
    need(tokenizer.vocabulary() <= set.vocabulary,
         fmt::format("the tokenizer has {} ids, more than the vocabulary of {}", tokenizer.vocabulary(), set.vocabulary));
    set.tokenizer = tokenizer.kind();
    if (tokenizer.kind() == TokenizerKind::sentencepiece) set.model.emplace(Tokenizer::model_file(options.tokenizer));
  }
  if (options.end_token >= 0) {
    need(options.end_token < set.vocabulary, "the end token is not below the vocabulary");
    set.end_token = options.end_token;
  }
  if (!options.source.empty()) set.source = options.source;
  for (const auto& path : options.paths) {
    if (options.source.empty() && set.splits[0].front().array->own == nullptr)
      set.source += (set.source.empty() ? "" : " ") + path.string();
  }

  std::int64_t done = 0, total = 0;
  for (const auto& split : set.splits) {
    for (const auto& segment : split) total += segment.tokens * segment.array->token_bytes;
  }
  std::vector<std::int64_t> frequencies(static_cast<std::size_t>(set.vocabulary));
  for (const auto split : {Split::train, Split::validation}) {
    for (auto& segment : set.splits[static_cast<std::size_t>(split)]) {
      const auto crc =
          check_segment(segment, set.vocabulary, split == Split::train ? &frequencies : nullptr, [&](std::int64_t bytes) {
            if (progress) progress(done += bytes, total);
          });
      segment.crc = crc;
      segment.documents = std::ssize(document_ends(segment));
    }
  }
  set.unigram_entropy = unigram_entropy(frequencies);
  write_token_set(set, output);
  return output;
}

}  // namespace scape
