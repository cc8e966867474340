#include "record/columns.hpp"

#include <fmt/format.h>

#include <array>
#include <functional>

#include "record/recorder.hpp"

namespace scape {
namespace {

using enum ColumnType;
using enum Origin;

// A column and where its value comes from: the schema's rows.
template <class Record>
struct Row {
  Column column;
  std::function<double(const Record&)> value;
};

template <class Record, class Number>
std::function<double(const Record&)> field(Number Record::*member) {
  return [member](const Record& record) { return static_cast<double>(record.*member); };
}

template <class Number>
std::function<double(const StepRecord&)> result(Number StepResult::*member) {
  return [member](const StepRecord& record) { return static_cast<double>(record.result.*member); };
}

template <class Number>
std::function<double(const StepRecord&)> total(Number CollectiveTraffic::*member) {
  return [member](const StepRecord& record) { return static_cast<double>(record.traffic.total().*member); };
}

template <class Number>
std::function<double(const StepRecord&)> traffic(Collective kind, Number CollectiveTraffic::*member) {
  return [=](const StepRecord& record) { return static_cast<double>(record.traffic[kind].*member); };
}

const char* meaning(Phase phase) {
  switch (phase) {
    case Phase::data:
      return "making the batch";
    case Phase::forward_backward:
      return "the model, forward and backward";
    case Phase::compress:
      return "the method's own work on gradients: residuals, selection, packing, quantization";
    case Phase::communication:
      return "exposed communication, that is compute inside, or waiting for, a collective";
    case Phase::update:
      break;
  }
  return "updating parameters and moments";
}

std::vector<Row<StepRecord>> step_rows() {
  using R = StepRecord;
  using T = CollectiveTraffic;
  std::vector<Row<R>> rows{
      {{"step", "1", "number of the step, strictly rising from 1", int64, measured}, field(&R::step)},
      {{"attempt", "1", "attempt that recorded the row; rises when a run is resumed", int64, measured}, field(&R::attempt)},
      {{"tokens", "token", "training tokens seen by all ranks so far, this step included", int64, measured}, field(&R::tokens)},
      {{"skipped", "1", "1 if a gradient was not finite, so that all ranks left their state unchanged; else 0", int64, measured},
       [](const R& record) { return record.result.applied ? 0.0 : 1.0; }},
      {{"loss", "nat/token", "training loss, mean over the tokens of all ranks", float64, measured}, field(&R::loss)},
      {{"learning_rate", "1", "learning rate used in the step", float64, measured}, field(&R::learning_rate)},
      {{"gradient_norm", "1", "L2 norm that clipping used, before clipping", float64, measured},
       result(&StepResult::gradient_norm)},
      {{"density", "1", "fraction of the coordinates that the step communicated", float64, measured}, result(&StepResult::density)},
      {{"mask_overlap", "1", "fraction of the mask that was also in the previous mask", float64, measured},
       result(&StepResult::mask_overlap)},
      {{"residual_norm", "1", "L2 norm of rank 0's error-feedback residual after the step", float64, measured},
       result(&StepResult::residual_norm)},
      {{"data_hash", "1", "hash of the token ids of all ranks: equal in runs that saw the same data on as many ranks", int64,
        measured},
       field(&R::data_hash)},
      {{"seconds", "s", "wall time of the whole step", float64, measured}, field(&R::seconds)},
      {{"flops_utilisation", "1",
        "flops_per_token · tokens of the step / (`seconds` · ranks · `peak_teraflops`); NaN: peak not known", float64, measured},
       field(&R::flops_utilisation)},
      {{"checkpoint_seconds", "s", "time that training waited for checkpoints since the step before; not in `seconds`", float64,
        measured},
       field(&R::checkpoint_seconds)},
  };
  for (const Phase phase : all_phases) {
    rows.push_back({{fmt::format("{}_seconds", to_string(phase)), "s", fmt::format("part of `seconds`: {}", meaning(phase)),
                     float64, measured},
                    [=](const R& record) { return record.phase_seconds[static_cast<std::size_t>(phase)]; }});
  }
  const std::vector<Row<R>> totals{
      {{"collective_calls", "1", "collectives of all kinds", int64, measured}, total(&T::calls)},
      {{"payload_bytes", "B", "message sizes of all collectives", int64, measured}, total(&T::payload_bytes)},
      {{"wire_bytes", "B", "bytes that a rank sends if every collective is bandwidth-optimal", float64, modelled},
       total(&T::wire_bytes)},
      {{"expected_wire_bytes", "B", "the method's own formula for `wire_bytes`", float64, modelled},
       field(&R::expected_wire_bytes)},
  };
  rows.insert(rows.end(), totals.begin(), totals.end());
  for (const Collective kind : all_collectives) {
    const std::string name = to_string(kind);
    const auto add = [&](const char* what, const char* unit, const char* text, ColumnType type, Origin origin, auto member) {
      rows.push_back({{name + what, unit, fmt::format("{}: {}", name, text), type, origin}, traffic(kind, member)});
    };
    add("_calls", "1", "calls", int64, measured, &T::calls);
    add("_payload_bytes", "B", "message sizes", int64, measured, &T::payload_bytes);
    add("_wire_bytes", "B", "bytes that a rank sends if bandwidth-optimal", float64, modelled, &T::wire_bytes);
    add("_seconds", "s", "time inside, waiting for slower ranks included, hidden behind compute or not", float64, measured,
        &T::seconds);
  }
  return rows;
}

std::vector<Row<ValidationRecord>> validation_rows() {
  using R = ValidationRecord;
  return {
      {{"step", "1", "evaluated after this step; 0 is before training", int64, measured}, field(&R::step)},
      {{"tokens", "token", "training tokens seen by all ranks so far", int64, measured}, field(&R::tokens)},
      {{"loss", "nat/token", "mean loss over the validation tokens", float64, measured}, field(&R::loss)},
      {{"seconds", "s", "wall time of the evaluation", float64, measured}, field(&R::seconds)},
  };
}

// What /diagnostics says about a tensor in one number. M: the mask that the step used; c: rank 0's values, of which those on M
// were sent.
struct TensorNumber {
  const char* name;
  const char* meaning;
  double TensorDiagnostics::*member;
};
using Tensor = TensorDiagnostics;
constexpr std::array tensor_numbers{
    TensorNumber{"jaccard_previous", "coordinates on M and the previous step's mask, over those on either",
                 &Tensor::jaccard_previous},
    TensorNumber{"share_previous", "coordinates on M and the previous step's mask, over those on M", &Tensor::share_previous},
    TensorNumber{"jaccard_first", "coordinates on M and the first mask of its size, over those on either", &Tensor::jaccard_first},
    TensorNumber{"share_first", "coordinates on M and the first mask of its size, over those on M", &Tensor::share_first},
    TensorNumber{"energy_overlap", "sum of c² on M, over the sum of as many largest c²", &Tensor::energy_overlap},
    TensorNumber{"topk_norm", "L2 norm of c on M", &Tensor::topk_norm},
    TensorNumber{"residual_norm", "L2 norm of rank 0's error-feedback residual after the step", &Tensor::residual_norm},
};

template <class Record>
std::vector<Column> columns_of(const std::vector<Row<Record>>& rows) {
  std::vector<Column> columns;
  for (const auto& row : rows) columns.push_back(row.column);
  return columns;
}

template <class Record>
std::vector<double> values_of(const std::vector<Row<Record>>& rows, const Record& record) {
  std::vector<double> values;
  for (const auto& row : rows) values.push_back(row.value(record));
  return values;
}

}  // namespace

std::vector<Column> step_columns(const std::vector<Column>& extra) {
  std::vector<Column> columns = columns_of(step_rows());
  columns.insert(columns.end(), extra.begin(), extra.end());
  return columns;
}

std::vector<double> step_values(const StepRecord& record) {
  static const std::vector<Row<StepRecord>> rows = step_rows();
  std::vector<double> values = values_of(rows, record);
  values.insert(values.end(), record.extra.begin(), record.extra.end());
  return values;
}

std::vector<Column> validation_columns() {
  return columns_of(validation_rows());
}

std::vector<double> validation_values(const ValidationRecord& record) {
  return values_of(validation_rows(), record);
}

std::vector<Column> diagnostics_columns(std::int64_t tensors) {
  std::vector<Column> columns{{"step", "1", "after this step", int64, measured}};
  for (const TensorNumber& row : tensor_numbers) columns.push_back({row.name, "1", row.meaning, float64, measured, {tensors}});
  columns.push_back({"gradient_histogram",
                     "1",
                     "coordinates by magnitude of rank 0's gradient, as the backward pass left it",
                     int64,
                     measured,
                     {tensors, GradientBins::count}});
  columns.push_back({"age_histogram",
                     "1",
                     "coordinates by the number of steps since they were last on a used mask; 0: they are on it",
                     int64,
                     measured,
                     {tensors, AgeBins::count}});
  return columns;
}

std::vector<double> diagnostics_values(const DiagnosticsRecord& record) {
  std::vector<double> values{static_cast<double>(record.step)};
  for (const TensorNumber& row : tensor_numbers) {
    for (const TensorDiagnostics& tensor : record.tensors) values.push_back(tensor.*row.member);
  }
  const auto add_histograms = [&](auto member) {
    for (const TensorDiagnostics& tensor : record.tensors)
      values.insert(values.end(), (tensor.*member).begin(), (tensor.*member).end());
  };
  add_histograms(&TensorDiagnostics::gradient_histogram);
  add_histograms(&TensorDiagnostics::age_histogram);
  return values;
}

std::vector<double> lower_edges(const std::string& column) {
  std::vector<double> edges;
  const auto edges_of = [&](auto bins) {
    for (std::int64_t bin = 0; bin < bins.count; ++bin) edges.push_back(bins.lower_edge(bin));
  };
  if (column == "gradient_histogram") edges_of(GradientBins());
  if (column == "age_histogram") edges_of(AgeBins());
  return edges;
}

std::string to_string(ColumnType type) {
  return type == int64 ? "int64" : "float64";
}

std::string to_string(Origin origin) {
  return origin == measured ? "measured" : "modelled";
}

}  // namespace scape
