// bench_kernels: the kernels of the methods over sizes n and densities d, on every device. bytes_per_second counts what a
// kernel must read and write, each array once; compare it with `copy`, the speed of memory.
#include <memory>
#include <string>

#include "scape/density.hpp"
#include "scape/kernels.hpp"
#include "support.hpp"

namespace scape::bench {

namespace {

// What the kernels work on: vectors of n normal numbers and a mask of the k largest.
struct Problem {
  Problem(std::int64_t n, std::int64_t kept, Device device)
      : stream(stream_on(device)),
        k(kept),
        theta(n, device),
        g(n, device),
        m(n, device),
        v(n, device),
        e(n, device),
        packed(k, device),
        words(mask_words(n), device),
        offsets(mask_blocks(n), device),
        indices(k, device),
        records(quant_bytes(n, quant), device),
        sum(1, device),
        update(update_kernels(device)),
        sparse(sparse_kernels(device)),
        quantizer(quant_kernels(device)) {
    for (const Span<float> x : {theta.span(), g.span(), m.span(), e.span()}) copy(x, normal_values(n), stream);
    sparse.top_k(g, k, words, 0, stream);
    sparse.index_mask(words, offsets, stream);
    mask = {words, offsets, n, k};
    sparse.pack(g, mask, packed, stream);
    sparse.indices(mask, indices, stream);
    quantizer.quantize(g, quant, {}, records, {}, stream);
    stream.synchronize();
  }

  Stream stream;
  std::int64_t k;
  QuantFormat quant;
  AdamStep step{.learning_rate = 1e-4F, .weight_decay = 1e-4F};  // slow enough for θ to stay a normal number
  float divisor = 10;  // with β1 = 0.9 recover_gradient neither grows nor shrinks its input
  Buffer<float> theta, g, m, v, e, packed;
  Buffer<std::uint64_t> words;
  Buffer<std::int64_t> offsets;
  Buffer<std::uint32_t> indices;
  Buffer<std::uint8_t> records;
  Buffer<double> sum;
  MaskView mask;
  const UpdateKernels& update;
  const SparseKernels& sparse;
  const QuantKernels& quantizer;
};

struct Kernel {
  const char* name;
  bool sparse;                          // depends on the density
  double (*bytes)(double n, double k);  // read and written
  void (*run)(Problem& p, const Stream& stream);
};

constexpr double f32 = sizeof(float);
constexpr double bit = 1.0 / 8;
constexpr double code = 1 + f32 / 256;  // 8-bit code with its part of the block's scale

// clang-format off: a table
constexpr Kernel kernels[] = {
    {"copy", false, [](double n, double) { return 2 * f32 * n; },
     [](Problem& p, const Stream& s) { copy(p.theta.span(), p.g, s); }},
    {"sum_of_squares", false, [](double n, double) { return f32 * n; },
     [](Problem& p, const Stream& s) { p.update.sum_of_squares(p.g, p.sum, s); }},
    {"adamw", false, [](double n, double) { return 7 * f32 * n; },
     [](Problem& p, const Stream& s) { p.update.adamw(p.theta, p.m, p.v, p.g, p.step, s); }},
    {"adams", false, [](double n, double) { return 5 * f32 * n; },
     [](Problem& p, const Stream& s) { p.update.adams(p.theta, p.m, p.g, p.step, s); }},
    {"candidate", false, [](double n, double) { return 4 * f32 * n; },
     [](Problem& p, const Stream& s) { p.sparse.candidate(p.g, p.m, p.e, p.step.beta1, p.sum, s); }},
    {"quantize", false, [](double n, double) { return (f32 + code) * n; },
     [](Problem& p, const Stream& s) { p.quantizer.quantize(p.g, p.quant, {}, p.records, {}, s); }},
    {"dequantize", false, [](double n, double) { return (f32 + code) * n; },
     [](Problem& p, const Stream& s) { p.quantizer.dequantize(p.records, p.quant, p.v, s); }},
    {"top_k", true, [](double n, double) { return (f32 + bit) * n; },
     [](Problem& p, const Stream& s) { p.sparse.top_k(p.g, p.k, p.words, 0, s); }},
    {"index_mask", true, [](double n, double) { return bit * n; },
     [](Problem& p, const Stream& s) { p.sparse.index_mask(p.words, p.offsets, s); }},
    {"indices", true, [](double n, double k) { return bit * n + f32 * k; },
     [](Problem& p, const Stream& s) { p.sparse.indices(p.mask, p.indices, s); }},
    {"pack", true, [](double n, double k) { return bit * n + 2 * f32 * k; },
     [](Problem& p, const Stream& s) { p.sparse.pack(p.g, p.mask, p.packed, s); }},
    {"unpack", true, [](double n, double k) { return bit * n + 2 * f32 * k; },
     [](Problem& p, const Stream& s) { p.sparse.unpack(p.packed, p.mask, p.v, s); }},
    {"scatter_add", true, [](double, double k) { return 4 * f32 * k; },
     [](Problem& p, const Stream& s) { p.sparse.scatter_add(p.indices, p.packed, 1, p.v, s); }},
    {"recover_gradient", true, [](double n, double k) { return bit * n + 3 * f32 * k; },
     [](Problem& p, const Stream& s) {
       p.sparse.recover_gradient(p.packed, p.m, p.mask, p.divisor, -p.step.beta1, p.step.beta1, p.sum, s);
     }},
    {"apply", true, [](double n, double k) { return (5 * f32 + bit) * n + 2 * f32 * k; },
     [](Problem& p, const Stream& s) {
       p.sparse.apply({0, p.mask.size}, p.theta, p.m, p.e, p.g, p.packed, p.mask, p.step, s);
     }},
};
// clang-format on

void measure(benchmark::State& state, const Kernel& kernel, std::int64_t n, double density, Device device) {
  Problem problem(n, kept_count(density, n), device);
  for (auto _ : state) {
    kernel.run(problem, problem.stream);
    problem.stream.synchronize();
  }
  const auto items = static_cast<double>(n);
  using benchmark::Counter;
  state.counters["items_per_second"] = Counter(items, Counter::kIsIterationInvariantRate);
  state.counters["bytes_per_second"] =
      Counter(kernel.bytes(items, static_cast<double>(problem.k)), Counter::kIsIterationInvariantRate);
}

void declare(const std::vector<std::string>& arguments) {
  require_no_arguments(arguments);
  for (const Device device : devices()) {
    const std::string kind = device.kind == DeviceKind::cpu ? "cpu/" : "cuda/";
    for (const Kernel& kernel : kernels) {
      for (const int exponent : {14, 18, 22, 24}) {
        const std::int64_t n = std::int64_t{1} << exponent;
        const std::string name = kind + kernel.name + "/n:" + std::to_string(n);
        const auto add = [&](const std::string& full_name, double density) {
          benchmark::RegisterBenchmark(full_name.c_str(), [=, &kernel](benchmark::State& state) {
            measure(state, kernel, n, density, device);
          })->UseRealTime();
        };
        if (kernel.sparse) {
          add(name + "/d:0.1", 0.1);
          add(name + "/d:0.01", 0.01);
        } else {
          add(name, 0.01);
        }
      }
    }
  }
}

}  // namespace

}  // namespace scape::bench

int main(int argc, char** argv) {
  return scape::bench::run(argc, argv, scape::bench::declare);
}
