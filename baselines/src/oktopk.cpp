// Ok-Topk. Formulas in the header.
//
// Sizes of messages depend on the data, so the host waits for each exchange; counts travel ahead of the entries. A count of −1 says
// that a rank's gradient, or an owner's sum, is not finite: all ranks read it before anything of the state has changed.
#include "oktopk.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "exchange.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

constexpr std::int64_t refused = -1;

constexpr std::uint64_t make_entry(std::int64_t coordinate, float value) {
  return static_cast<std::uint64_t>(coordinate) << 32 | std::bit_cast<std::uint32_t>(value);
}
constexpr std::int64_t coordinate_of(std::uint64_t entry) {
  return static_cast<std::int64_t>(entry >> 32);
}
constexpr float value_of(std::uint64_t entry) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(entry));
}

// The k-th largest, or the smallest if there are fewer; 0 of none.
float kth_largest(std::vector<float> magnitudes, std::int64_t k) {
  if (magnitudes.empty()) return 0;
  const auto kth = magnitudes.begin() + std::min(k, static_cast<std::int64_t>(magnitudes.size())) - 1;
  std::nth_element(magnitudes.begin(), kth, magnitudes.end(), std::greater<>());
  return *kth;
}

template <class T>
Span<T> whole(std::vector<T>& values) {
  return Span<T>(std::span(values));
}
template <class T>
Span<const T> whole(const std::vector<T>& values) {
  return Span<const T>(std::span(values));
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// exchange(), and the host waits for it.
template <class Collectives>
void exchange_now(const StepContext& context, Collectives collectives) {
  exchange(context, collectives);
  context.stream.synchronize();
}

}  // namespace

void OkTopK::Options::declare(OptionTable& table) {
  schedule.declare(table);
  table.add("oktopk_threshold_period", threshold_period, "steps from one estimate of the thresholds to the next", {.min = 1});
  table.add("oktopk_region_period", region_period, "steps from one balancing of the owners' regions to the next", {.min = 1});
  table.add("oktopk_balance", balance, "largest to mean number of an owner's chosen entries above which they are dealt out evenly",
            {.min = 1});
}

OkTopK::OkTopK(const Options& options, const CommonOptions&, const MethodContext& context)
    : options_(options),
      layout_(context.layout),
      rank_(context.rank),
      ranks_(context.ranks),
      total_steps_(context.total_steps),
      update_(update_kernels(context.device)),
      residual_(layout_.size(), context.device),
      local_threshold_(1),
      global_threshold_(1),
      counters_(2),
      squares_(1, context.device) {
  require(context.device.kind == DeviceKind::cpu, ErrorKind::usage, "sync 'oktopk' has kernels for the CPU only");
  require(layout_.size() <= std::int64_t{1} << 32, ErrorKind::usage, "sync 'oktopk' has indices of 32 bits: too many parameters");
  for (const ParameterLayout::Run& run : layout_.runs()) {
    const bool matrix = run.role == TensorRole::matrix;
    (matrix ? sparse_ : dense_).push_back(run.range);
    if (matrix) sparse_size_ += run.range.size();
  }
}

std::int64_t OkTopK::selected(std::int64_t step) const {
  return kept_count(options_.schedule.at(step, total_steps_), sparse_size_);
}

bool OkTopK::reduce(const StepContext& context) {
  stream_ = context.stream;
  const std::int64_t accepted = counters_.host()[0];
  const std::int64_t k = selected(context.step);
  const auto unknown = [&](float threshold) { return threshold == 0 && k < sparse_size_; };
  float local = local_threshold_.host()[0];
  float global = global_threshold_.host()[0];
  sizes_ = {.estimated = accepted % options_.threshold_period == 0 || k != counters_.host()[1] || unknown(global),
            .made_regions = accepted % options_.region_period == 0 || regions_.empty()};

  const bool finite = accumulate(context);
  Entries sent, sums, all;
  if (finite) {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
    if (sizes_.estimated || unknown(local)) local = local_threshold(context);
    sent = select(context, local);
  }
  if (sizes_.made_regions) make_regions(sent, context);
  if (!split_and_reduce(sent, finite, sums, context)) return false;
  if (sizes_.estimated) global = global_threshold(sums, context);
  std::erase_if(sums, [&](Entry entry) { return std::abs(value_of(entry)) < global; });
  if (!balance_and_gather(std::move(sums), all, context)) return false;

  commit(all, local, context);
  local_threshold_.host()[0] = local;
  global_threshold_.host()[0] = global;
  counters_.host()[0] = accepted + 1;
  counters_.host()[1] = k;
  return true;
}

// Leaves a in the gradients; returns whether all of it is finite.
bool OkTopK::accumulate(const StepContext& context) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  update_.add(context.grads, residual_, 1, context.stream);
  update_.sum_of_squares(context.grads, squares_, context.stream);
  return std::isfinite(read(squares_.span(), context.stream));
}

