#include "data/prepare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "data/synthetic.hpp"
#include "scape/error.hpp"
#include "scape/rng.hpp"

namespace scape {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t longest_document = 64 << 10;
constexpr std::int64_t longest_synthetic = 8 << 10;
constexpr std::int64_t useful_length = 4 << 10;
constexpr std::int64_t shortest_cut = 256;  // a text is not cut into documents shorter than this
constexpr std::size_t sniffed_bytes = 64 << 10;

template <class... Args>
[[noreturn]] void fail(const fs::path& path, fmt::format_string<Args...> message, Args&&... args) {
  throw Error(ErrorKind::input, fmt::format("{}: {}", path.string(), fmt::format(message, std::forward<Args>(args)...)));
}

std::ifstream open_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be read: {}", std::generic_category().message(errno));
  return file;
}

// Up to `count` more bytes at the end of `text`.
void read_more(std::ifstream& file, const fs::path& path, std::string& text, std::size_t count) {
  const std::size_t old = text.size();
  text.resize(old + count);
  file.read(&text[old], static_cast<std::streamsize>(count));
  if (file.bad()) fail(path, "cannot be read: {}", std::generic_category().message(errno));
  text.resize(old + static_cast<std::size_t>(file.gcount()));
}

// What there is to read, found out before anything is written.
struct Survey {
  std::vector<fs::path> files;
  std::int64_t bytes = 0;
  std::int64_t skipped = 0;
};

class Surveyor {
 public:
  // A path that the user named must be text; what lies in a folder may also be something else.
  void add_named(const fs::path& path) {
    std::error_code error;
    const auto status = fs::status(path, error);
    if (status.type() == fs::file_type::not_found) fail(path, "does not exist");
    if (error) fail(path, "cannot be read: {}", error.message());
    if (fs::is_directory(status)) {
      const auto before = texts_;
      add_folder(path);
      if (texts_ == before) fail(path, "no text file in this folder");
      return;
    }
    if (!fs::is_regular_file(status)) fail(path, "is neither a file nor a folder");
    if (fs::file_size(path) == 0) fail(path, "is empty (byte 0)");
    if (const auto zero = add_file(path); zero != std::string::npos) fail(path, "byte {} is zero: not a text file", zero);
  }

  [[nodiscard]] Survey take() { return std::move(survey_); }

 private:
  void add_folder(const fs::path& folder) {
    std::error_code error;
    std::vector<fs::directory_entry> entries;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (it->path().filename().native().front() != '.') entries.push_back(*it);
    }
    if (error) fail(folder, "cannot be read: {}", error.message());
    std::sort(entries.begin(), entries.end());
    for (const auto& entry : entries) {
      if (entry.is_directory(error)) {
        if (!entry.is_symlink(error)) add_folder(entry.path());  // a link may lead back up
      } else if (entry.is_regular_file(error)) {
        if (fs::file_size(entry.path()) == 0 || add_file(entry.path()) != std::string::npos) ++survey_.skipped;
      } else if (!entry.exists(error)) {
        fail(entry.path(), "cannot be read: the link leads nowhere");
      }
    }
  }

  // Takes a file unless it is binary; then returns the position of its first zero byte. A file named twice counts once:
  // otherwise the same text could be in both splits.
  std::size_t add_file(const fs::path& path) {
    auto file = open_text(path);
    std::string head;
    read_more(file, path, head, sniffed_bytes);
    const auto zero = head.find('\0');
    if (zero != std::string::npos) return zero;
    ++texts_;
    if (seen_.insert(fs::canonical(path)).second) {
      survey_.files.push_back(path);
      survey_.bytes += static_cast<std::int64_t>(fs::file_size(path));
    }
    return zero;
  }

  Survey survey_;
  std::set<fs::path> seen_;
  std::int64_t texts_ = 0;  // text files met, the repeated ones too
};

// Where to cut a text that is too long: behind the last blank line of its second half, else behind a line, else at its end.
std::size_t cut_position(std::string_view text) {
  for (const std::string_view end : {"\n\n", "\n\r\n", "\n"}) {
    const auto found = text.rfind(end);
    if (found != std::string_view::npos && found >= text.size() / 2) return found + end.size();
  }
  return text.size();
}

template <class Emit>
void for_each_document(const fs::path& path, std::int64_t longest, const Emit& emit) {
  auto file = open_text(path);
  const auto limit = static_cast<std::size_t>(longest);
  std::string text;
  for (;;) {
    read_more(file, path, text, limit + 1 - text.size());
    if (text.size() <= limit) break;
    const auto cut = cut_position(std::string_view(text).substr(0, limit));
    emit(std::string_view(text).substr(0, cut));
    text.erase(0, cut);
  }
  if (!text.empty()) emit(std::string_view(text));
}

// Which documents go to the validation split. Document i lies in stratum floor(i · fraction); a hash picks one document of each
// stratum. Whole numbers: the same choice on every machine.
class Splitter {
 public:
  Splitter(double fraction, std::uint64_t seed) : per_million_(static_cast<std::int64_t>(fraction * million + 0.5)), seed_(seed) {}

