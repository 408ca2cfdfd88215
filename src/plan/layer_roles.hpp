// SPDX-License-Identifier: Apache-2.0
// What each linear of a decoder layer does, from its place in LayerShape::linears; and the sizes of
// a model that plans are made of.
#pragma once

#include <cstdint>
#include <vector>

#include "model/adapter.hpp"
#include "model/architecture.hpp"

namespace poros {

/// Input sites: linears of one site read the same input, so their LoRA branches share its dropout
/// mask. The numbers key dropout and are part of the numerical plan.
enum class Site : int { attention_in = 0, attention_out = 1, mlp_in = 2, mlp_down = 3 };

struct LinearRole {
  Site site = Site::attention_in;
  std::int64_t expert = -1;  // -1: not an expert's
  int part = 0;              // q 0, k 1, v 2 (qkv 0); gate 0, up 1 (gate_up 0)
  bool router = false;
};

/// One role a linear, in the order of LayerShape::linears.
/// @throws Error(Fault::run) when the list has not the length that the shape implies.
[[nodiscard]] std::vector<LinearRole> linear_roles(const LayerShape& layer);

/// Largest sizes over all layers.
struct LayerExtents {
  std::int64_t query = 0;  // heads * head_dim
  std::int64_t key = 0;    // kv_heads * head_dim
  std::int64_t intermediate = 0;
  std::int64_t heads = 0, kv_heads = 0, group = 0, head_dim = 0;
  std::int64_t linear_elements = 0;
  std::int64_t linear_out = 0, linear_in = 0;
  std::int64_t experts = 0, experts_per_token = 0;  // 0: no layer has experts
  bool qk_norm = false;
};
[[nodiscard]] LayerExtents layer_extents(const Architecture& architecture);

/// Columns that a matrix gets behind its own so that rank more fit: x A^T stands behind x and
/// LoRA's B behind W, and one product takes both. A multiple of 16 keeps rows aligned to 32 bytes.
[[nodiscard]] constexpr std::int64_t lora_padding(std::int64_t rank) {
  return (rank + 15) / 16 * 16;
}

/// The LoRA branches of one input site of a layer (of one expert): their A matrices lie one after
/// the other, [rank, in] with the ranks added up.
struct LoraSiteGroup {
  std::int64_t layer = 0;
  Site site = Site::attention_in;
  std::int64_t expert = -1;
  std::int64_t rank = 0;  // sum over the places
  std::int64_t in = 0;
  std::vector<std::int64_t> places;  // indices into the list of places
};

/// Groups in the order of the flat buffers: by layer, then as their first linear stands in
/// LayerShape::linears. @throws Error(Fault::input) when a place names the router or no linear.
[[nodiscard]] std::vector<LoraSiteGroup> lora_site_groups(const Architecture& architecture,
                                                          const std::vector<LoraPlace>& places);

}  // namespace poros
