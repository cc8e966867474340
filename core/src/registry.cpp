// Choosing a method by name, and the methods of the core.
#include "scape/registry.hpp"

#include "methods/dense.hpp"
#include "methods/rules.hpp"
#include "methods/zero1.hpp"
#include "scape/error.hpp"
#include "scape/scape.hpp"

namespace scape {

void register_core(Registry& registry) {
  registry.optimizers.add<Scape>("scape", "top-k of AdamS's first moment on a delayed shared mask", "arXiv 2607.01678");
  registry.optimizers.add<Zero1>("zero1", "dense gradients reduced to the owner of each coordinate's moments",
                                 "Rajbhandari et al. 2020; ZeRO++ (arXiv 2306.10209); SDP4Bit (arXiv 2410.15526)");
  registry.rules.add<AdamW>("adamw", "Adam with decoupled weight decay", "Loshchilov & Hutter 2019");
  registry.rules.add<AdamS>("adams", "Adam without a stored second moment", "arXiv 2505.16363");
  registry.syncs.add<Dense>("dense", "mean all-reduce of all gradients", "the dense reference");
}

MethodChoice::MethodChoice(const Registry& registry, std::string_view optimizer, std::string_view sync) {
  if (const auto* method = registry.optimizers.find(optimizer)) {
    if (!sync.empty()) {
      throw Error(ErrorKind::usage, "optimizer '" + std::string(optimizer) + "' communicates by itself and takes no sync ('" +
                                        std::string(sync) + "')");
    }
    optimizer_ = method->recipe();
    return;
  }
  const auto* rule = registry.rules.find(optimizer);
  if (rule == nullptr) {
    std::vector<std::string> names;
    for (const auto& method : registry.optimizers.all()) names.push_back(method.name);
    for (const auto& method : registry.rules.all()) names.push_back(method.name);
    throw Error(ErrorKind::usage,
                "unknown optimizer '" + std::string(optimizer) + "'; did you mean '" + nearest_name(optimizer, names) + "'?");
  }
  const auto* chosen_sync = registry.syncs.find(sync.empty() ? "dense" : sync);
  if (chosen_sync == nullptr) {
    std::vector<std::string> names;
    for (const auto& method : registry.syncs.all()) names.push_back(method.name);
    throw Error(ErrorKind::usage, "unknown sync '" + std::string(sync) + "'; did you mean '" + nearest_name(sync, names) + "'?");
  }
  rule_ = rule->recipe();
  sync_ = chosen_sync->recipe();
}

void MethodChoice::declare(OptionTable& table) {
  common_.declare(table);
  if (optimizer_) optimizer_->declare(table);
  if (sync_) sync_->declare(table);
  if (rule_) rule_->declare(table);
}

std::unique_ptr<Optimizer> MethodChoice::make(const MethodContext& context) const {
  if (optimizer_) return optimizer_->make(common_, context);
  return std::make_unique<Composed>(sync_->make(common_, context), rule_->make(common_, context), common_, context);
}

}  // namespace scape
