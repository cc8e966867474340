#include "data/prepare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <future>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "data/synthetic.hpp"
#include "data/text_source.hpp"
#include "data/token_format.hpp"
#include "data/token_writer.hpp"
#include "data/tokenizer.hpp"
#include "io/file.hpp"
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

// What there is to read, found out before anything is written.
struct Survey {
  std::vector<fs::path> files;
  std::int64_t bytes = 0;        // of the files
  std::int64_t text_bytes = 0;   // of files that are cut into documents
  std::vector<fs::path> packed;  // of those, the compressed ones, whose text is not counted yet
  std::int64_t json_files = 0;
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
    const auto source = ByteSource::open(path);
    const bool json = is_json_lines(path);
    if (!json) {
      std::string head(sniffed_bytes, ' ');
      head.resize(source->read(head.data(), head.size()));
      if (const auto zero = head.find('\0'); zero != std::string::npos) return zero;
    }
    ++texts_;
    if (seen_.insert(fs::canonical(path)).second) {
      const auto bytes = static_cast<std::int64_t>(fs::file_size(path));
      survey_.files.push_back(path);
      survey_.bytes += bytes;
      if (json) {
        ++survey_.json_files;
      } else {
        survey_.text_bytes += bytes;
        if (source->compressed()) survey_.packed.push_back(path);
      }
    }
    return std::string::npos;
  }

  Survey survey_;
  std::set<fs::path> seen_;
  std::int64_t texts_ = 0;  // text files met, the repeated ones too
};

// How much text there is once it is unpacked; at least `enough` if it is more than that.
std::int64_t count_text(const Survey& survey, std::int64_t enough) {
  std::int64_t bytes = survey.text_bytes;
  std::vector<char> chunk(std::size_t{1} << 18);
  for (const auto& path : survey.packed) {
    if (bytes >= enough) break;
    bytes -= static_cast<std::int64_t>(fs::file_size(path));
    const auto source = ByteSource::open(path);
    while (const auto got = source->read(chunk.data(), chunk.size())) bytes += static_cast<std::int64_t>(got);
  }
  return bytes;
}

// Tokenises documents in parallel and hands them on in their order. Batches are cut by what goes in, so the batches, like the
// documents, are the same for any number of threads.
class Pipeline {
 public:
  using Sink = std::function<void(std::span<const std::int32_t> ids)>;

  Pipeline(const Tokenizer& tokenizer, int threads, Sink sink,
           std::function<void(std::int64_t position, std::int64_t text_bytes)> passed)
      : tokenizer_(tokenizer), threads_(static_cast<std::size_t>(threads)), sink_(std::move(sink)), passed_(std::move(passed)) {}

  /// `position`: bytes of all files up to the end of this text.
  void add(std::string text, std::int64_t position) {
    batch_bytes_ += text.size();
    batch_.push_back(std::move(text));
    position_ = position;
    if (batch_bytes_ >= full_batch) send();
  }
  void finish() {
    if (!batch_.empty()) send();
    while (!running_.empty()) receive();
  }

 private:
  static constexpr std::size_t full_batch = std::size_t{1} << 20;
  using Documents = std::vector<std::vector<std::int32_t>>;
  struct Running {
    std::future<Documents> documents;
    std::int64_t position;
    std::int64_t text_bytes;
  };

  void send() {
    if (running_.size() == threads_) receive();
    running_.push_back({std::async(std::launch::async,
                                   [this, batch = std::exchange(batch_, {})] {
                                     Documents documents;
                                     for (const auto& text : batch) {
                                       documents.push_back(tokenizer_.encode(text));
                                       if (tokenizer_.end_token() >= 0) documents.back().push_back(tokenizer_.end_token());
                                     }
                                     return documents;
                                   }),
                        position_, static_cast<std::int64_t>(batch_bytes_)});
    batch_bytes_ = 0;
  }
  void receive() {
    Running oldest = std::move(running_.front());
    running_.pop_front();
    for (const auto& ids : oldest.documents.get()) sink_(ids);
    passed_(oldest.position, oldest.text_bytes);
  }

  const Tokenizer& tokenizer_;
  std::size_t threads_;
  Sink sink_;
  std::function<void(std::int64_t, std::int64_t)> passed_;
  std::vector<std::string> batch_;
  std::size_t batch_bytes_ = 0;
  std::int64_t position_ = 0;
  std::deque<Running> running_;
};

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