float OkTopK::local_threshold(const StepContext& context) const {
  const std::int64_t k = selected(context.step);
  if (k == sparse_size_) return 0;  // everything, in later steps too
  std::vector<float> magnitudes;
  magnitudes.reserve(static_cast<std::size_t>(sparse_size_));
  for (const Range range : sparse_) {
    for (const float x : context.grads.subspan(range.begin, range.size()).host()) magnitudes.push_back(std::abs(x));
  }
  return kth_largest(std::move(magnitudes), k);
}

// L, ascending. Zeros need not be sent.
OkTopK::Entries OkTopK::select(const StepContext& context, float threshold) const {
  Entries entries;
  const float* a = context.grads.data();
  for (const Range range : sparse_) {
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      if (std::abs(a[j]) >= threshold && a[j] != 0) entries.push_back(make_entry(j, a[j]));
    }
  }
  return entries;
}

void OkTopK::make_regions(const Entries& local, const StepContext& context) {
  const std::int64_t size = layout_.size();
  std::vector<std::int64_t> inner;  // boundaries
  for (std::int64_t r = 1; r < ranks_; ++r) {
    const std::size_t first = local.size() * static_cast<std::size_t>(r) / static_cast<std::size_t>(ranks_);
    inner.push_back(local.empty() ? size * r / ranks_ : coordinate_of(local[first]));
  }
  exchange_now(context, [&](const Stream& comm_stream) { context.comm.all_reduce(whole(inner), ReduceOp::sum, comm_stream); });
  regions_.assign(1, 0);
  for (const std::int64_t sum : inner) regions_.push_back(sum / ranks_);
  regions_.push_back(size);
}

// sums ← s where any rank sent something, in this rank's region, ascending. The vectors are added up beside it. False when not
// finite.
bool OkTopK::split_and_reduce(const Entries& local, bool finite, Entries& sums, const StepContext& context) {
  sizes_.local = static_cast<std::int64_t>(local.size());
  std::vector<std::int64_t> to(static_cast<std::size_t>(ranks_), refused);  // numbers of entries
  std::vector<std::int64_t> from(to.size());
  for (std::size_t r = 0; finite && r < to.size(); ++r) {
    const auto begin_of = [&](std::int64_t j) { return std::lower_bound(local.begin(), local.end(), make_entry(j, 0)); };
    to[r] = r + 1 == to.size() ? local.end() - begin_of(regions_[r]) : begin_of(regions_[r + 1]) - begin_of(regions_[r]);
  }
  const std::vector<std::int64_t> ones(to.size(), 1);
  exchange_now(context, [&](const Stream& comm_stream) {
    context.comm.all_to_all_v(whole(to), ones, whole(from), ones, comm_stream);
    for (const Range range : dense_)
      context.comm.all_reduce(context.grads.subspan(range.begin, range.size()), ReduceOp::sum, comm_stream);
  });
  if (std::find(from.begin(), from.end(), refused) != from.end()) return false;
  for (const Range range : dense_) {
    update_.sum_of_squares(context.grads.subspan(range.begin, range.size()), squares_, context.stream);
    if (!std::isfinite(read(squares_.span(), context.stream))) return false;
  }

  Entries received(static_cast<std::size_t>(sum_of(from)));
  exchange_now(context,
               [&](const Stream& comm_stream) { context.comm.all_to_all_v(whole(local), to, whole(received), from, comm_stream); });
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  std::stable_sort(received.begin(), received.end(),  // equal coordinates stay in the order of the ranks
                   [](Entry a, Entry b) { return coordinate_of(a) < coordinate_of(b); });
  for (const Entry entry : received) {
    if (!sums.empty() && coordinate_of(sums.back()) == coordinate_of(entry)) {
      sums.back() = make_entry(coordinate_of(entry), value_of(sums.back()) + value_of(entry));
    } else {
      sums.push_back(entry);
    }
  }
  return true;
}

float OkTopK::global_threshold(const Entries& sums, const StepContext& context) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks_));
  const std::vector<std::int64_t> mine{static_cast<std::int64_t>(sums.size())};
  exchange_now(context, [&](const Stream& comm_stream) { context.comm.all_gather(whole(mine), whole(counts), comm_stream); });
  sizes_.summed = sum_of(counts);
  std::vector<float> magnitudes, all(static_cast<std::size_t>(sizes_.summed));
  for (const Entry entry : sums) magnitudes.push_back(std::abs(value_of(entry)));
  exchange_now(context,
               [&](const Stream& comm_stream) { context.comm.all_gather_v(whole(magnitudes), whole(all), counts, comm_stream); });
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  const std::int64_t k = selected(context.step);
  return k == sparse_size_ ? 0 : kth_largest(std::move(all), k);
}

