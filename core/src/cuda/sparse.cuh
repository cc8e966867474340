// Device code of SparseKernels (contracts and formulas in scape/kernels.hpp): SCAPE's own steps here, top-k and masks beside it.
#pragma once

#include <cstdint>

#include "cuda/mask.cuh"
#include "cuda/top_k.cuh"
#include "cuda/update.cuh"

namespace scape::cuda {

// 16 bytes per value, and what its memory sector has of x.
struct ScatterAdd {
  const std::uint32_t* indices;
  const float* values;
  std::int64_t n;
  float divisor;
  float* x;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    for (std::int64_t i = global_index(t); i < n; i += global_threads(t)) x[indices[i]] += values[i] / divisor;
  }
};

// 16 bytes per element, 12 without m.
struct Candidate {
  float* g;
  const float* m;  // null: all 0
  const float* e;
  std::int64_t n;
  float beta1;
  Scratch* scratch;
  double* sum;

  using Shared = BlockShared<double>;
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared& shared) const {
    double mine = 0;
    const auto store_c = [&](float& g_j, float c) {
      mine += static_cast<double>(c) * static_cast<double>(c);
      g_j = c;
    };
    if (m == nullptr) {
      elementwise(
          t, n, 0, [&](float& g_j, float e_j) { store_c(g_j, (1 - beta1) * g_j + e_j); }, g, e);
    } else {
      elementwise(
          t, n, 0, [&](float& g_j, float m_j, float e_j) { store_c(g_j, beta1 * m_j + (1 - beta1) * g_j + e_j); }, g, m, e);
    }
    grid_sum(t, shared, mine, scratch->sums, &scratch->ticket, sum);
  }
};

// The mask, and for each set bit 8 bytes packed and a memory sector of x.
struct RecoverGradient {
  float* packed;
  const float* x;
  Mask mask;
  float divisor;
  float factor;
  float beta1;
  Scratch* scratch;
  double* sum;

  using Shared = BlockShared<double>;
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared& shared) const {
    double mine = 0;
    for_each_set(t, mask, [&](std::int64_t j, std::int64_t place) {
      const float g = (packed[place] / divisor + factor * x[j]) / (1 - beta1);
      packed[place] = g;
      mine += static_cast<double>(g) * static_cast<double>(g);
    });
    grid_sum(t, shared, mine, scratch->sums, &scratch->ticket, sum);
  }
};

// 20 bytes per element, and for each set bit 4 bytes packed and a memory sector of m; ages take 4 bytes more. A thread takes
// coordinates 4q … 4q + 3, which lie in one mask word.
struct Apply {
  Range range;
  float* theta;
  float* m;
  float* e;
  const float* c;  // these four from coordinate range.begin on
  const float* packed;
  Mask mask;
  AdamStep step;
  std::uint16_t* ages;   // null: none
  const float* block_v;  // null: AdamS's v
  ApplyExtension extension;

