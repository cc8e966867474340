// The masks of SCAPE in time: made in one step from every rank's part, gathered on the communication stream, used mask_delay steps
// later. Until the first one arrives everything is on the mask.
//
//   step t:   observe() the gradient, if t is a refresh step; then it may be overwritten
//             make() if t is a refresh step → gather …           use() → the newest mask whose time has come
//   then      commit() ends step t, or refuse() leaves everything as it was before it
//
// What comes on a mask is the business of mask_choice, how it travels that of mask_gather. The number of coordinates on a mask
// follows from the density alone, so payload sizes are known before a mask is.
#pragma once

#include <vector>

#include "methods/mask_choice.hpp"
#include "methods/mask_gather.hpp"
#include "scape/kernels.hpp"
#include "scape/scape.hpp"

namespace scape {

class MaskSchedule {
 public:
  MaskSchedule(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context);
  /// Waits for masks on their way.
  ~MaskSchedule();
  MaskSchedule(const MaskSchedule&) = delete;
  MaskSchedule& operator=(const MaskSchedule&) = delete;

  /// Number of the step under way: 1 + steps committed.
  [[nodiscard]] std::int64_t step() const { return book_.host()[0] + 1; }
  /// With mask_owner = ranges: the coordinates whose part of the mask this rank chooses.
  [[nodiscard]] Range owned() const { return owned_; }
  /// True if this step makes a mask, to be used in step() + mask_delay.
  [[nodiscard]] bool due() const { return (step() - 1) % options_.mask_refresh == 0; }

  /// Keeps what mask_statistic needs of context.grads in `range`; nothing if no mask is due. Before c takes the gradients' place.
  void observe(const StepContext& context, Range range);
  /// Whether make() reads m.
  [[nodiscard]] bool reads_m() const {
    return options_.mask_statistic == MaskStatistic::momentum || options_.mask_statistic == MaskStatistic::update;
  }
  /// Chooses this rank's part of a mask from candidate = c and m = m_{t−1} (each [W], or [owned().size()] with mask_owner = ranges;
  /// read where this rank owns) and starts to gather it. All ranges have been observed.
  void make(const StepContext& context, Span<const float> candidate, Span<const float> m);
  /// The mask of this step; the compute stream waits for it. Valid until the next step is committed.
  [[nodiscard]] MaskView use(const StepContext& context);
  /// |M_t ∩ M_{t−1}| / |M_t| of the masks of this step and the one before; NaN in the first step. After use().
  [[nodiscard]] double overlap(const Stream& stream);

  /// Waits for the mask made in this step if mask_wait says so.
  void commit(const StepContext& context);
  void refuse(const Stream& stream);

  /// The mask that the last committed step used.
  [[nodiscard]] MaskView last() const { return last_; }
  /// Coordinates on a mask made for density d: as mask_scope says of the matrices, and all of every vector.
  [[nodiscard]] std::int64_t count_for(double density) const { return choice_.count(density); }
  /// With mask_owner = ranges: coordinates on the mask of this step that each rank owns; they add up to its count. After use().
  /// Waits for the stream where they must be counted: with mask_scope = global, or if a run on other ranks chose them.
  [[nodiscard]] std::vector<std::int64_t> counts_by_owner(const Stream& stream);
  /// Coordinates on the mask of the caller's step t (StepContext::step, of which those refused until now do not count), those of
  /// each owner with mask_owner = ranges, and wire bytes of the mask made in it, by formula. With mask_scope = global, counts of
  /// owners are those of the mask used last, and a code whose size depends on them (elias_fano, auto) is right for the last mask
  /// made.
  [[nodiscard]] std::int64_t expected_count(std::int64_t t) const;
  [[nodiscard]] std::vector<std::int64_t> expected_counts_by_owner(std::int64_t t) const;
  [[nodiscard]] double expected_wire_bytes(std::int64_t t) const;
  /// Waits for masks on their way.
  void append_state(std::vector<StateEntry>& entries);

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  static constexpr std::int64_t unused = -1;
  // Slots form a ring of mask_delay + 2: the masks of the previous and of this step, and those on their way. Slots without a
  // mask are all zero, so that a refused step leaves the state as it found it, byte for byte.
  struct Slot {
    Buffer<std::uint64_t> words;
    Event gathered;
  };
  // What a checkpoint needs besides the bits lies in one vector: steps committed, masks made, then three numbers for each slot:
  // the step of its first use, the coordinates on it, and the number of ranks that chose them.
  [[nodiscard]] std::int64_t& made() { return book_.host()[1]; }
  [[nodiscard]] std::int64_t& first_use(std::size_t slot) { return book_.host()[2 + 3 * slot]; }
  [[nodiscard]] std::int64_t& count(std::size_t slot) { return book_.host()[3 + 3 * slot]; }
  [[nodiscard]] std::int64_t& owners(std::size_t slot) { return book_.host()[4 + 3 * slot]; }

  [[nodiscard]] std::size_t slot_for(std::int64_t t);
  [[nodiscard]] std::int64_t first_use_of_mask(std::int64_t t) const;
  [[nodiscard]] std::vector<std::int64_t> counts_of_mask(std::int64_t first_use) const;
  [[nodiscard]] MaskView view(std::size_t slot, const Stream& stream);
  void clear(std::size_t slot, const Stream& stream);

  ScapeOptions options_;
  ParameterLayout layout_;
  Device device_;
  std::int64_t total_steps_;
  int ranks_;
  Range owned_;
  MaskChoice choice_;
  MaskGather gather_;
  std::vector<Slot> slots_;
  Buffer<std::int64_t> offsets_;  // [blocks] index of the mask in use
  Buffer<std::int64_t> book_;     // on the host
  Buffer<std::int64_t> common_;   // [1]
  std::size_t in_use_ = none;     // slot of this step's mask
  std::size_t made_now_ = none;   // slot of the mask made in this step
  MaskView last_;
  std::int64_t refused_ = 0;               // steps of the caller that were refused before this one
  std::vector<std::int64_t> used_counts_;  // of the mask used last, by owner
};

}  // namespace scape
