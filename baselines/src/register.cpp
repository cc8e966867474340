// The list of baselines: one line each.
#include "demo.hpp"
#include "oktopk.hpp"
#include "onebit_adam.hpp"
#include "powersgd.hpp"
#include "quantized.hpp"
#include "radius.hpp"
#include "scape/baselines.hpp"
#include "topk.hpp"
#include "topk_shared.hpp"

namespace scape {

void register_baselines(Registry& registry) {
  registry.optimizers.add<OneBitAdam>("onebit_adam", "Adam warm-up, then signs of the momentum with the second moment frozen",
                                      "Tang et al. 2021 (arXiv 2102.02888)");
  registry.optimizers.add<Demo>("demo", "decoupled momentum: sign of the strongest frequencies of local momenta",
                                "Peng et al. 2024 (arXiv 2411.19870)");
  registry.syncs.add<TopK>("topk", "each rank's own top-k of gradient + residual, gathered and summed",
                           "Stich et al. 2018 (arXiv 1809.07599); Lin et al. 2018 (arXiv 1712.01887)");
  registry.syncs.add<Quantized>("quantized", "block-wise 8- or 4-bit integers in a two-phase mean",
                                "ZeRO++ qgZ, Wang et al. 2023 (arXiv 2306.10209)");
  registry.syncs.add<TopKShared>("topk_shared", "top-k on a mask that all ranks share: the union of their choices, or an owner's",
                                 "Renggli et al. 2019 (SparCML, arXiv 1802.08021)");
  registry.syncs.add<OkTopK>("oktopk", "sparse all-reduce of the top-k by thresholds: split, reduce, balance, gather",
                             "Li & Hoefler 2022 (arXiv 2201.07598)");
  registry.syncs.add<Radius>("radius", "per-tensor top-k of a dense mean, kept for the steps until the next one",
                             "Zheng & Zhang, MLSys 2025");
  registry.syncs.add<PowerSgd>("powersgd", "factors of low rank from one power iteration a step",
                               "Vogels et al. 2019 (arXiv 1905.13727)");
}

}  // namespace scape
