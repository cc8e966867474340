#include "record/hdf5_recorder.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "io/file.hpp"
#include "record/hdf5.hpp"
#include "scape/build_info.hpp"
#include "scape/error.hpp"

namespace scape {
namespace {

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);  // allowed before MPI_Init
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

std::string hdf5_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

// Attributes that describe an attempt; those that report how it went are written as it goes.
Attributes own_attributes(const RunInfo& info, std::int64_t attempt) {
  return {{"schema_version", run_schema_version},
          {"name", info.name},
          {"command_line", info.command_line},
          {"ranks", info.ranks},
          {"oversubscribed", info.oversubscribed},
          {"planned_steps", info.planned_steps},
          {"tokens_per_step", info.tokens_per_step},
          {"suite_version", std::string(build_info::version)},
          {"compiler", std::string(build_info::compiler)},
          {"build_type", std::string(build_info::build_type)},
          {"mpi_version", mpi_version()},
          {"hdf5_version", hdf5_version()},
          {"host", host_name()},
          {"attempt", attempt},
          {"attempt_started", utc_now()},
          {"status", std::string("running")}};
}

void require_free_names(const RunInfo& info) {
  std::vector<std::string> taken{"started", "ended", "message", "complete"};
  for (const auto& [name, value] : own_attributes(info, 1)) taken.push_back(name);
  for (const auto& [name, value] : info.attributes) {
    if (std::find(taken.begin(), taken.end(), name) != taken.end()) {
      throw Error(ErrorKind::internal, fmt::format("run file: attribute '{}' is given twice, or the recorder's own", name));
    }
    taken.push_back(name);
  }
}

// What HDF5 changes in a file while it grows cannot be read when a kill hits right there. So columns grow rarely and in large
// steps; between, a flush writes numbers to places that are there already.
constexpr std::int64_t rows_at_a_time = 16384;
constexpr std::int64_t bytes_at_a_time = std::int64_t{1} << 23;  // fewer rows, where rows are large
constexpr std::int64_t bytes_for_attributes = 65536;

// Rows written and not, then placeholders. Step is written after the other columns: a row is there if and only if its step is.
std::size_t rows_present(const std::vector<double>& steps) {
  return static_cast<std::size_t>(std::find(steps.begin(), steps.end(), -1.0) - steps.begin());
}

// A group of equally long columns. Rows wait in memory until they are written.
class Table {
 public:
  static Table create(hdf5::Group parent, const std::vector<Column>& columns) {
    Table table(columns);
    for (const Column& column : columns) {
      const auto type = column.type == ColumnType::int64 ? hdf5::ElementType::int64 : hdf5::ElementType::float64;
      hdf5::Dataset& dataset = table.datasets_.emplace_back(parent.create_dataset(column.name, type, column.shape));
      dataset.set_attribute("unit", column.unit);
      dataset.set_attribute("meaning", column.meaning);
      dataset.set_attribute("origin", to_string(column.origin));
      if (const std::vector<double> edges = lower_edges(column.name); !edges.empty()) dataset.set_attribute("lower_edges", edges);
    }
    return table;
  }

  // Keeps the rows whose step is below `first_step`.
  static Table reopen(const hdf5::Group& parent, const std::string& where, const std::vector<Column>& columns,
                      std::int64_t first_step) {
    std::vector<std::string> names;
    for (const Column& column : columns) names.push_back(column.name);
    std::sort(names.begin(), names.end());
    if (names != parent.members()) {
      throw Error(ErrorKind::input, where + ": the columns differ from those of this run, so it cannot be continued here");
    }
    Table table(columns);
    for (const Column& column : columns) {
      if (table.datasets_.emplace_back(parent.dataset(column.name)).row_shape() == column.shape) continue;
      throw Error(ErrorKind::input, fmt::format("{}/{}: has rows of another shape than in this run, so it cannot be continued here",
                                                where, column.name));
    }
    std::vector<double> steps = table.datasets_.front().read();
    steps.resize(rows_present(steps));
    table.written_ = std::lower_bound(steps.begin(), steps.end(), static_cast<double>(first_step)) - steps.begin();
    if (table.written_ > 0) table.last_step_ = static_cast<std::int64_t>(steps[static_cast<std::size_t>(table.written_ - 1)]);
    return table;
  }

