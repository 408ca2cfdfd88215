// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/error.hpp"
#include "model/adapter_tensors.hpp"
#include "model/peft_config.hpp"

namespace poros {
namespace {

/// peft 0.18 laid B out otherwise: the version must be known.
void require_known_layout(const Json& config, const std::string& origin) {
  const std::string version =
      json_find<std::string>(config, "peft_version", origin).value_or("unknown");
  char* end = nullptr;
  const long major = std::strtol(version.c_str(), &end, 10);
  const long minor = end != nullptr && *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  if (major == 0 && minor < 19) {
    fail(Fault::input,
         "{}: target_parameters written by peft {} are not supported; they are from 0.19 on",
         origin, version);
  }
}

/// An adapter of the fused linears of one layer's experts.
struct Fused {
  std::vector<float> a, b;
};

/// A and B of one expert's rows [first, first + out) of the fused output.
LoraWeights one_expert(const Fused& fused, std::int64_t expert, std::int64_t experts,
                       const LoraPlace& place, std::int64_t first) {
  LoraWeights weights;
  const auto a_begin = fused.a.begin() + expert * place.rank * place.in;
  weights.a.assign(a_begin, a_begin + place.rank * place.in);
  weights.b.reserve(static_cast<std::size_t>(place.out * place.rank));
  for (std::int64_t o = first; o < first + place.out; ++o) {
    for (std::int64_t r = 0; r < place.rank; ++r) {
      weights.b.push_back(
          fused.b[static_cast<std::size_t>((o * place.rank + r) * experts + expert)]);
    }
  }
  return weights;
}

/// Reads the adapter of a fused parameter of `prefix`
/// ("base_model.model.model.layers.0.mlp.experts"). PEFT wraps one around the other, so that names
/// don't tell which is which: sizes do.
Fused take_fused(const std::string& prefix, const std::string& what, std::int64_t experts,
                 std::int64_t rank, std::int64_t in, std::int64_t out, const SafetensorsFile& file,
                 AdapterTensors& left) {
  const std::vector<std::int64_t> a_shape = {experts * rank, in}, b_shape = {out, experts * rank};
  for (const std::string wrapper : {"", ".base_layer"}) {
    const auto a = left.find(prefix + wrapper + ".lora_A.weight");
    const auto b = left.find(prefix + wrapper + ".lora_B.weight");
    if (a == left.end() || b == left.end()) continue;
    if (a->second->shape != a_shape || b->second->shape != b_shape) continue;
    Fused fused{read_matrix(file, *a->second, experts * rank, in),
                read_matrix(file, *b->second, out, experts * rank)};
    left.erase(a);
    left.erase(b);
    return fused;
  }
  fail(Fault::input, "{}: {} has no adapter for {} of rank {} and {} experts", file.path().string(),
       prefix, what, rank, experts);
}

}  // namespace

bool is_target(const std::vector<std::string>& targets, const std::string& name) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return is_name_suffix(name, target); });
}

std::vector<std::string> target_parameters(const Json& config, const std::string& origin,
                                           const Architecture& architecture) {
  std::vector<std::string> targets;
  const auto found = config.find("target_parameters");
  if (found == config.end() || found->is_null()) return targets;
  if (!found->is_array()) fail(Fault::input, "{}: target_parameters is no list", origin);
  std::set<std::string> known;  // every name and its last parts
  const auto add = [&](const std::string& name) {
    for (std::size_t at = 0;; ++at) {
      known.insert(name.substr(at));
      if ((at = name.find('.', at)) == std::string::npos) return;
    }
  };
  if (!found->empty()) {
    for (std::int64_t layer = 0; layer < architecture.layer_count(); ++layer) {
      const LayerShape& shape = architecture.layers[static_cast<std::size_t>(layer)];
      if (shape.mlp.experts > 0) {
        add(fused_name(architecture, layer, "gate_up_proj"));
        add(fused_name(architecture, layer, "down_proj"));
      }
      for (const LinearShape& linear : shape.linears) {
        if (linear.quantised && linear.name.find(".experts.") == std::string::npos) {
          add(module_name(architecture, layer, linear.name + ".weight"));
        }
      }
    }
  }
  known.erase("weight");
  for (const Json& target : *found) {
    if (!target.is_string() || !known.contains(target.get<std::string>())) {
      fail(Fault::input,
           "{}: target_parameters: {} is no parameter of a {} that can be adapted; known are the "
           "weights of linears and, with experts, mlp.experts.gate_up_proj and "
           "mlp.experts.down_proj",
           origin, target.dump(), architecture.model_type);
    }
    targets.push_back(target.get<std::string>());
  }
  return targets;
}