  struct Shared {};
  template <class Thread>
  __device__ void operator()(const Thread& t, Shared&) const {
    const float keep = 1 - step.learning_rate * step.weight_decay;
    const std::int64_t lead = range.begin % quad_size;
    const bool wide = misalignment(theta) == lead && misalignment(m) == lead && misalignment(e) == lead && misalignment(c) == lead;
    const std::int64_t begin = range.begin - lead;
    for (std::int64_t first = begin + global_index(t) * quad_size; first < range.end; first += global_threads(t) * quad_size) {
      const std::int64_t w = first / MaskView::word_bits;
      const auto shift = static_cast<int>(first % MaskView::word_bits);
      const std::uint64_t word = mask.words[w];
      const auto bits = static_cast<unsigned>(word >> shift) & 15U;
      std::int64_t place = bits == 0 ? 0 : bits_before(t, mask, w) + t.popcount(word & ~(all_bits << shift));
      const auto update = [&](std::int64_t j, unsigned on, float& theta_j, float& m_j, float& e_j, float c_j) {
        const std::uint16_t age = ages == nullptr ? 1 : ages[j];
        if (on != 0) {
          move(j, theta_j, m_j, step.gradient_scale * packed[place], keep, age);
          e_j = 0;
        } else {
          theta_j *= keep;
          m_j = 0;
          e_j = step.residual_scale * c_j;
        }
        if (ages != nullptr) ages[j] = static_cast<std::uint16_t>(on != 0 ? 1 : age == 0xffff ? age : age + 1);
      };
      if (wide && first >= range.begin && first + quad_size <= range.end) {
        const std::int64_t at = first - range.begin;
        Quad theta_q = load(theta + at);
        Quad m_q = bits == 0 ? Quad{} : load(m + at);
        Quad e_q;
        const Quad c_q = load(c + at);
        for (int i = 0; i < quad_size; ++i) {
          update(first + i, bits >> i & 1U, theta_q.at[i], m_q.at[i], e_q.at[i], c_q.at[i]);
          place += bits >> i & 1U;
        }
        store(theta + at, theta_q);
        store(m + at, m_q);
        store(e + at, e_q);
      } else {
        for (int i = 0; i < quad_size; ++i) {
          const std::int64_t j = first + i;
          const std::int64_t at = j - range.begin;
          if (0 <= at && j < range.end) update(j, bits >> i & 1U, theta[at], m[at], e[at], c[at]);
          place += bits >> i & 1U;
        }
      }
    }
  }
  __device__ void move(std::int64_t j, float& theta_j, float& m_j, float g, float keep, std::uint16_t age) const {
    if (block_v != nullptr) {
      adams_with_v(theta_j, m_j, g, block_v[(j - extension.block_begin) / extension.block_size], step, keep);
    } else if (ages != nullptr) {
      const float steps = age < extension.backlog_cap ? age : extension.backlog_cap;
      adams_backlog(theta_j, m_j, g, step, keep, steps, extension.backlog_root ? std::sqrt(steps) : steps);
    } else {
      adams_coordinate(theta_j, m_j, g, step, keep);
    }
  }
};

template <class Launcher>
class DeviceSparseKernels final : public SparseKernels {
 public:
  void top_k(Span<const float> x, std::int64_t k, Span<std::uint64_t> words, std::int64_t first,
             const Stream& stream) const override {
    require(k >= 0 && k <= x.size(), ErrorKind::internal, "top_k: k outside 0 … n");
    require(first >= 0 && first + x.size() <= words.size() * MaskView::word_bits, ErrorKind::internal,
            "top_k: the mask is too small");
    if (k == x.size()) return set_range(words, {first, first + k}, stream);
    if (k > 0) cuda::top_k<Launcher>(x.data(), x.size(), k, words.data(), first, stream);
  }
  void set_range(Span<std::uint64_t> words, Range range, const Stream& stream) const override {
    require(range.begin >= 0 && range.end <= words.size() * MaskView::word_bits, ErrorKind::internal,
            "set_range: the mask is too small");
    if (range.empty()) return;
    Launcher::launch(SetRange{words.data(), range},
                     pieces(mask_words(range.end) - range.begin / MaskView::word_bits, block_threads), stream);
  }
  void unite(Span<std::uint64_t> words, Span<const std::uint64_t> other, const Stream& stream) const override {
    require(words.size() == other.size(), ErrorKind::internal, "unite: masks differ in size");
    Launcher::launch(Unite{words.data(), other.data(), words.size()}, pieces(words.size(), block_threads), stream);
  }
  void index_mask(Span<const std::uint64_t> words, Span<std::int64_t> offsets, const Stream& stream) const override {
    require(offsets.size() == pieces(words.size(), MaskView::block_words), ErrorKind::internal,
            "index_mask: the index has another size than the mask");
    if (!words.empty()) cuda::index_mask<Launcher>(words.data(), words.size(), offsets.data(), stream);
  }
  void count_common(Span<const std::uint64_t> a, Span<const std::uint64_t> b, Span<std::int64_t> result,
                    const Stream& stream) const override {
    require(a.size() == b.size(), ErrorKind::internal, "count_common: masks differ in size");
    Launcher::launch_joint(CountCommon{a.data(), b.data(), a.size(), Launcher::scratch(stream), result.data()},
                           pieces(a.size(), block_threads), stream);
  }

