// SPDX-License-Identifier: Apache-2.0
#include "plan/layer_roles.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.hpp"

namespace poros {

std::vector<LinearRole> linear_roles(const LayerShape& layer) {
  std::vector<LinearRole> roles;
  if (layer.attention.fused_qkv) {
    roles.push_back({Site::attention_in, -1, 0, false});
  } else {
    for (int part = 0; part < 3; ++part) roles.push_back({Site::attention_in, -1, part, false});
  }
  roles.push_back({Site::attention_out, -1, 0, false});
  const auto add_mlp = [&](std::int64_t expert) {
    roles.push_back({Site::mlp_in, expert, 0, false});
    if (!layer.mlp.fused_gate_up) roles.push_back({Site::mlp_in, expert, 1, false});
    roles.push_back({Site::mlp_down, expert, 0, false});
  };
  if (layer.mlp.experts == 0) {
    add_mlp(-1);
  } else {
    roles.push_back({Site::mlp_in, -1, 0, true});
    for (std::int64_t expert = 0; expert < layer.mlp.experts; ++expert) add_mlp(expert);
  }
  if (roles.size() != layer.linears.size()) {
    fail(Fault::run, "a decoder layer lists {} linears where its shape implies {}",
         layer.linears.size(), roles.size());
  }
  return roles;
}

LayerExtents layer_extents(const Architecture& architecture) {
  LayerExtents extents;
  const auto grow = [](std::int64_t& value, std::int64_t by) { value = std::max(value, by); };
  for (const LayerShape& layer : architecture.layers) {
    const AttentionShape& attention = layer.attention;
    grow(extents.query, attention.heads * attention.head_dim);
    grow(extents.key, attention.kv_heads * attention.head_dim);
    grow(extents.heads, attention.heads);
    grow(extents.kv_heads, attention.kv_heads);
    grow(extents.group, attention.heads / attention.kv_heads);
    grow(extents.head_dim, attention.head_dim);
    grow(extents.intermediate, layer.mlp.intermediate);
    grow(extents.experts, layer.mlp.experts);
    grow(extents.experts_per_token, layer.mlp.experts > 0 ? layer.mlp.experts_per_token : 0);
    extents.qk_norm = extents.qk_norm || attention.qk_norm;
    for (const LinearShape& linear : layer.linears) {
      grow(extents.linear_elements, linear.out * linear.in);
      grow(extents.linear_out, linear.out);
      grow(extents.linear_in, linear.in);
    }
  }
  return extents;
}

std::vector<LoraSiteGroup> lora_site_groups(const Architecture& architecture,
                                            const std::vector<LoraPlace>& places) {
  // Key: layer, index of the site's first linear in the layer.
  std::map<std::pair<std::int64_t, std::int64_t>, LoraSiteGroup> groups;
  for (std::size_t index = 0; index < places.size(); ++index) {
    const LoraPlace& place = places[index];
    if (place.layer < 0 || place.layer >= architecture.layer_count()) {
      fail(Fault::input, "the adapter adapts layer {}, but the model has {} layers", place.layer,
           architecture.layer_count());
    }
    const LayerShape& layer = architecture.layers[static_cast<std::size_t>(place.layer)];
    const std::vector<LinearRole> roles = linear_roles(layer);
    const auto found =
        std::find_if(layer.linears.begin(), layer.linears.end(),
                     [&](const LinearShape& linear) { return linear.name == place.linear; });
    if (found == layer.linears.end()) {
      fail(Fault::input, "layer {} has no linear \"{}\" to adapt", place.layer, place.linear);
    }
    const LinearRole& role = roles[static_cast<std::size_t>(found - layer.linears.begin())];
    if (role.router) {
      fail(Fault::input,
           "layer {}: \"{}\" routes tokens to experts and stays frozen; leave it out "
           "of lora.target_modules",
           place.layer, place.linear);
    }
    const auto first = std::find_if(roles.begin(), roles.end(), [&](const LinearRole& other) {
      return !other.router && other.site == role.site && other.expert == role.expert;
    });
    LoraSiteGroup& group = groups[{place.layer, first - roles.begin()}];
    group.layer = place.layer;
    group.site = role.site;
    group.expert = role.expert;
    group.rank += place.rank;
    group.in = place.in;
    group.places.push_back(static_cast<std::int64_t>(index));
  }
  std::vector<LoraSiteGroup> ordered;
  ordered.reserve(groups.size());
  for (auto& [key, group] : groups) ordered.push_back(std::move(group));
  return ordered;
}

}  // namespace poros
