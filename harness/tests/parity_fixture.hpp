// One model of fixtures/parity.hdf5, which fixtures/make_parity.py writes with PyTorch: "gpt", or "llama" with grouped-query
// attention.
#pragma once

#include "model_test_support.hpp"
#include "record/hdf5.hpp"

namespace scape {

class ParityFixture {
 public:
  explicit ParityFixture(const std::string& model) : group_(hdf5::File(PARITY_FIXTURE, hdf5::Mode::read).group(model)) {}

  /// A table's options, wherever the fixture has an attribute of that name.
  void set(OptionTable& table) const {
    for (const OptionTable::Option& option : std::vector(table.options())) {
      if (const auto value = group_.attribute(option.name)) table.set({option.name, to_string(*value), "fixture"});
    }
  }
  [[nodiscard]] ModelConfig config() const {
    ModelConfig config;
    OptionTable table;
    config.declare(table);
    set(table);
    return config;
  }
  /// A dataset; "grads/norm.scale" is one of a group.
  [[nodiscard]] Floats floats(const std::string& name) const {
    const std::vector<double> values = group_.dataset(name).read();
    return {values.begin(), values.end()};
  }
  [[nodiscard]] std::size_t members(const std::string& group) const { return group_.group(group).members().size(); }
  [[nodiscard]] double attribute(const std::string& name) const { return std::get<double>(*group_.attribute(name)); }

  /// All parameters, in the coordinates of parameter_layout(config()).
  [[nodiscard]] Floats params() const {
    const ParameterLayout layout = parameter_layout(config());
    Floats params(static_cast<std::size_t>(layout.size()));
    for (const ParameterTensor& tensor : layout.tensors()) {
      std::ranges::copy(floats("params/" + tensor.name), params.begin() + tensor.range.begin);
    }
    return params;
  }
  [[nodiscard]] Sample sample() const {
    const std::int64_t length = 11;
    const Floats inputs = floats("inputs");
    const Floats targets = floats("targets");
    Sample sample(config(), std::ssize(inputs) / length, length);
    sample.inputs.assign(inputs.begin(), inputs.end());
    sample.targets.assign(targets.begin(), targets.end());
    return sample;
  }

 private:
  hdf5::Group group_;
};

}  // namespace scape