  void add(const std::vector<double>& values) {
    const auto expected = static_cast<std::size_t>(row_elements());
    if (values.size() != expected) {
      throw Error(ErrorKind::internal, fmt::format("run file: {} values for {} in all columns", values.size(), expected));
    }
    auto value = values.begin();
    for (const Column& column : columns_) {
      const auto end = value + elements(column);
      const auto whole = [](double x) { return std::trunc(x) == x; };  // not NaN
      if (const auto other = std::find_if_not(value, end, whole); column.type == ColumnType::int64 && other != end) {
        throw Error(ErrorKind::internal, fmt::format("run file: column '{}' holds whole numbers, not {}", column.name, *other));
      }
      value = end;
    }
    last_step_ = static_cast<std::int64_t>(values.front());
    value = values.begin();
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      waiting_[i].insert(waiting_[i].end(), value, value + elements(columns_[i]));
      value += elements(columns_[i]);
    }
  }

  // Room for `rows` more rows than are written.
  [[nodiscard]] bool has_room(std::int64_t rows) const { return written_ + rows <= datasets_.front().size(); }
  void make_room(hdf5::File& file, std::int64_t rows) {
    file.reserve(bytes_for_attributes + bytes_of(rows));
    resize(written_ + rows);
  }
  // Disk space for so many more rows, at most.
  [[nodiscard]] std::int64_t bytes_of(std::int64_t rows) const {
    return 16 * rows * row_elements() + 8192 * static_cast<std::int64_t>(columns_.size());
  }
  // Most rows to make room for at once.
  [[nodiscard]] std::int64_t stride() const {
    return std::clamp(bytes_at_a_time / (8 * row_elements()), std::int64_t{1}, rows_at_a_time);
  }
  // Cuts off what is not written.
  void fit() { resize(written_); }

  void write_values() {
    for (std::size_t i = 1; i < columns_.size(); ++i) datasets_[i].write(written_, waiting_[i]);
  }
  void write_steps() {
    datasets_.front().write(written_, waiting_.front());
    written_ += rows_waiting();
    for (std::vector<double>& column : waiting_) column.clear();
  }
  void close() { datasets_.clear(); }

  [[nodiscard]] std::int64_t rows_waiting() const { return static_cast<std::int64_t>(waiting_.front().size()); }
  [[nodiscard]] std::int64_t last_step() const { return last_step_; }

 private:
  explicit Table(const std::vector<Column>& columns) : columns_(columns), waiting_(columns.size()) {}
  static std::int64_t elements(const Column& column) {
    return std::accumulate(column.shape.begin(), column.shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  [[nodiscard]] std::int64_t row_elements() const {
    return std::accumulate(columns_.begin(), columns_.end(), std::int64_t{0},
                           [](std::int64_t sum, const Column& column) { return sum + elements(column); });
  }
  void resize(std::int64_t rows) {
    for (hdf5::Dataset& dataset : datasets_) dataset.resize(rows);
  }

  std::vector<Column> columns_;  // the first is "step"
  std::vector<hdf5::Dataset> datasets_;
  std::vector<std::vector<double>> waiting_;
  std::int64_t written_ = 0;
  std::int64_t last_step_ = 0;
};

template <class T>
T attribute_or(const hdf5::Object& object, const std::string& name, T otherwise) {
  const std::optional<OptionValue> value = object.attribute(name);
  return value && std::holds_alternative<T>(*value) ? std::get<T>(*value) : otherwise;
}

void require_run_file(const hdf5::File& file, const std::filesystem::path& path) {
  const auto version = attribute_or<std::int64_t>(file, "schema_version", 0);
  if (version == run_schema_version && file.contains("steps") && file.contains("validation")) return;
  throw Error(ErrorKind::input, fmt::format("{}: not a run file of schema version {}", path.string(), run_schema_version));
}

// A run file of any version, damaged or not, or an empty file: what --overwrite may be meant for.
void require_replaceable(const std::filesystem::path& path) {
  std::error_code unknown;
  bool replaceable = std::filesystem::is_regular_file(path, unknown);
  if (replaceable && std::filesystem::file_size(path, unknown) > 0) {
    replaceable = hdf5::has_signature(path);
    try {
      if (replaceable) replaceable = hdf5::File(path, hdf5::Mode::read).attribute("schema_version").has_value();
    } catch (const Error&) {  // damaged
    }
  }
  if (replaceable) return;
  throw Error(ErrorKind::usage, path.string() + ": is no run file, so it is not replaced; choose another name");
}

}  // namespace

class Hdf5Recorder::Writer {
 public:
  // HDF5 leaves an empty file when there is no room for its first bytes.
  static hdf5::File created(const std::filesystem::path& path, const std::filesystem::path& name) {
    try {
      return {path, hdf5::Mode::create, name};
    } catch (const Error&) {
      std::error_code unknown;
      if (std::filesystem::is_regular_file(path, unknown) && std::filesystem::file_size(path, unknown) == 0) {
        const FileLock nobody_writes_it(path);
        std::filesystem::remove(path, unknown);
      }
      throw;
    }
  }

