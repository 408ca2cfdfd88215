// SPDX-License-Identifier: Apache-2.0
#include "model/base_store.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "kernels/nf4.hpp"

namespace poros {

std::size_t bytes_per_element(Storage storage) {
  if (storage == Storage::nf4) fail(Fault::run, "an nf4 value has no whole number of bytes");
  return storage == Storage::fp32 ? 4 : 2;
}

const TensorPlace& LayerLayout::find(const std::string& name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TensorPlace& place) { return place.name == name; });
  if (found == tensors.end()) fail(Fault::run, "the layer has no tensor \"{}\"", name);
  return *found;
}

std::span<const float> dynamic_map() {
  return nf4_dynamic_map();
}

}  // namespace poros
