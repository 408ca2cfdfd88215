// SPDX-License-Identifier: Apache-2.0
#include "model/peft_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "model/name_pattern.hpp"

namespace poros {
namespace {

Json whole_or_real(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15
             ? Json(static_cast<std::int64_t>(value))
             : Json(value);
}

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

/// True for a dense MLP's linear in a model that has experts in other layers. PEFT takes gate_proj,
/// up_proj and down_proj of such a model for those of experts and passes the dense ones over; named
/// as parameters they are adapted.
bool is_dense_among_experts(const Architecture& architecture, const LoraPlace& place) {
  const auto has_experts = [](const LayerShape& layer) { return layer.mlp.experts > 0; };
  return place.linear.starts_with("mlp.") &&
         !has_experts(architecture.layers.at(static_cast<std::size_t>(place.layer))) &&
         std::any_of(architecture.layers.begin(), architecture.layers.end(), has_experts);
}

/// Targets that give exactly these places: last parts of the names where that is enough, else whole
/// module names. Beside a vision tower, whose linears have the same last parts, always the latter.
std::vector<std::string> target_names(const Architecture& architecture,
                                      const std::vector<LoraPlace>& places, LoraSpec lora) {
  std::set<std::string> names, modules;
  for (const LoraPlace& place : places) {
    if (is_dense_among_experts(architecture, place)) continue;
    names.insert(last_part(place.linear));
    modules.insert(module_name(architecture, place.layer, place.linear));
  }
  lora.target_modules.assign(names.begin(), names.end());
  if (names.empty()) return {};
  lora.rank_pattern.clear();
  lora.alpha_pattern.clear();
  const bool alone = architecture.peft_prefix == "base_model.model.model.layers.";
  if (alone) {
    const std::size_t found = lora_places(architecture, lora).size();
    if (found == places.size() || found == modules.size()) return lora.target_modules;
  }
  return {modules.begin(), modules.end()};
}

/// Rank and alpha of one part (gate, up, down) over all experts of a layer; nothing when none is
/// adapted.
std::optional<LoraSettings> part_settings(const LayerShape& shape,
                                          const std::map<std::string, LoraSettings>& adapted,
                                          std::size_t part) {
  const std::size_t first = first_expert_linear(shape);
  std::optional<LoraSettings> found;
  for (std::int64_t e = 0; e < shape.mlp.experts; ++e) {
    const std::string& name = shape.linears[first + static_cast<std::size_t>(3 * e) + part].name;
    const auto at = adapted.find(name);
    if (e == 0 && at != adapted.end()) found = at->second;
    if (found.has_value() != (at != adapted.end()) || (found && !(*found == at->second))) {
      fail(
          Fault::input,
          "lora: {} is adapted otherwise than {}; PEFT keeps the experts of a layer in one tensor: "
          "adapt all of them, with one rank and alpha",
          name, shape.linears[first + part].name);
    }
  }
  return found;
}

/// Rank and alpha of gate_up: gate's and up's ranks together, the scale of both.
LoraSettings gate_up_settings(const LoraSettings& gate, const LoraSettings& up, bool use_rslora) {
  if (static_cast<float>(lora_scale(gate, use_rslora)) !=
      static_cast<float>(lora_scale(up, use_rslora))) {
    fail(Fault::input,
         "lora: the experts' gate and up have the scales {} and {}; PEFT keeps them in one tensor "
         "with one scale",
         lora_scale(gate, use_rslora), lora_scale(up, use_rslora));
  }
  LoraSettings fused{gate.rank + up.rank, gate.alpha + up.alpha};
  if (use_rslora) {
    fused.alpha = lora_scale(gate, true) * std::sqrt(static_cast<double>(fused.rank));
  }
  return fused;
}

}  // namespace

std::string fused_name(const Architecture& architecture, std::int64_t layer,
                       const char* parameter) {
  return module_name(architecture, layer, std::string("mlp.experts.") + parameter);
}

std::size_t first_expert_linear(const LayerShape& layer) {
  std::size_t first = 0;
  while (layer.linears.at(first).name != layer.mlp.router) ++first;
  return first + 1;
}

void settle_patterns(const std::vector<PatternGoal>& goals, LoraSpec& lora) {
  const auto met = [&](const PatternGoal& goal) {
    const auto* rank = first_fitting(lora.rank_pattern, goal.name, "rank_pattern");
    const auto* alpha = first_fitting(lora.alpha_pattern, goal.name, "alpha_pattern");
    return LoraSettings{rank != nullptr ? *rank : goal.otherwise.rank,
                        alpha != nullptr ? *alpha : goal.otherwise.alpha} == goal.wanted;
  };
  std::map<std::string, std::vector<const PatternGoal*>> groups;
  for (const PatternGoal& goal : goals) groups[goal.short_key].push_back(&goal);
  for (const auto& [short_key, group] : groups) {
    bool all_met = true, all_alike = true;
    for (const PatternGoal* goal : group) {
      all_met = all_met && met(*goal);
      all_alike = all_alike && goal->wanted == group.front()->wanted;
    }
    if (all_met) continue;
    for (const PatternGoal* goal : group) {
      const std::string& key = all_alike ? short_key : goal->long_key;
      lora.rank_pattern[key] = goal->wanted.rank;
      lora.alpha_pattern[key] = goal->wanted.alpha;
      if (met(*goal)) continue;
      lora.rank_pattern["(" + key + ")"] = goal->wanted.rank;  // sorts before most
      lora.alpha_pattern["(" + key + ")"] = goal->wanted.alpha;
    }
  }
  for (const PatternGoal& goal : goals) {
    if (met(goal)) continue;
    fail(Fault::input,
         "lora: PEFT needs rank {} and alpha {} for {}, but a key of rank_pattern or alpha_pattern "
         "gives it others; narrow that key",
         goal.wanted.rank, goal.wanted.alpha, goal.name);
  }
}

void set_targets(const Architecture& architecture, LoraSpec lora,
                 const std::vector<LoraPlace>& places, const std::vector<LoraSettings>& settings,
                 Json& config) {
  std::map<std::int64_t, std::map<std::string, LoraSettings>> by_layer;
  const LoraSettings usual{lora.rank, lora.alpha}, doubled{2 * lora.rank, 2 * lora.alpha};
  std::vector<PatternGoal> goals;
  const auto goal = [&](std::int64_t layer, const std::string& below, const LoraSettings& wanted,
                        const LoraSettings& otherwise) {
    goals.push_back({module_name(architecture, layer, below), below,
                     fmt::format("layers.{}.{}", layer, below), wanted, otherwise});
  };
  std::set<std::string> parameters;
  bool any_fused = false;
  for (std::size_t i = 0; i < places.size(); ++i) {
    by_layer[places[i].layer][places[i].linear] = settings[i];
    if (!is_dense_among_experts(architecture, places[i])) continue;
    parameters.insert(fmt::format("layers.{}.{}.weight", places[i].layer, places[i].linear));
    goal(places[i].layer, places[i].linear + ".weight", settings[i], usual);
  }
  for (const auto& [layer, adapted] : by_layer) {
    const LayerShape& shape = architecture.layers.at(static_cast<std::size_t>(layer));
    if (shape.mlp.experts == 0) continue;
    std::array<std::optional<LoraSettings>, 3> parts;
    for (std::size_t part = 0; part < 3; ++part) {
      parts[part] = part_settings(shape, adapted, part);
    }
    const auto& [gate, up, down] = parts;
    if (gate.has_value() != up.has_value()) {
      fail(Fault::input,
           "lora.target_modules: the experts' gate and up are adapted together or not at all: "
           "PEFT keeps them in one tensor");
    }
    any_fused = any_fused || gate || down;
    if (gate) {
      goal(layer, "mlp.experts.gate_up_proj", gate_up_settings(*gate, *up, lora.use_rslora),
           doubled);
    }
    if (down) goal(layer, "mlp.experts.down_proj", *down, usual);
    // PEFT names what it fuses as if down_proj were adapted as well: without tensors it adds zero.
    if (gate && !down) parameters.insert("mlp.experts.down_proj");
  }
  if ((any_fused || !parameters.empty()) && lora.dropout != 0) {
    fail(
        Fault::input,
        "lora.dropout is {}, and {} is adapted, which PEFT can't do with dropout; set lora.dropout "
        "to 0",
        lora.dropout, any_fused ? "the MLP of experts" : "a dense MLP of a model with experts");
  }
  config["target_modules"] = target_names(architecture, places, lora);
  config.erase("target_parameters");
  if (!parameters.empty()) config["target_parameters"] = parameters;
  settle_patterns(goals, lora);
  Json ranks = Json::object(), alphas = Json::object();
  for (const auto& [key, rank] : lora.rank_pattern) ranks[key] = rank;
  for (const auto& [key, alpha] : lora.alpha_pattern) alphas[key] = whole_or_real(alpha);
  config["rank_pattern"] = std::move(ranks);
  config["alpha_pattern"] = std::move(alphas);
}

Json peft_config(const Architecture& architecture, const LoraSpec& lora,
                 const std::vector<LoraPlace>& places, const std::string& base_model) {
  Json config = {{"peft_type", "LORA"},
                 {"task_type", "CAUSAL_LM"},
                 {"base_model_name_or_path", base_model},
                 {"r", lora.rank},
                 {"lora_alpha", whole_or_real(lora.alpha)},
                 {"lora_dropout", lora.dropout},
                 {"use_rslora", lora.use_rslora},
                 {"use_dora", false},
                 {"bias", "none"},
                 {"fan_in_fan_out", false},
                 {"inference_mode", true},
                 {"init_lora_weights", true},
                 {"modules_to_save", nullptr}};
  std::vector<LoraSettings> settings;
  for (const LoraPlace& place : places) {
    settings.push_back(lora_settings(module_name(architecture, place.layer, place.linear), lora));
  }
  set_targets(architecture, lora, places, settings, config);
  return config;
}

}  // namespace poros
