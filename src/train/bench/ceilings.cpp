// SPDX-License-Identifier: Apache-2.0
#include "ceilings.hpp"

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "plan/layer_roles.hpp"
#include "train/arena.hpp"
#include "train/device.hpp"
#include "train/gemm.hpp"

namespace poros::bench {
namespace {

/// Random bits that are finite bf16 numbers around 1: their high byte is 0x3F or 0xBF.
void fill_random(const Stream& stream, const DeviceBuffer& buffer, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<std::uint32_t> words(buffer.bytes() / 4);
  for (std::uint32_t& word : words) {
    word = (static_cast<std::uint32_t>(generator()) & 0x80FF80FFU) | 0x3F003F00U;
  }
  copy_bytes(stream, buffer.data(), words.data(), buffer.bytes());
  synchronise(stream);
}

/// Seconds a call of `work`, over as many calls as fill about `seconds`.
double time_of(const Stream& stream, double seconds, const std::function<void()>& work) {
  const Event begin(stream, true), end(stream, true);
  const auto round = [&](int calls) {
    begin.record(stream);
    for (int call = 0; call < calls; ++call) work();
    end.record(stream);
    end.wait_on_host();
    return end.since_s(begin) / calls;
  };
  (void)round(2);
  const double once = round(5);
  return round(static_cast<int>(std::clamp(seconds / once, 5.0, 20000.0)));
}

/// Out and in of the layer's products: linears with one input are one product. Those of an expert
/// are made `times` times, on the mean number of rows.
struct Product {
  std::int64_t out = 0, in = 0, rows = 0;
  std::int64_t times = 1;
  bool again = true;  // the backward makes it a second time
};

std::vector<Product> products_of(const LayerShape& layer, std::int64_t rows) {
  std::vector<Product> products(4);
  const std::vector<LinearRole> roles = linear_roles(layer);
  for (std::size_t i = 0; i < roles.size(); ++i) {
    if (roles[i].router || roles[i].expert > 0) continue;
    Product& product = products[static_cast<std::size_t>(roles[i].site)];
    product.out += layer.linears[i].out;
    product.in = layer.linears[i].in;
    product.rows = rows;
    product.again = roles[i].site != Site::mlp_down;
    if (roles[i].expert == 0) {
      product.times = layer.mlp.experts;
      product.rows = std::max<std::int64_t>(1, rows * layer.mlp.experts_per_token / product.times);
      product.again = true;
    }
  }
  return products;
}

}  // namespace

double measure_products(const Stream& stream, const Architecture& architecture, std::int64_t rows,
                        double seconds) {
  const std::vector<Product> products = products_of(architecture.layers.front(), rows);
  std::int64_t widest = 0, weight = 0;
  double operations = 0;
  for (const Product& product : products) {
    widest = std::max({widest, product.in, product.out});
    weight += product.in * product.out;
    operations += 2.0 *
                  static_cast<double>(product.rows * product.in * product.out * product.times) *
                  (product.again ? 3 : 2);
  }
  const auto bytes = [](std::int64_t elements) { return static_cast<std::uint64_t>(2 * elements); };
  const DeviceBuffer weights(bytes(weight), stream), x(bytes(rows * widest), stream),
      y(bytes(rows * widest), stream);
  const DeviceBuffer workspace(std::uint64_t{32} << 20, stream);
  fill_random(stream, weights, 1);
  fill_random(stream, x, 2);
  const auto engine = cuda_device().make_gemm(stream, workspace.data(), workspace.bytes());
  const auto multiply = [&](const std::byte* w, const Product& product, bool forward) {
    engine->multiply(
        {.a = {.data = x.data(),
               .dtype = DType::bf16,
               .stride = forward ? product.in : product.out},
         .b = {.data = w, .dtype = DType::bf16, .stride = product.in, .transposed = forward},
         .c = y.data(),
         .c_dtype = DType::bf16,
         .c_stride = forward ? product.out : product.in,
         .m = product.rows,
         .n = forward ? product.out : product.in,
         .k = forward ? product.in : product.out});
  };
  const double once = time_of(stream, seconds, [&] {
    const std::byte* w = weights.data();
    for (const Product& product : products) {
      for (std::int64_t time = 0; time < product.times; ++time) {
        multiply(w, product, true);
        if (product.again) multiply(w, product, true);
        multiply(w, product, false);
      }
      w += bytes(product.in * product.out);
    }
  });
  return 1e-12 * operations / once;
}

void measure_copies(const Stream& stream, Ceilings& ceilings) {
  const std::uint64_t big = std::uint64_t{2} << 30;
  const DeviceBuffer from(big, stream), to(big, stream);
  const double copy =
      time_of(stream, 0.1, [&] { copy_bytes(stream, to.data(), from.data(), big); });
  ceilings.device_gb_per_s = 2e-9 * static_cast<double>(big) / copy;

  const std::uint64_t part = std::uint64_t{512} << 20;
  const HostSlab host(part, "the copy ceiling");
  fill_bytes(Stream{}, host.data(), 1, part);
  const PinnedRange pin(host.data(), part, stream);
  const double link =
      time_of(stream, 0.1, [&] { copy_bytes(stream, to.data(), host.data(), part); });
  ceilings.host_link_gb_per_s = 1e-9 * static_cast<double>(part) / link;
}

}  // namespace poros::bench