  // A file at `path`, to be called `name`.
  static std::unique_ptr<Writer> create(const std::filesystem::path& path, const std::filesystem::path& name, std::int64_t attempt,
                                        const RunInfo& info) {
    hdf5::File file = created(path, name);
    try {
      file.reserve(4 * bytes_for_attributes);
      file.set_attribute("started", utc_now());
      Tables tables{Table::create(file.create_group("steps"), step_columns(info.extra)),
                    Table::create(file.create_group("validation"), validation_columns()), std::nullopt};
      if (info.diagnostics_every > 0) tables.diagnostics = create_diagnostics(file, info);
      return std::unique_ptr<Writer>(new Writer(std::move(file), std::move(tables), attempt, info));
    } catch (const Error&) {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);  // nothing half-written
      throw;
    }
  }

  // The old file stays until the new one is there.
  static std::unique_ptr<Writer> replace(const std::filesystem::path& path, std::int64_t attempt, const RunInfo& info) {
    const FileLock old(path);
    const std::filesystem::path beside = path.string() + ".new";
    std::error_code failure;
    std::filesystem::remove(beside, failure);  // left by a process that was killed right here
    std::unique_ptr<Writer> writer = create(beside, path, attempt, info);
    std::filesystem::rename(beside, path, failure);
    if (failure) {
      writer.reset();
      std::filesystem::remove(beside);
      fail(path, "cannot replace the file: {}", failure.message());
    }
    return writer;
  }

  static std::unique_ptr<Writer> reopen(const std::filesystem::path& path, const RunInfo& info) {
    hdf5::File file(path, hdf5::Mode::modify);
    require_run_file(file, path);
    const std::int64_t attempt = attribute_or<std::int64_t>(file, "attempt", 0) + 1;
    if (file.contains("diagnostics") != (info.diagnostics_every > 0)) {
      throw Error(ErrorKind::input,
                  fmt::format("{}: was begun {} diagnostics, so the run cannot be continued here {} them", path.string(),
                              info.diagnostics_every > 0 ? "without" : "with", info.diagnostics_every > 0 ? "with" : "without"));
    }
    const auto reopen_table = [&](const std::string& name, const std::vector<Column>& columns) {
      return Table::reopen(file.group(name), path.string() + "/" + name, columns, info.first_step);
    };
    Tables tables{reopen_table("steps", step_columns(info.extra)), reopen_table("validation", validation_columns()), std::nullopt};
    if (info.diagnostics_every > 0) {
      tables.diagnostics = reopen_table("diagnostics", diagnostics_columns(static_cast<std::int64_t>(info.tensors.size())));
    }
    if (tables.steps.last_step() < info.first_step - 1) {
      throw Error(ErrorKind::input, fmt::format("{}: ends at step {}, so the run cannot continue in it at step {}", path.string(),
                                                tables.steps.last_step(), info.first_step));
    }
    for (const char* name : {"complete", "ended", "message"}) file.remove_attribute(name);
    return std::unique_ptr<Writer>(new Writer(std::move(file), std::move(tables), attempt, info));
  }

