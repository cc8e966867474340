// The list of methods. One line in a registration function makes a method known to the command line, the sweeps, the
// conformance tests, the benches and the documentation; nothing else keeps a list.
//
//   registry.add<GradientSync, TopK>("topk", "each rank's own top-k with error feedback", "Stich et al. 2018; Lin et al. 2018");
//
// A method's class has a nested `Options` with `declare(OptionTable&)`, and a constructor (Options, MethodContext).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "scape/optimizer.hpp"

namespace scape {

/// A method with its options, before it is built.
template <class Base>
class Recipe {
 public:
  virtual ~Recipe() = default;
  virtual void declare(OptionTable& table) = 0;
  [[nodiscard]] virtual std::unique_ptr<Base> make(const CommonOptions& common, const MethodContext& context) const = 0;
};

template <class Base>
struct Method {
  std::string name;
  std::string summary;  // one line
  std::string source;   // the publication it implements
  std::function<std::unique_ptr<Recipe<Base>>()> recipe;
};

/// Methods of one kind, in order of registration.
template <class Base>
class MethodList {
 public:
  template <class Implementation>
  void add(std::string name, std::string summary, std::string source) {
    struct Concrete final : Recipe<Base> {
      typename Implementation::Options options;
      void declare(OptionTable& table) override { options.declare(table); }
      std::unique_ptr<Base> make(const CommonOptions& common, const MethodContext& context) const override {
        return std::make_unique<Implementation>(options, common, context);
      }
    };
    methods_.push_back({std::move(name), std::move(summary), std::move(source), [] { return std::make_unique<Concrete>(); }});
  }
  [[nodiscard]] const std::vector<Method<Base>>& all() const { return methods_; }
  /// Null when there is none of this name.
  [[nodiscard]] const Method<Base>* find(std::string_view name) const {
    for (const Method<Base>& method : methods_) {
      if (method.name == name) return &method;
    }
    return nullptr;
  }

 private:
  std::vector<Method<Base>> methods_;
};

struct Registry {
  MethodList<Optimizer> optimizers;  // complete methods
  MethodList<GradientSync> syncs;    // combined with any rule
  MethodList<UpdateRule> rules;
};

/// Adds `scape`, and the parts of it that are useful alone: the rules `adamw` and `adams` and the sync `dense`.
void register_core(Registry& registry);

/// The method chosen by `optimizer` (a complete method or an update rule) and `sync` (used with a rule), and its options.
///   1. MethodChoice choice(registry, settings);   2. choice.declare(table);   3. set options;   4. choice.make(context)
class MethodChoice {
 public:
  /// Throws Error(usage) with the nearest name for an unknown one, or when a complete method is combined with a sync.
  MethodChoice(const Registry& registry, std::string_view optimizer, std::string_view sync);
  void declare(OptionTable& table);
  [[nodiscard]] std::unique_ptr<Optimizer> make(const MethodContext& context) const;

 private:
  CommonOptions common_;
  std::unique_ptr<Recipe<Optimizer>> optimizer_;
  std::unique_ptr<Recipe<GradientSync>> sync_;
  std::unique_ptr<Recipe<UpdateRule>> rule_;
};

}  // namespace scape
