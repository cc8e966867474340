// SCAPE: its options, and the choice of a form.
#include "scape/scape.hpp"

#include "methods/replicated.hpp"
#include "methods/sharded.hpp"
#include "scape/error.hpp"

namespace scape {

void ScapeOptions::declare(OptionTable& table) {
  table.add("form", form, "where the first moment lies: on every rank, or each coordinate's on one rank (ZeRO-1)",
            {{"replicated", ScapeFormKind::replicated}, {"sharded", ScapeFormKind::sharded}});
  table.add("sharded_payload", sharded_payload, "form = sharded: how gradients reach their owners; the paper's is all_reduce",
            {{"reduce_scatter", ShardedPayload::reduce_scatter}, {"all_reduce", ShardedPayload::all_reduce}});
  density.declare(table);
  table.add("mask_delay", mask_delay, "steps between making a mask and using it; 0 waits for the mask at once",
            {.min = 0, .max = 64});
  table.add("mask_refresh", mask_refresh, "steps between new masks", {.min = 1});
  table.add("mask_statistic", mask_statistic,
            "by which of its owner's numbers a coordinate is chosen for a mask; random is a control",
            {{"candidate", MaskStatistic::candidate},
             {"gradient", MaskStatistic::gradient},
             {"update", MaskStatistic::update},
             {"momentum", MaskStatistic::momentum},
             {"random", MaskStatistic::random}});
  table.add("mask_scope", mask_scope, "what competes for a mask: one rank's part of a tensor, all that a rank owns, or everything",
            {{"tensor", MaskScope::tensor}, {"shard", MaskScope::shard}, {"global", MaskScope::global}});
  table.add("mask_owner", mask_owner, "what a rank chooses masks for: an equal range of the parameters, or whole tensors",
            {{"ranges", MaskOwner::ranges}, {"tensors", MaskOwner::tensors}});
  table.add("mask_coding", mask_coding, "how masks are sent; auto: the smallest",
            {{"bitmap", MaskCoding::bitmap},
             {"index32", MaskCoding::index32},
             {"index16", MaskCoding::index16},
             {"elias_fano", MaskCoding::elias_fano},
             {"auto", MaskCoding::automatic}});
  table.add("mask_wait", mask_wait, "when the gather of a mask is waited for: in the step that uses it, or in the one that made it",
            {{"before_use", MaskWait::before_use}, {"before_forward", MaskWait::before_forward}});
  declare_bias_correction(table, bias_correction);
  table.add("residual", residual, "what is not sent: kept for later steps, kept but multiplied by beta1 in each step, or dropped",
            {{"keep", ResidualPolicy::keep}, {"decay", ResidualPolicy::decay}, {"none", ResidualPolicy::none}});
  table.add("clip", clip, "what clip_norm limits: the gradient recovered from the payload, or each rank's own gradient",
            {{"recovered", ClipPolicy::recovered}, {"local", ClipPolicy::local}});
  buckets.declare(table);
  table.add("payload", payload, "how values travel; what bf16 or fp8 (e5m2, a scale for 256 values) loses returns to the residual",
            {{"fp32", PayloadType::fp32}, {"bf16", PayloadType::bf16}, {"fp8", PayloadType::fp8}});
  table.add("backlog_scaling", backlog_scaling,
            "ours, not the paper's: a coordinate that waited a steps moves min(a, backlog_cap) times as far, or the root of that",
            {{"none", BacklogScaling::none}, {"linear", BacklogScaling::linear}, {"sqrt", BacklogScaling::sqrt}});
  table.add("backlog_cap", backlog_cap, "ours, not the paper's: most steps that backlog_scaling counts; 1: no scaling",
            {.min = 1, .max = 65535});
  table.add(
      "normaliser", normaliser,
      "what a step is divided by: AdamS's v of each coordinate, or (ours, not the paper's) the mean square of a block's gradient",
      {{"coordinate", Normaliser::coordinate}, {"block", Normaliser::block}});
  table.add(
      "offload", offload,
      "what lies in page-locked host memory between steps: nothing, the residual, or it and the fp32 parameters; saves memory "
      "of a GPU, changes no result",
      {{"none", Offload::none}, {"residual", Offload::residual}, {"replica", Offload::replica}});
  table.add("offload_piece", offload_piece,
            "coordinates that come to the device at a time with offload; there are two such buffers", {.min = 64});
}

namespace {

std::unique_ptr<ScapeForm> make_form(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context) {
  if (options.form == ScapeFormKind::sharded) {
    require(options.mask_owner == MaskOwner::ranges, ErrorKind::usage,
            "mask_owner = tensors needs form = replicated; with form = sharded every rank owns a range");
    require(options.payload == PayloadType::fp32 || options.sharded_payload == ShardedPayload::reduce_scatter, ErrorKind::usage,
            "payload = bf16 or fp8 with form = sharded needs sharded_payload = reduce_scatter, whose sums stay with their owners");
    require(options.buckets.overlap == Overlap::none, ErrorKind::usage,
            "overlap = bucketed needs form = replicated; with form = sharded the payload leaves after the backward pass");
    return std::make_unique<ShardedScape>(options, common, context);
  }
  require(options.sharded_payload == ShardedPayload::reduce_scatter, ErrorKind::usage,
          "sharded_payload = all_reduce needs form = sharded; form = replicated always sends its payload by all-reduce");
  return std::make_unique<ReplicatedScape>(options, common, context);
}

}  // namespace

Scape::Scape(const Options& options, const CommonOptions& common, const MethodContext& context)
    : form_(make_form(options, common, context)) {}

Scape::~Scape() = default;

void Scape::gradients_ready(const StepContext& context, Range range) {
  form_->gradients_ready(context, range);
}

StepResult Scape::step(const StepContext& context) {
  return form_->step(context);
}

std::vector<StateEntry> Scape::state() {
  return form_->state();
}

StepView Scape::inspect(const StepContext& context) const {
  return form_->inspect(context);
}

double Scape::expected_wire_bytes(std::int64_t step) const {
  return form_->expected_wire_bytes(step);
}

std::int64_t Scape::mask_count(double density) const {
  return form_->masks().count_for(density);
}

MaskView Scape::mask() const {
  return form_->masks().last();
}

}  // namespace scape