// all ← the chosen entries of all ranks, ascending. False when one is not finite.
bool OkTopK::balance_and_gather(Entries chosen, Entries& all, const StepContext& context) {
  const bool finite = std::all_of(chosen.begin(), chosen.end(), [](Entry entry) { return std::isfinite(value_of(entry)); });
  const std::vector<std::int64_t> mine{finite ? static_cast<std::int64_t>(chosen.size()) : refused};
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks_));
  exchange_now(context, [&](const Stream& comm_stream) { context.comm.all_gather(whole(mine), whole(counts), comm_stream); });
  if (std::find(counts.begin(), counts.end(), refused) != counts.end()) return false;

  const std::int64_t total = sum_of(counts);
  const std::int64_t largest = *std::max_element(counts.begin(), counts.end());
  if (static_cast<double>(largest * ranks_) > options_.balance * static_cast<double>(total)) balance(chosen, counts, context);
  sizes_.chosen = total;
  all.resize(static_cast<std::size_t>(total));
  exchange_now(context,
               [&](const Stream& comm_stream) { context.comm.all_gather_v(whole(chosen), whole(all), counts, comm_stream); });
  return true;
}

// Deals the entries out anew, in the same order, to parts that differ by one at most.
void OkTopK::balance(Entries& chosen, std::vector<std::int64_t>& counts, const StepContext& context) {
  const std::int64_t total = sum_of(counts);
  const auto old_part = [&](int r) {
    const std::int64_t begin = std::accumulate(counts.begin(), counts.begin() + r, std::int64_t{0});
    return Range{begin, begin + counts[static_cast<std::size_t>(r)]};
  };
  const auto new_part = [&](std::int64_t r) { return Range{total * r / ranks_, total * (r + 1) / ranks_}; };
  std::vector<std::int64_t> to, from, even;
  for (int r = 0; r < ranks_; ++r) {
    to.push_back(intersect(old_part(rank_), new_part(r)).size());
    from.push_back(intersect(old_part(r), new_part(rank_)).size());
    even.push_back(new_part(r).size());
  }
  Entries received(static_cast<std::size_t>(sum_of(from)));
  exchange_now(context, [&](const Stream& comm_stream) {
    context.comm.all_to_all_v(whole(chosen), to, whole(received), from, comm_stream);
  });
  sizes_.balanced = static_cast<std::int64_t>(chosen.size());
  chosen = std::move(received);
  counts = std::move(even);
}

void OkTopK::commit(const Entries& all, float local_threshold, const StepContext& context) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  float* g = context.grads.data();
  float* r = residual_.data();
  for (const Range range : sparse_) {
    std::copy(g + range.begin, g + range.end, r + range.begin);
    std::fill(g + range.begin, g + range.end, 0.0F);
  }
  for (const Entry entry : all) {
    const std::int64_t j = coordinate_of(entry);
    g[j] = value_of(entry);
    if (std::abs(r[j]) >= local_threshold) r[j] = 0;
  }
  update_.divide(context.grads, static_cast<float>(ranks_), context.stream);
  density_ = static_cast<double>(sizes_.chosen + layout_.size() - sparse_size_) / static_cast<double>(layout_.size());
}

std::vector<StateEntry> OkTopK::state() {
  return {state_entry("oktopk/residual", StateScope::per_rank, residual_.span()),
          state_entry("oktopk/local_threshold", StateScope::per_rank, local_threshold_.span()),
          state_entry("oktopk/global_threshold", StateScope::replicated, global_threshold_.span()),
          state_entry("oktopk/counters", StateScope::replicated, counters_.span())};
}

double OkTopK::expected_wire_bytes(std::int64_t) const {
  const auto bytes = [&](Collective collective, double element, std::int64_t count) {
    return wire_bytes(collective, element * static_cast<double>(count), ranks_);
  };
  double sum = bytes(Collective::all_reduce, sizeof(float), layout_.size() - sparse_size_) +
               bytes(Collective::all_to_all, sizeof(std::int64_t), ranks_) +
               bytes(Collective::all_gather, sizeof(std::int64_t), ranks_) +
               bytes(Collective::all_to_all, sizeof(Entry), sizes_.local + sizes_.balanced) +
               bytes(Collective::all_gather, sizeof(Entry), sizes_.chosen);
  if (sizes_.estimated)
    sum +=
        bytes(Collective::all_gather, sizeof(std::int64_t), ranks_) + bytes(Collective::all_gather, sizeof(float), sizes_.summed);
  if (sizes_.made_regions) sum += bytes(Collective::all_reduce, sizeof(std::int64_t), ranks_ - 1);
  return sum;
}

double OkTopK::residual_norm() const {
  update_.sum_of_squares(residual_, squares_, stream_);
  return std::sqrt(read(squares_.span(), stream_));
}

}  // namespace scape
