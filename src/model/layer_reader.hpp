// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/nf4.hpp"
#include "model/aligned_bytes.hpp"
#include "model/base_store.hpp"

namespace poros {

/// Keeps the layer of a base that was read last: those who write tensor by tensor ask for
/// neighbours of one layer.
class LayerReader {
 public:
  explicit LayerReader(const BaseStore& base) : base_(base) {}
  const std::byte* slab(std::int64_t layer) {
    if (layer != layer_) {
      layer_ = -1;
      slab_.resize(base_.layout(layer).bytes);
      base_.read_layer(layer, slab_.data());
      layer_ = layer;
    }
    return slab_.data();
  }

 private:
  const BaseStore& base_;
  AlignedBytes slab_;
  std::int64_t layer_ = -1;
};

/// A tensor of storage nf4 where it lies in its layer's slab.
[[nodiscard]] inline Nf4View nf4_view(const TensorPlace& place, const std::byte* slab) {
  Nf4View view;
  view.codes = reinterpret_cast<const std::uint8_t*>(slab + place.offset);
  if (place.double_quantised) {
    view.q = reinterpret_cast<const std::uint8_t*>(slab + place.absmax_offset);
    view.nested_absmax = reinterpret_cast<const float*>(slab + place.nested_absmax_offset);
    view.offset = place.nested_offset;
  } else {
    view.absmax = reinterpret_cast<const float*>(slab + place.absmax_offset);
  }
  return view;
}

}  // namespace poros