bool read_fused_experts(const Json& config, const std::string& origin,
                        const std::vector<std::string>& targets, const Architecture& architecture,
                        const LoraSpec& lora, const SafetensorsFile& file, AdapterTensors& left,
                        PlacedWeights& placed) {
  bool any = false;
  for (std::int64_t layer = 0; layer < architecture.layer_count(); ++layer) {
    const LayerShape& shape = architecture.layers[static_cast<std::size_t>(layer)];
    const std::int64_t experts = shape.mlp.experts, inner = shape.mlp.intermediate;
    if (experts == 0) continue;
    const std::size_t first = first_expert_linear(shape);
    const std::string prefix = fmt::format("{}{}.mlp.experts", architecture.peft_prefix, layer);
    const bool split = placed.contains({layer, first}) || placed.contains({layer, first + 2});
    const auto take = [&](const char* what, std::int64_t in, std::int64_t out, std::size_t linear,
                          std::size_t count) {
      const std::string name = fused_name(architecture, layer, what);
      // Tensors of the single experts: the name is there only to make PEFT fuse them.
      if (!is_target(targets, name) || split) return;
      if (!any) require_known_layout(config, origin);
      any = true;
      const LoraSettings settings = lora_settings(name, lora);
      const Fused fused = take_fused(prefix, what, experts, settings.rank, in, out, file, left);
      for (std::int64_t e = 0; e < experts; ++e) {
        for (std::size_t part = 0; part < count; ++part) {
          const std::size_t index = first + static_cast<std::size_t>(3 * e) + linear + part;
          LoraPlace place =
              make_place(architecture, layer, shape.linears[index], settings, lora.use_rslora);
          LoraWeights weights =
              one_expert(fused, e, experts, place, static_cast<std::int64_t>(part) * place.out);
          placed[{layer, index}] = {std::move(place), settings, std::move(weights)};
        }
      }
    };
    take("gate_up_proj", architecture.hidden, 2 * inner, 0, 2);
    take("down_proj", inner, architecture.hidden, 2, 1);
  }
  return any;
}

void describe_split_experts(const Architecture& architecture, LoraSpec lora,
                            const PlacedWeights& placed, Json& config) {
  std::vector<LoraPlace> places;
  std::vector<LoraSettings> settings;
  std::vector<PatternGoal> goals;
  const LoraSettings usual{lora.rank, lora.alpha};
  // Patterns that were meant for fused names would fit the new ones wrongly: all are written anew.
  lora.rank_pattern.clear();
  lora.alpha_pattern.clear();
  for (const auto& [at, item] : placed) {
    places.push_back(item.place);
    settings.push_back(item.settings);
    const std::string& linear = item.place.linear;
    const std::string last = linear.substr(linear.rfind('.') + 1);
    const bool expert = linear.find(".experts.") != std::string::npos;
    goals.push_back({module_name(architecture, item.place.layer, linear), last,
                     expert ? fmt::format("layers\\.{}\\..*\\.{}", item.place.layer, last)
                            : fmt::format("layers.{}.{}", item.place.layer, linear),
                     item.settings, usual});
  }
  settle_patterns(goals, lora);
  lora.dropout = 0;  // PEFT's wrapper of a parameter has none
  config["lora_dropout"] = 0.0;
  set_targets(architecture, lora, places, settings, config);
}

}  // namespace poros