  /// Documents in the largest stratum.
  [[nodiscard]] std::int64_t period() const { return first_of(1); }
  [[nodiscard]] Split of(std::int64_t document) const {
    const std::int64_t stratum = document * per_million_ / million;
    const std::int64_t begin = first_of(stratum);
    const std::int64_t size = first_of(stratum + 1) - begin;
    const std::int64_t chosen = begin + philox(seed_, split_stream, static_cast<std::uint64_t>(stratum))[0] % size;
    return document == chosen ? Split::validation : Split::train;
  }

 private:
  static constexpr std::int64_t million = 1000000;
  static constexpr std::uint64_t split_stream = std::uint64_t{0x73706c6974} << 24;
  [[nodiscard]] std::int64_t first_of(std::int64_t stratum) const { return (stratum * million + per_million_ - 1) / per_million_; }

  std::int64_t per_million_;
  std::uint64_t seed_;
};

std::string describe(const PrepareOptions& options) {
  if (!options.description.empty()) return options.description;
  if (options.paths.empty()) return fmt::format("synthetic language, seed {}", options.seed);
  std::string text;
  for (const auto& path : options.paths) text += (text.empty() ? "" : " ") + path.string();
  return text;
}

}  // namespace

PrepareSummary prepare(const PrepareOptions& options, const std::function<void(const PrepareProgress&)>& progress) {
  require(options.validation_fraction >= 0.001 && options.validation_fraction <= 0.5, ErrorKind::usage,
          "validation fraction must be in [0.001, 0.5]");
  require(!options.output.empty(), ErrorKind::usage, "no output file named");
  require(!options.paths.empty() || options.synthetic_bytes >= 1 << 20, ErrorKind::usage,
          "the synthetic text must have at least 1 MiB (1048576 bytes)");
  Surveyor surveyor;
  for (const auto& path : options.paths) surveyor.add_named(path);
  const Survey survey = surveyor.take();
  const bool synthetic = options.paths.empty();
  const std::string source = describe(options);

  const Splitter splitter(options.validation_fraction, options.seed);
  const std::int64_t documents = 2 * splitter.period();
  const std::int64_t bytes = synthetic ? options.synthetic_bytes : survey.bytes;
  const std::int64_t needed = documents * (synthetic ? longest_synthetic : shortest_cut);
  if (bytes < needed) {
    throw Error(ErrorKind::input, fmt::format("{}: too little text to split: {} bytes, {} needed", source, bytes, needed));
  }
  // Cut short enough to fill two strata: then neither split is empty. Twenty, where that leaves documents of useful length: a
  // few very different ones would miss the fraction by much.
  const std::int64_t longest = std::clamp(bytes / (10 * documents), std::min(useful_length, bytes / documents), longest_document);

  TokenFileWriter writer(options.output, {.seed = options.seed, .source = source});
  PrepareProgress done{.bytes_total = bytes};
  std::vector<std::int32_t> ids;
  std::int64_t document = 0;
  const auto add = [&](std::string_view text) {
    ids.clear();
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    writer.add(splitter.of(document++), ids);
    done.bytes_done += std::ssize(text);
    if (progress) progress(done);
  };
  if (synthetic) {
    const SyntheticLanguage language(options.seed);
    while (done.bytes_done < options.synthetic_bytes) add(language.document(document));
  } else {
    for (const auto& path : survey.files) for_each_document(path, longest, add);
  }
  return {.info = writer.finish(), .files = std::ssize(survey.files), .skipped_files = survey.skipped};
}

std::optional<DefaultText> find_default_text(const fs::path& root) {
  constexpr std::int64_t enough = 2 << 20;
  // Change logs, a table of contents and a table of Unicode properties are no prose; four files are not in English.
  const auto unsuitable = [](const std::string& name) {
    constexpr std::array<std::string_view, 6> files{"perltoc", "perluniprops", "perlcn", "perljp", "perlko", "perltw"};
    return name.ends_with("delta") || std::find(files.begin(), files.end(), name) != files.end();
  };
  std::error_code error;
  std::vector<fs::path> versions;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) versions.push_back(it->path());
  std::sort(versions.rbegin(), versions.rend());
  for (const auto& version : versions) {
    DefaultText text;
    std::int64_t bytes = 0;
    for (fs::directory_iterator it(version / "pod", error), end; !error && it != end; it.increment(error)) {
      const auto& path = it->path();
      if (path.extension() != ".pod" || unsuitable(path.stem().string()) || !it->is_regular_file(error)) continue;
      bytes += static_cast<std::int64_t>(fs::file_size(path));
      text.paths.push_back(path);
    }
    if (bytes < enough) continue;
    std::sort(text.paths.begin(), text.paths.end());
    text.description =
        fmt::format("manual of Perl {} (Debian package perl-doc), {} files", version.filename().string(), text.paths.size());
    return text;
  }
  return std::nullopt;
}

}  // namespace scape