// A text, which may be the only copy, is never replaced.
void expect_replaceable(const PrepareOptions& options) {
  expect_own_kind(options.output, {token_magic.data(), token_magic.size()}, "a token file of `scape data prepare`");
  if (fs::exists(options.output) && !options.overwrite) {
    throw Error(ErrorKind::usage, options.output.string() + ": exists; --overwrite replaces a token file");
  }
}

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
  require(options.shard_tokens >= 0 && options.threads >= 0, ErrorKind::usage, "shard tokens and threads cannot be negative");
  if (options.shard_tokens == 0) expect_replaceable(options);
  const Tokenizer tokenizer(options.tokenizer);
  Surveyor surveyor;
  for (const auto& path : options.paths) surveyor.add_named(path);
  const Survey survey = surveyor.take();
  require(options.field.empty() || survey.json_files > 0, ErrorKind::usage, "a field is named, but no file holds lines of JSON");
  const bool synthetic = options.paths.empty();
  const std::string source = describe(options);

  const Splitter splitter(options.validation_fraction, options.seed);
  const std::int64_t documents = 2 * splitter.period();
  const std::int64_t bytes = synthetic ? options.synthetic_bytes : count_text(survey, 10 * documents * longest_document);
  const std::int64_t needed = documents * (synthetic ? longest_synthetic : shortest_cut);
  if (bytes < needed && survey.json_files == 0) {
    throw Error(ErrorKind::input, fmt::format("{}: too little text to split: {} bytes, {} needed", source, bytes, needed));
  }
  // Cut short enough to fill two strata: then neither split is empty. Twenty, where that leaves documents of useful length: a
  // few very different ones would miss the fraction by much.
  const std::int64_t longest =
      std::clamp(bytes / (10 * documents), std::clamp(bytes / documents, shortest_cut, useful_length), longest_document);

  const std::int64_t vocabulary = tokenizer.vocabulary();
  const TokenFileInfo info{.vocabulary = vocabulary,
                           .token_bytes = vocabulary <= 256     ? 1
                                          : vocabulary <= 65536 ? 2
                                                                : 4,
                           .seed = options.seed,
                           .tokenizer = tokenizer.kind(),
                           .end_token = tokenizer.end_token(),
                           .source = source};
  const std::string model(tokenizer.model());
  std::unique_ptr<TokenWriter> writer;
  if (options.shard_tokens > 0) {
    writer = std::make_unique<TokenShardWriter>(options.output, info, model, options.shard_tokens);
  } else {
    writer = std::make_unique<TokenFileWriter>(options.output, info, model);
  }

  PrepareSummary summary{.files = std::ssize(survey.files), .skipped_files = survey.skipped};
  PrepareProgress done{.bytes_total = synthetic ? bytes : survey.bytes};
  std::int64_t document = 0;
  const int threads = options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Pipeline pipeline(
      tokenizer, threads, [&](std::span<const std::int32_t> ids) { writer->add(splitter.of(document++), ids); },
      [&](std::int64_t position, std::int64_t text_bytes) {
        done.bytes_done = position;
        done.text_bytes += text_bytes;
        if (progress) progress(done);
      });
  std::int64_t before = 0;  // bytes of the files, or of the synthetic text, up to here
  if (synthetic) {
    const SyntheticLanguage language(options.seed);
    for (std::int64_t i = 0; before < options.synthetic_bytes; ++i) {
      std::string text = language.document(i);
      before += std::ssize(text);
      pipeline.add(std::move(text), before);
    }
  }
  for (const auto& path : survey.files) {
    const auto sink = [&](std::string text, std::int64_t position) {
      if (text.empty()) {
        ++summary.empty_documents;
      } else {
        pipeline.add(std::move(text), before + position);
      }
    };
    if (is_json_lines(path)) {
      for_each_line(path, options.field.empty() ? "text" : options.field, sink);
    } else {
      for_each_piece(path, longest, sink);
    }
    before += static_cast<std::int64_t>(fs::file_size(path));
  }
  pipeline.finish();
  if (document < splitter.period()) {
    throw Error(ErrorKind::input,
                fmt::format("{}: {} documents are too few to split, {} needed", source, document, splitter.period()));
  }
  writer->finish();
  writer.reset();
  summary.info = TokenFile::open(options.output).info();
  return summary;
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
