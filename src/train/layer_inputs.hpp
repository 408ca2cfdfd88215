// SPDX-License-Identifier: Apache-2.0
// Where each layer's input of a sweep waits for the backward: on the device, or in host memory
// behind a ring of two device buffers. On a GPU the copies run on a stream of their own: out while
// the layer computes, back while the layer above does. The place decides no bit.
#pragma once

#include <cstdint>

#include "train/arena.hpp"

namespace poros {

class LayerInputs {
 public:
  LayerInputs(const MemoryPlan& plan, const Arena& arena, const Stream& stream,
              std::uint64_t bytes_a_layer);
  ~LayerInputs();
  LayerInputs(const LayerInputs&) = delete;
  LayerInputs& operator=(const LayerInputs&) = delete;

  /// Device buffer into which layer `layer`'s input is to be written.
  [[nodiscard]] void* write(std::int64_t layer) const;

  /// The input is written and will be wanted in the backward.
  void keep(std::int64_t layer);

  /// Device buffer that holds the kept input; layers are asked for from the last to the first.
  [[nodiscard]] const void* read(std::int64_t layer);

  [[nodiscard]] std::uint64_t host_bytes() const { return host_.bytes(); }

 private:
  [[nodiscard]] std::uint64_t host_offset(std::int64_t layer) const {
    return static_cast<std::uint64_t>(layer) * bytes_;
  }
  /// Queues the copy of a layer's input back into its ring buffer.
  void fetch(std::int64_t layer);

  Stream stream_;
  SideStream side_;
  std::uint64_t bytes_;
  std::byte* device_ = nullptr;  // all layers' inputs, or the ring
  bool on_device_;
  HostSlab host_;
  PinnedRange pin_;
  std::int64_t ring_[2] = {-1, -1};  // layer whose input each ring buffer holds
  Event computed_;                   // the compute stream got so far
  Event copied_[2];                  // the last copy from or to each ring buffer
};

}  // namespace poros