  ~Writer() {
    try {
      if (!ended_ && std::any_of(all_.begin(), all_.end(), [](const Table* table) { return table->rows_waiting() > 0; })) flush();
    } catch (const Error&) {  // already reported by the call that failed, or nobody is left to tell
    }
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void step(StepRecord record) {
    require_rising(record.step, tables_.steps);
    record.attempt = attempt_;
    tables_.steps.add(step_values(record));
    unflushed_seconds_ += record.seconds;
    if (tables_.steps.rows_waiting() >= steps_between_flushes || unflushed_seconds_ >= seconds_between_flushes) flush();
  }

  void evaluate(const ValidationRecord& record) {
    tables_.validation.add(validation_values(record));
    flush();
  }

  void diagnose(const DiagnosticsRecord& record) {
    require(tables_.diagnostics.has_value(), ErrorKind::internal, "run file: diagnostics that were not announced");
    require_rising(record.step, *tables_.diagnostics);
    tables_.diagnostics->add(diagnostics_values(record));
  }

  void flush() {
    for (Table* table : all_) {
      if (table->has_room(table->rows_waiting())) continue;
      table->make_room(file_, table->rows_waiting() + std::min<std::int64_t>(1024, table->stride()));
      file_.flush();
    }
    for (Table* table : all_) table->write_values();
    file_.flush();
    for (Table* table : all_) table->write_steps();
    file_.flush();
    unflushed_seconds_ = 0;
  }

  // The marker goes to the file after everything else has.
  void end(const RunOutcome& outcome) {
    flush();
    file_.reserve(bytes_for_attributes);
    for (Table* table : all_) table->fit();
    file_.set_attribute("ended", utc_now());
    file_.set_attribute("message", outcome.message);
    file_.set_attribute("status", to_string(outcome.status));
    file_.flush();
    if (outcome.status == RunStatus::complete) file_.set_attribute("complete", true);
    for (Table* table : all_) table->close();
    file_.close();
    ended_ = true;
  }

  [[nodiscard]] std::int64_t attempt() const { return attempt_; }

 private:
  struct Tables {
    Table steps, validation;
    std::optional<Table> diagnostics;
  };

  static Table create_diagnostics(hdf5::File& file, const RunInfo& info) {
    hdf5::Group group = file.create_group("diagnostics");
    std::vector<std::string> names;
    std::vector<std::int64_t> sizes;
    for (const ParameterTensor& tensor : info.tensors) {
      names.push_back(tensor.name);
      sizes.push_back(tensor.range.size());
    }
    group.set_attribute("tensors", names);
    group.set_attribute("sizes", sizes);
    return Table::create(std::move(group), diagnostics_columns(static_cast<std::int64_t>(info.tensors.size())));
  }

  Writer(hdf5::File file, Tables tables, std::int64_t attempt, const RunInfo& info)
      : file_(std::move(file)), tables_(std::move(tables)), all_{&tables_.steps, &tables_.validation}, attempt_(attempt) {
    if (tables_.diagnostics) all_.push_back(&*tables_.diagnostics);
    const std::int64_t planned = info.planned_steps - info.first_step + 1;
    std::vector<std::int64_t> rows{planned, 256};
    if (tables_.diagnostics) rows.push_back(planned / info.diagnostics_every + 1);
    std::int64_t bytes = bytes_for_attributes;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      rows[i] = std::clamp(rows[i], std::int64_t{1}, all_[i]->stride());
      bytes += all_[i]->bytes_of(rows[i]);
    }
    file_.reserve(bytes);  // before anything changes
    for (const auto& [name, value] : info.attributes) file_.set_attribute(name, value);
    for (const auto& [name, value] : own_attributes(info, attempt)) file_.set_attribute(name, value);
    for (Table* table : all_) table->fit();
    for (std::size_t i = 0; i < all_.size(); ++i) all_[i]->make_room(file_, rows[i]);
    file_.flush();
  }

