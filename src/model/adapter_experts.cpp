// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/error.hpp"
#include "model/adapter_tensors.hpp"
#include "model/lora_match.hpp"

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

/// Reads the adapter of `what` ("gate_up_proj") of a layer. PEFT wraps one around the other, so
/// that names don't tell which is which: sizes do.
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

void read_fused_experts(const Json& config, const std::string& origin,
                        const Architecture& architecture, const LoraSpec& lora,
                        const SafetensorsFile& file, AdapterTensors& left, PlacedWeights& placed) {
  require_known_layout(config, origin);
  std::set<std::string> wanted;
  for (const Json& target : config["target_parameters"]) {
    const std::string name = target.is_string() ? target.get<std::string>() : "";
    const std::string last = name.substr(name.rfind('.') + 1);
    if (last != "gate_up_proj" && last != "down_proj") {
      fail(Fault::input,
           "{}: target_parameters: {} is not supported; known are gate_up_proj and "
           "down_proj of experts",
           origin, target.dump());
    }
    wanted.insert(last);
  }
  bool any = false;
  for (std::int64_t layer = 0; layer < architecture.layer_count(); ++layer) {
    const LayerShape& shape = architecture.layers[static_cast<std::size_t>(layer)];
    const std::int64_t experts = shape.mlp.experts, inner = shape.mlp.intermediate;
    if (experts == 0) continue;
    any = true;
    std::size_t first = 0;  // gate of expert 0 in the list of linears
    while (shape.linears[first].name != shape.mlp.router) ++first;
    ++first;
    const std::string expert_name = shape.linears[first].name;
    const std::string prefix =
        fmt::format("{}{}.{}", architecture.peft_prefix, layer,
                    expert_name.substr(0, expert_name.find(".experts.") + 8));
    const auto split = [&](const Fused& fused, std::size_t linear, std::int64_t row) {
      for (std::int64_t e = 0; e < experts; ++e) {
        const std::size_t index = first + static_cast<std::size_t>(3 * e) + linear;
        LoraPlace place = make_place(architecture, layer, shape.linears[index], lora);
        LoraWeights weights = one_expert(fused, e, experts, place, row);
        placed[{layer, index}] = {std::move(place), std::move(weights)};
      }
    };
    if (wanted.contains("gate_up_proj")) {
      const Fused fused = take_fused(prefix, "gate_up_proj", experts, lora.rank,
                                     architecture.hidden, 2 * inner, file, left);
      split(fused, 0, 0);
      split(fused, 1, inner);
    }
    if (wanted.contains("down_proj")) {
      split(take_fused(prefix, "down_proj", experts, lora.rank, inner, architecture.hidden, file,
                       left),
            2, 0);
    }
  }
  if (!any) {
    fail(Fault::input, "{}: target_parameters, but a {} has no experts", origin,
         architecture.model_type);
  }
}

}  // namespace poros
