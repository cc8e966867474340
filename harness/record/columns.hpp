// The schema of a run file, in one place: name, unit, meaning, type and origin of every column, and how its value is taken
// from a record. The file recorder writes these columns and results/README.md prints them (a test compares the two).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace scape {

struct StepRecord;
struct ValidationRecord;
struct DiagnosticsRecord;

/// Raised whenever a column or attribute changes its name, type or meaning.
inline constexpr std::int64_t run_schema_version = 1;

enum class ColumnType { int64, float64 };

enum class Origin {
  measured,  ///< counted, timed or computed in this very run
  modelled,  ///< from a formula, for example a collective's bandwidth-optimal traffic
};

struct Column {
  std::string name{};
  std::string unit{};  // "1" for plain numbers
  std::string meaning{};
  ColumnType type = ColumnType::float64;
  Origin origin = Origin::measured;
  std::vector<std::int64_t> shape{};  // of one row; empty for a plain number
};

/// Columns of group /steps in order: the fixed ones, then those that a method or trainer adds.
[[nodiscard]] std::vector<Column> step_columns(const std::vector<Column>& extra = {});
/// One value per column of step_columns(), the record's extra ones last.
[[nodiscard]] std::vector<double> step_values(const StepRecord& record);

/// Columns of group /validation, and one value for each.
[[nodiscard]] std::vector<Column> validation_columns();
[[nodiscard]] std::vector<double> validation_values(const ValidationRecord& record);

/// Columns of group /diagnostics for so many tensors: the step, then one number or one histogram for each tensor. And the values of
/// all columns in order, a row's from its first element to its last.
[[nodiscard]] std::vector<Column> diagnostics_columns(std::int64_t tensors);
[[nodiscard]] std::vector<double> diagnostics_values(const DiagnosticsRecord& record);
/// Lower edges of the bins of a histogram in diagnostics_columns(); empty for other columns.
[[nodiscard]] std::vector<double> lower_edges(const std::string& column);

/// "int64", "float64"; "measured", "modelled".
[[nodiscard]] std::string to_string(ColumnType type);
[[nodiscard]] std::string to_string(Origin origin);

}  // namespace scape