  static void require_rising(std::int64_t step, const Table& table) {
    if (step > table.last_step()) return;
    throw Error(ErrorKind::internal, fmt::format("run file: step {} recorded after step {}", step, table.last_step()));
  }

  hdf5::File file_;  // destroyed last: a file closes when nothing in it is open any more
  Tables tables_;
  std::vector<Table*> all_;
  std::int64_t attempt_;
  double unflushed_seconds_ = 0;
  bool ended_ = false;
};

Hdf5Recorder::Hdf5Recorder(std::filesystem::path path, ExistingFile existing) : path_(std::move(path)), existing_(existing) {}

Hdf5Recorder::~Hdf5Recorder() = default;

void Hdf5Recorder::begin(const RunInfo& info) {
  std::error_code error;
  const bool exists = std::filesystem::exists(path_, error);
  if (exists && existing_ == ExistingFile::refuse) {
    throw Error(ErrorKind::usage,
                path_.string() + ": this run file already exists; overwrite it, continue it or choose another name");
  }
  const std::filesystem::path folder = path_.parent_path();
  if (!folder.empty() && !std::filesystem::create_directories(folder, error) && error) {
    throw Error(ErrorKind::input, fmt::format("{}: cannot create the folder: {}", folder.string(), error.message()));
  }
  require_free_names(info);
  if (!exists) {
    writer_ = Writer::create(path_, path_, 1, info);
  } else if (existing_ == ExistingFile::overwrite) {
    require_replaceable(path_);
    writer_ = Writer::replace(path_, 1, info);
  } else if (info.first_step == 1) {
    writer_ = Writer::replace(path_, read_run_file_state(path_).attempt + 1, info);
  } else {
    writer_ = Writer::reopen(path_, info);
  }
}

Hdf5Recorder::Writer& Hdf5Recorder::writer() const {
  require(writer_ != nullptr, ErrorKind::internal, "run file: recorded before begin() or after end()");
  return *writer_;
}

void Hdf5Recorder::step(const StepRecord& record) {
  writer().step(record);
}

void Hdf5Recorder::evaluate(const ValidationRecord& record) {
  writer().evaluate(record);
}

void Hdf5Recorder::diagnose(const DiagnosticsRecord& record) {
  writer().diagnose(record);
}

void Hdf5Recorder::flush() {
  writer().flush();
}

void Hdf5Recorder::end(const RunOutcome& outcome) {
  writer().end(outcome);
  writer_.reset();
}

std::int64_t Hdf5Recorder::attempt() const {
  return writer().attempt();
}

RunFileState read_run_file_state(const std::filesystem::path& path) {
  const hdf5::File file(path, hdf5::Mode::read);
  require_run_file(file, path);
  RunFileState state;
  state.complete = attribute_or(file, "complete", false);
  state.status = attribute_or(file, "status", std::string("running"));
  state.attempt = attribute_or<std::int64_t>(file, "attempt", 1);
  state.planned_steps = attribute_or<std::int64_t>(file, "planned_steps", 0);
  for (const std::string& name : file.attribute_names()) {
    try {
      state.attributes[name] = to_string(*file.attribute(name));
    } catch (const Error&) {  // of another kind, so somebody's note
    }
  }
  const hdf5::Group group = file.group("steps");
  const std::vector<double> steps = group.dataset("step").read();
  if (const std::size_t rows = rows_present(steps); rows > 0) {
    state.last_step = static_cast<std::int64_t>(steps[rows - 1]);
    const std::vector<double> losses = group.dataset("loss").read();
    if (losses.size() < rows) throw Error(ErrorKind::input, path.string() + ": column loss has fewer rows than step");
    state.last_loss = losses[rows - 1];
  }
  return state;
}

}  // namespace scape
