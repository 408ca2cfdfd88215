// SPDX-License-Identifier: Apache-2.0
// The frozen base as the trainer reads it: one 256-byte-aligned slab a decoder layer, and the ends
// (embedding, final norm, head). Backed by the content-addressed NF4 cache (model/nf4_cache.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/architecture.hpp"

namespace poros {

enum class Storage { nf4, bf16, fp16, fp32 };

[[nodiscard]] std::size_t bytes_per_element(Storage storage);  // not for nf4

/// Where a tensor lies in a layer's slab. All offsets are multiples of 256 bytes.
struct TensorPlace {
  std::string name;  // below the layer prefix: "self_attn.q_proj.weight", "...q_proj.bias"
  Storage storage = Storage::bf16;
  std::int64_t rows = 0, cols = 0;  // a vector has rows 1
  std::uint64_t offset = 0;         // codes (nf4, high nibble first) or values
  // nf4 only. Block 64, flat row-major, blocks may cross rows.
  std::uint64_t absmax_offset = 0;         // u8 with double quantisation, else f32
  std::uint64_t nested_absmax_offset = 0;  // f32, one for 256 blocks; double quantisation only
  bool double_quantised = true;
  float nested_offset = 0;  // added to the decoded absmax
};

/// Layout of one layer's slab. Layers of one shape share offsets; nested_offset differs by layer.
struct LayerLayout {
  std::uint64_t bytes = 0;
  std::vector<TensorPlace> tensors;  // linears' weights and biases, then norms
  /// @throws Error(Fault::run) when the layer has no such tensor.
  [[nodiscard]] const TensorPlace& find(const std::string& name) const;
};

/// A tensor of the ends, in host memory.
struct EndTensor {
  Storage storage = Storage::bf16;
  std::int64_t rows = 0, cols = 0;
  const std::byte* data = nullptr;
};

class BaseStore {
 public:
  virtual ~BaseStore() = default;
  [[nodiscard]] virtual const Architecture& architecture() const = 0;
  /// "pretrained@<sha256 of the checkpoint>" or "random(<seed>)".
  [[nodiscard]] virtual std::string weights() const = 0;
  [[nodiscard]] virtual const LayerLayout& layout(std::int64_t layer) const = 0;
  /// Reads a layer's slab (layout(layer).bytes) into `slab` by pread.
  virtual void read_layer(std::int64_t layer, std::byte* slab) const = 0;
  [[nodiscard]] virtual EndTensor embedding() const = 0;   // [vocab, hidden]
  [[nodiscard]] virtual EndTensor final_norm() const = 0;  // [1, hidden]
  [[nodiscard]] virtual EndTensor head() const = 0;        // [vocab, hidden]; embedding when tied
  /// Bytes of the base by storage: "nf4", "bf16", "fp32", ...
  [[nodiscard]] virtual std::map<std::string, double> bytes_by_storage() const = 0;
};

/// Signed dynamic 8-bit map of bitsandbytes (double-quantised absmax), 256 entries, ascending.
[[nodiscard]] std::span<const float> dynamic_map();

}  // namespace poros
