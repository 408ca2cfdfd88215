// SPDX-License-Identifier: Apache-2.0
// Where each layer's input of a sweep waits for the backward: on the device, or in host memory
// behind a ring of two device buffers. The place decides no bit.
#pragma once

#include <cstdint>

#include "train/arena.hpp"

namespace poros {

class LayerInputs {
 public:
  LayerInputs(const MemoryPlan& plan, const Arena& arena, const Stream& stream,
              std::uint64_t bytes_a_layer);

  /// Device buffer into which layer `layer`'s input is to be written.
  [[nodiscard]] void* write(std::int64_t layer) const;

  /// The input is written and will be wanted in the backward.
  void keep(std::int64_t layer);

  /// Device buffer that holds the kept input.
  [[nodiscard]] const void* read(std::int64_t layer);

  [[nodiscard]] std::uint64_t host_bytes() const { return host_.bytes(); }

 private:
  Stream stream_;
  std::uint64_t bytes_;
  std::byte* device_ = nullptr;  // all layers' inputs, or the ring
  bool on_device_;
  HostSlab host_;
};

}  // namespace poros