  using SparseKernels::pack;
  void pack(Range range, Span<const float> x, const MaskView& mask, Span<float> packed, const Stream& stream) const override {
    mask.check(range, x.size(), packed.size());
    if (range.empty()) return;
    Launcher::launch(Pack{range, x.data(), device_mask(mask), packed.data()}, word_blocks(range), stream);
  }
  using SparseKernels::unpack;
  void unpack(Range range, Span<const float> packed, const MaskView& mask, Span<float> x, const Stream& stream) const override {
    mask.check(range, x.size(), packed.empty() ? mask.count : packed.size());
    if (range.empty()) return;
    const float* from = packed.empty() ? nullptr : packed.data();
    Launcher::launch(Unpack{range, from, device_mask(mask), x.data()}, word_blocks(range), stream);
  }
  void indices(const MaskView& mask, Span<std::uint32_t> indices, const Stream& stream) const override {
    mask.check(indices.size());
    require(mask.size <= std::int64_t{1} << 32, ErrorKind::internal, "indices: a coordinate does not fit 32 bits");
    Launcher::launch(Indices{device_mask(mask), indices.data()}, word_blocks({0, mask.size}), stream);
  }
  void scatter_add(Span<const std::uint32_t> indices, Span<const float> values, float divisor, Span<float> x,
                   const Stream& stream) const override {
    require(indices.size() == values.size(), ErrorKind::internal, "scatter_add: spans differ in size");
    Launcher::launch(ScatterAdd{indices.data(), values.data(), values.size(), divisor, x.data()},
                     pieces(values.size(), block_threads), stream);
  }

  void candidate(Span<float> g, Span<const float> m, Span<const float> e, float beta1, Span<double> sum,
                 const Stream& stream) const override {
    const std::int64_t n = g.size();
    require((m.empty() || m.size() == n) && e.size() == n, ErrorKind::internal, "candidate: spans differ in size");
    const float* pm = m.empty() ? nullptr : m.data();
    Launcher::launch_joint(Candidate{g.data(), pm, e.data(), n, beta1, Launcher::scratch(stream), sum.data()}, element_blocks(n),
                           stream);
  }
  void recover_gradient(Span<float> packed, Span<const float> x, const MaskView& mask, float divisor, float factor, float beta1,
                        Span<double> sum, const Stream& stream) const override {
    const Range all{0, mask.size};
    mask.check(all, x.size(), packed.size());
    Launcher::launch_joint(
        RecoverGradient{packed.data(), x.data(), device_mask(mask), divisor, factor, beta1, Launcher::scratch(stream), sum.data()},
        word_blocks(all), stream);
  }
  using SparseKernels::apply;
  void apply(Range range, Span<float> theta, Span<float> m, Span<float> e, Span<const float> c, Span<const float> packed,
             const MaskView& mask, const AdamStep& step, const ApplyExtension& extension, const Stream& stream) const override {
    mask.check(range, theta.size(), packed.size());
    require(m.size() == theta.size() && e.size() == theta.size() && c.size() == theta.size(), ErrorKind::internal,
            "apply: spans differ in size");
    extension.check(range, mask.size);
    if (range.empty()) return;
    Launcher::launch(Apply{range, theta.data(), m.data(), e.data(), c.data(), packed.data(), device_mask(mask), step,
                           extension.ages.data(), extension.block_v.data(), extension},
                     element_blocks(range.size()), stream);
  }

 private:
  // Blocks of threads with a thread for each mask word of a range.
  static std::int64_t word_blocks(Range range) {
    return pieces(mask_words(range.end) - range.begin / MaskView::word_bits, block_threads);
  }
};

}  // namespace scape::cuda
