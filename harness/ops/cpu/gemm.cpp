// oneDNN matmul. Making a primitive costs far more than running a small one, so each thread keeps those it has made, by
// shape, strides, kind and number of OpenMP threads; a thread of its own also means that the memory objects inside can be
// re-pointed without a lock.
#include "ops/cpu/gemm.hpp"

#include <omp.h>

#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <type_traits>
#include <unordered_map>

namespace scape::ops {

namespace {

constexpr std::size_t most_kept = 1024;

const dnnl::engine& engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// oneDNN 2 describes an operation before the primitive descriptor, oneDNN 3 does not; whichever is installed compiles.
template <class Matmul = dnnl::matmul>
auto describe(const dnnl::memory::desc& a, const dnnl::memory::desc& b, const dnnl::memory::desc& bias, const dnnl::memory::desc& c,
              const dnnl::primitive_attr& attributes) {
  using Descriptor = typename Matmul::primitive_desc;
  if constexpr (requires { typename Matmul::desc; }) {
    return Descriptor(typename Matmul::desc(a, b, bias, c), attributes, engine());
  } else {
    return Descriptor(engine(), a, b, bias, c, attributes);
  }
}

template <class T>
constexpr auto data_type = dnnl::memory::data_type::f32;
template <>
constexpr auto data_type<Bf16> = dnnl::memory::data_type::bf16;

template <class T>
class Product {
 public:
  Product(const Strided<float>& c, const Strided<const T>& a, const Strided<const T>& b, const float* bias, const GemmShape& s,
          bool add)
      : stream_(engine()) {
    const auto matrix = [&]<class U>(std::int64_t rows, std::int64_t columns, const Strided<U>& x) {
      using Dims = dnnl::memory::dims;
      constexpr auto type = data_type<std::remove_const_t<U>>;
      return s.batch == 1 ? dnnl::memory::desc(Dims{rows, columns}, type, Dims{x.row, x.column})
                          : dnnl::memory::desc(Dims{s.batch, rows, columns}, type, Dims{x.batch, x.row, x.column});
    };
    const auto a_layout = matrix(s.m, s.k, a);
    const auto b_layout = matrix(s.k, s.n, b);
    const auto c_layout = matrix(s.m, s.n, c);
    const auto bias_layout = bias == nullptr ? dnnl::memory::desc() : matrix(1, s.n, Strided<const float>{bias, s.n, 1, s.n});
    dnnl::post_ops after;
    if (add) after.append_sum(1.0F);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(after);
    primitive_ = dnnl::matmul(describe(a_layout, b_layout, bias_layout, c_layout, attributes));
    arguments_.emplace(DNNL_ARG_SRC, dnnl::memory(a_layout, engine(), nullptr));
    arguments_.emplace(DNNL_ARG_WEIGHTS, dnnl::memory(b_layout, engine(), nullptr));
    arguments_.emplace(DNNL_ARG_DST, dnnl::memory(c_layout, engine(), nullptr));
    if (bias != nullptr) arguments_.emplace(DNNL_ARG_BIAS, dnnl::memory(bias_layout, engine(), nullptr));
  }

  void run(float* c, const T* a, const T* b, const float* bias) {
    arguments_.at(DNNL_ARG_SRC).set_data_handle(const_cast<T*>(a));
    arguments_.at(DNNL_ARG_WEIGHTS).set_data_handle(const_cast<T*>(b));
    arguments_.at(DNNL_ARG_DST).set_data_handle(c);
    if (bias != nullptr) arguments_.at(DNNL_ARG_BIAS).set_data_handle(const_cast<float*>(bias));
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

}  // namespace

template <class T>
void gemm(Strided<float> c, Strided<const T> a, Strided<const T> b, const float* bias, GemmShape s, bool add) {
  if (s.batch == 1) a.batch = b.batch = c.batch = 0;
  using Key = std::array<std::int64_t, 16>;
  const Key key{s.m,      s.n,     s.k,   s.batch,  a.row,   a.column,        a.batch, b.row,
                b.column, b.batch, c.row, c.column, c.batch, bias != nullptr, add,     omp_get_max_threads()};
  thread_local std::map<Key, Product<T>> products;
  auto found = products.find(key);
  if (found == products.end()) {
    if (products.size() == most_kept) products.clear();
    found = products.try_emplace(key, c, a, b, bias, s, add).first;
  }
  found->second.run(c.data, a.data, b.data, bias);
}

template <class T>
bool gemm_is_available() {
  constexpr std::int64_t n = 64;
  try {
    const Product<T> product({nullptr, n, 1}, {nullptr, n, 1}, {nullptr, n, 1}, nullptr, {n, n, n}, true);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

template void gemm(Strided<float>, Strided<const float>, Strided<const float>, const float*, GemmShape, bool);
template void gemm(Strided<float>, Strided<const Bf16>, Strided<const Bf16>, const float*, GemmShape, bool);
template bool gemm_is_available<float>();
template bool gemm_is_available<Bf16>();

}  // namespace scape::ops
