// SPDX-License-Identifier: Apache-2.0
#include "train/layer_inputs.hpp"

#include "base/error.hpp"

namespace poros {

LayerInputs::LayerInputs(const MemoryPlan& plan, const Arena& arena, const Stream& stream,
                         std::uint64_t bytes_a_layer)
    : stream_(stream),
      side_(stream),
      bytes_(bytes_a_layer),
      on_device_(plan.settings.inputs_on_device),
      computed_(stream),
      copied_{Event(stream), Event(stream)} {
  device_ = arena.at(on_device_ ? "layer_inputs" : "layer_inputs.ring");
  if (on_device_) return;
  host_ = HostSlab(plan.find("layer_inputs").bytes, "the layers' inputs");
  pin_ = PinnedRange(host_.data(), host_.bytes(), stream);
}

LayerInputs::~LayerInputs() {
  // The host memory must outlast the copies.
  try {
    synchronise(side_.stream());
  } catch (const Error&) {  // the device is lost; the process is about to say so
  }
}

void* LayerInputs::write(std::int64_t layer) const {
  return device_ + static_cast<std::uint64_t>(on_device_ ? layer : layer % 2) * bytes_;
}

void LayerInputs::keep(std::int64_t layer) {
  if (on_device_) return;
  computed_.record(stream_);
  computed_.hold(side_.stream());
  copy_pinned(side_.stream(), host_.data() + host_offset(layer), write(layer), bytes_,
              host_offset(layer));
  copied_[layer % 2].record(side_.stream());
  ring_[layer % 2] = layer;
  // This layer ends by writing the next one's input over the one before.
  copied_[(layer + 1) % 2].hold(stream_);
}

void LayerInputs::fetch(std::int64_t layer) {
  // The layer above, which read this ring buffer, is queued.
  computed_.record(stream_);
  computed_.hold(side_.stream());
  copy_pinned(side_.stream(), write(layer), host_.data() + host_offset(layer), bytes_,
              host_offset(layer));
  copied_[layer % 2].record(side_.stream());
  ring_[layer % 2] = layer;
}

const void* LayerInputs::read(std::int64_t layer) {
  if (on_device_) return write(layer);
  if (ring_[layer % 2] != layer) fetch(layer);
  copied_[layer % 2].hold(stream_);
  if (layer > 0 && ring_[(layer - 1) % 2] != layer - 1) fetch(layer - 1);
  return write(layer);
}

}  // namespace poros
