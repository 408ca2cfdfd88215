// SPDX-License-Identifier: Apache-2.0
#include "train/layer_inputs.hpp"

namespace poros {

LayerInputs::LayerInputs(const MemoryPlan& plan, const Arena& arena, const Stream& stream,
                         std::uint64_t bytes_a_layer)
    : stream_(stream), bytes_(bytes_a_layer), on_device_(plan.settings.inputs_on_device) {
  device_ = arena.at(on_device_ ? "layer_inputs" : "layer_inputs.ring");
  if (!on_device_) host_ = HostSlab(plan.find("layer_inputs").bytes, "the layers' inputs");
}

void* LayerInputs::write(std::int64_t layer) const {
  return device_ + static_cast<std::uint64_t>(on_device_ ? layer : layer % 2) * bytes_;
}

void LayerInputs::keep(std::int64_t layer) {
  if (on_device_) return;
  copy_bytes(stream_, host_.data() + static_cast<std::uint64_t>(layer) * bytes_, write(layer),
             bytes_);
}

const void* LayerInputs::read(std::int64_t layer) {
  if (!on_device_) {
    copy_bytes(stream_, write(layer), host_.data() + static_cast<std::uint64_t>(layer) * bytes_,
               bytes_);
  }
  return write(layer);
}

}  // namespace poros
