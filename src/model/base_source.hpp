// SPDX-License-Identifier: Apache-2.0
// Where the content of a base cache comes from: a checkpoint (16 or 32 bit, or bitsandbytes NF4),
// or seeded random values. A source gives the same bytes each time, on any number of threads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "model/architecture.hpp"
#include "model/base_store.hpp"
#include "model/config.hpp"
#include "model/precision.hpp"
#include "model/safetensors.hpp"

namespace poros {

enum class End { embedding, final_norm, head };

class BaseSource {
 public:
  virtual ~BaseSource() = default;
  [[nodiscard]] virtual const Architecture& architecture() const = 0;
  [[nodiscard]] virtual const Precision& precision() const = 0;
  /// As BaseStore::weights().
  [[nodiscard]] virtual std::string weights() const = 0;
  /// What its content depends on beside the precision: weights(), and for random ones the shape.
  [[nodiscard]] virtual std::string identity() const { return weights(); }
  /// Everything but nested_offset, which build_layer finds.
  [[nodiscard]] virtual LayerLayout layout(std::int64_t layer) const = 0;
  /// Fills a slab of layout.bytes, padding zeroed, and each nested_offset of `layout`.
  virtual void build_layer(std::int64_t layer, LayerLayout& layout, std::byte* slab) const = 0;
  /// Storage and size of an end; the head only where it is not the embedding.
  [[nodiscard]] virtual TensorPlace end_place(End end) const = 0;
  /// Elements [begin, begin + count) of an end, in its storage.
  virtual void build_end(End end, std::int64_t begin, std::int64_t count,
                         std::byte* into) const = 0;
};

/// A source from a checkpoint.
/// @param digest sha256 of the checkpoint (checkpoint_digest())
/// @throws Error(Fault::input) when a tensor is missing, left over, of another shape or dtype, or
/// (while building) holds NaN or infinity; when a quantised checkpoint is asked for in a precision
/// that is not its own.
[[nodiscard]] std::unique_ptr<BaseSource> checkpoint_source(
    const Architecture& architecture, const ModelConfig& config,
    std::shared_ptr<const Checkpoint> checkpoint, const Precision& precision,
    const std::string& digest, int threads);

/// Seeded random weights of the architecture's shape (models[].weights: synthetic): codes and
/// scales are drawn directly, so that no 16-bit checkpoint is needed. Scaled like an initialised
/// model: a linear's values have standard deviation about 0.02, norms are near 1 (gemma: near 0).
[[nodiscard]] std::unique_ptr<BaseSource> synthetic_source(const Architecture& architecture,
                                                           const Precision& precision,
                                                           std::uint64_t seed, int threads);

}  // namespace poros
