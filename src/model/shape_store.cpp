// SPDX-License-Identifier: Apache-2.0
#include "model/shape_store.hpp"

#include "base/error.hpp"

namespace poros {
namespace {

class ShapeStore : public BaseStore {
 public:
  ShapeStore(const Architecture& architecture, const Precision& precision)
      : architecture_(architecture) {
    for (std::int64_t layer = 0; layer < architecture.layer_count(); ++layer) {
      layouts_.push_back(lay_out(layer_tensors(architecture, layer, precision, Storage::bf16)));
    }
  }

  const Architecture& architecture() const override { return architecture_; }
  std::string weights() const override { return "shapes"; }
  const LayerLayout& layout(std::int64_t layer) const override {
    return layouts_.at(static_cast<std::size_t>(layer));
  }
  void read_layer(std::int64_t, std::byte*) const override {
    fail(Fault::run, "a base of which only shapes are known has no bytes");
  }
  EndTensor embedding() const override { return end(architecture_.vocab); }
  EndTensor final_norm() const override { return end(1); }
  EndTensor head() const override { return end(architecture_.vocab); }
  std::map<std::string, double> bytes_by_storage() const override {
    std::map<std::string, double> bytes;
    for (const LayerLayout& layout : layouts_) {
      for (const TensorPlace& place : layout.tensors) {
        bytes[name_of(place.storage)] += static_cast<double>(stored_bytes(place));
      }
    }
    const double ends =
        static_cast<double>(architecture_.hidden) *
        static_cast<double>(architecture_.vocab * (architecture_.tied_embeddings ? 1 : 2) + 1);
    bytes["bf16"] += 2 * ends;
    return bytes;
  }

 private:
  [[nodiscard]] EndTensor end(std::int64_t rows) const {
    return {Storage::bf16, rows, architecture_.hidden, nullptr};
  }

  Architecture architecture_;
  std::vector<LayerLayout> layouts_;
};

}  // namespace

std::unique_ptr<BaseStore> shape_store(const Architecture& architecture,
                                       const Precision& precision) {
  return std::make_unique<ShapeStore>(architecture, precision);
}

}  // namespace poros
