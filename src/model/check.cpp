// SPDX-License-Identifier: Apache-2.0
#include "model/check.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/base_source.hpp"
#include "model/bnb_state.hpp"
#include "model/hub.hpp"
#include "model/precision.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

const char* part_of(const std::string& tensor) {
  if (tensor.ends_with("norm.weight")) return "norms";
  if (tensor.starts_with("self_attn.")) return "attention";
  if (tensor.find(".experts.") != std::string::npos) return "experts";
  return tensor.ends_with(".gate.weight") ? "router" : "mlp";
}

/// Parameters of a layer that one token doesn't use.
std::int64_t idle_parameters(const LayerShape& layer) {
  if (layer.mlp.experts == 0) return 0;
  std::int64_t all = 0;
  for (const LinearShape& linear : layer.linears) {
    if (linear.name.find(".experts.") != std::string::npos) all += linear.out * linear.in;
  }
  return all / layer.mlp.experts * (layer.mlp.experts - layer.mlp.experts_per_token);
}

/// State of the weights beside config.json, from their headers alone.
std::string checkpoint_state(const fs::path& folder, const ModelConfig& config,
                             const Architecture& architecture) {
  if (!fs::exists(folder / "model.safetensors") &&
      !fs::exists(folder / "model.safetensors.index.json")) {
    return "none";
  }
  try {
    const bool quantised = is_bnb_nf4(config);
    (void)checkpoint_source(architecture, config, std::make_shared<const Checkpoint>(folder),
                            parse_precision("nf4"), "", 1);
    return quantised ? "quantised (bitsandbytes NF4)" : "complete";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string thousands(std::int64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

std::string bytes_text(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value < 1e7) return fmt::format("{:.3f} MB ({:.3f} MiB)", value / 1e6, value / 1048576.0);
  return fmt::format("{:.3f} GB ({:.3f} GiB)", value / 1e9, value / 1073741824.0);
}

}  // namespace

int CheckReport::exit_code() const {
  const bool usable = checkpoint == "complete" || checkpoint == "none" ||
                      checkpoint == "quantised (bitsandbytes NF4)";
  return supported && usable ? kDone : kFailed;
}

std::vector<ModelPart> model_parts(const Architecture& architecture) {
  std::vector<ModelPart> parts;
  for (const char* name : {"embedding", "attention", "mlp", "router", "experts", "norms", "head"}) {
    parts.push_back({name, 0, 0, 0});
  }
  const auto add = [&](const std::string& part, const TensorPlace& place) {
    ModelPart& into = *std::find_if(parts.begin(), parts.end(),
                                    [&](const ModelPart& p) { return p.name == part; });
    const std::int64_t n = place.rows * place.cols;
    into.parameters += n;
    into.bytes_16bit += static_cast<std::uint64_t>(2 * n);
    into.bytes_nf4 += stored_bytes(place);
  };
  const Precision precision = parse_precision("nf4");
  for (std::int64_t layer = 0; layer < architecture.layer_count(); ++layer) {
    for (const TensorPlace& place : layer_tensors(architecture, layer, precision, Storage::bf16)) {
      add(part_of(place.name), place);
    }
  }
  TensorPlace table;
  table.rows = architecture.vocab;
  table.cols = architecture.hidden;
  table.double_quantised = false;
  add("embedding", table);
  if (!architecture.tied_embeddings) add("head", table);
  TensorPlace norm = table;
  norm.rows = 1;
  add("norms", norm);
  std::erase_if(parts, [](const ModelPart& part) { return part.parameters == 0; });
  return parts;
}

CheckReport check_model(const std::string& model, const std::string& revision,
                        const LoraSpec& lora) {
  CheckReport report;
  report.model = model;
  // What exists as a path is one, so that `poros check folder` needs no "./".
  const fs::path path =
      fs::exists(model) ? fs::path(model) : resolve_model(model, revision, fs::current_path());
  const ModelConfig config = read_model_config(path);
  report.path = config.origin();
  report.model_type = config.model_type();
  Architecture architecture;
  try {
    architecture = read_architecture(config);
  } catch (const Error& error) {
    report.status = error.what();
    report.checkpoint = "none";
    return report;
  }
  report.supported = true;
  report.status = "supported";
  report.checkpoint =
      checkpoint_state(fs::path(config.origin()).parent_path(), config, architecture);
  const LayerShape& first = architecture.layers.front();
  report.layers = architecture.layer_count();
  report.hidden = architecture.hidden;
  report.vocab = architecture.vocab;
  report.heads = first.attention.heads;
  report.kv_heads = first.attention.kv_heads;
  report.head_dim = first.attention.head_dim;
  report.tied_embeddings = architecture.tied_embeddings;
  report.max_positions = architecture.max_positions;
  std::int64_t idle = 0;
  for (const LayerShape& layer : architecture.layers) {
    report.window = std::max(report.window, layer.attention.window);
    report.window_layers += layer.attention.window > 0 ? 1 : 0;
    report.experts = std::max(report.experts, layer.mlp.experts);
    report.experts_per_token = std::max(report.experts_per_token, layer.mlp.experts_per_token);
    idle += idle_parameters(layer);
    for (const LinearShape& linear : layer.linears) {
      if (linear.quantised) report.linear_parameters += linear.out * linear.in;
    }
  }
  report.parts = model_parts(architecture);
  for (const ModelPart& part : report.parts) {
    report.parameters += part.parameters;
    report.bytes_16bit += part.bytes_16bit;
    report.bytes_nf4 += part.bytes_nf4;
  }
  report.active_parameters = report.parameters - idle;
  report.lora_rank = lora.rank;
  for (const LoraPlace& place : lora_places(architecture, lora)) {
    report.lora_parameters += place.rank * (place.in + place.out);
    const std::string name = place.linear.substr(place.linear.rfind('.') + 1);
    if (std::find(report.lora_targets.begin(), report.lora_targets.end(), name) ==
        report.lora_targets.end()) {
      report.lora_targets.push_back(name);
    }
  }
  return report;
}

Json to_json(const CheckReport& r) {
  Json parts = Json::array();
  for (const ModelPart& part : r.parts) {
    parts.push_back({{"name", part.name},
                     {"parameters", part.parameters},
                     {"bytes_16bit", part.bytes_16bit},
                     {"bytes_nf4", part.bytes_nf4}});
  }
  Json json = {{"model", r.model},         {"path", r.path},     {"model_type", r.model_type},
               {"supported", r.supported}, {"status", r.status}, {"checkpoint", r.checkpoint}};
  if (!r.supported) return json;
  json.update({{"layers", r.layers},
               {"hidden_size", r.hidden},
               {"vocab_size", r.vocab},
               {"attention_heads", r.heads},
               {"key_value_heads", r.kv_heads},
               {"head_dim", r.head_dim},
               {"experts", r.experts},
               {"experts_per_token", r.experts_per_token},
               {"tied_embeddings", r.tied_embeddings},
               {"parameters", r.parameters},
               {"active_parameters", r.active_parameters},
               {"linear_parameters", r.linear_parameters},
               {"lora_parameters", r.lora_parameters},
               {"lora_rank", r.lora_rank},
               {"lora_targets", r.lora_targets},
               {"max_positions", r.max_positions},
               {"sliding_window", r.window},
               {"sliding_window_layers", r.window_layers},
               {"bytes_16bit", r.bytes_16bit},
               {"bytes_nf4", r.bytes_nf4},
               {"parts", std::move(parts)}});
  return json;
}

std::string to_text(const CheckReport& r) {
  std::string text = fmt::format("model         {}\nconfig        {}\narchitecture  {}: {}\n",
                                 r.model, r.path, r.model_type, r.status);
  if (!r.supported) return text;
  text += fmt::format("checkpoint    {}\n", r.checkpoint);
  text += fmt::format(
      "shape         {} layers, hidden {}, {} heads ({} key-value) of {}, vocabulary {}{}\n",
      r.layers, r.hidden, r.heads, r.kv_heads, r.head_dim, r.vocab,
      r.tied_embeddings ? ", tied embeddings" : "");
  text += fmt::format("positions     {}", r.max_positions);
  if (r.window_layers > 0) {
    text +=
        fmt::format("; {} of {} layers see a window of {}", r.window_layers, r.layers, r.window);
  }
  text += "\n";
  if (r.experts > 0) {
    text += fmt::format("experts       {}, {} a token\n", r.experts, r.experts_per_token);
  }
  text += fmt::format("parameters    {}", thousands(r.parameters));
  if (r.active_parameters != r.parameters) {
    text += fmt::format(" ({} used by a token)", thousands(r.active_parameters));
  }
  text += fmt::format(
      "\nLoRA          {} parameters ({:.2f} %): rank {} on {}\n\n", thousands(r.lora_parameters),
      100.0 * static_cast<double>(r.lora_parameters) / static_cast<double>(r.parameters),
      r.lora_rank, fmt::join(r.lora_targets, ", "));
  text += fmt::format("{:<10} {:>20} {:>28} {:>28}\n", "part", "parameters", "16 bit", "NF4");
  const auto row = [&](const std::string& name, std::int64_t parameters, std::uint64_t wide,
                       std::uint64_t narrow) {
    text += fmt::format("{:<10} {:>20} {:>28} {:>28}\n", name, thousands(parameters),
                        bytes_text(wide), bytes_text(narrow));
  };
  for (const ModelPart& part : r.parts) {
    row(part.name, part.parameters, part.bytes_16bit, part.bytes_nf4);
  }
  row("all", r.parameters, r.bytes_16bit, r.bytes_nf4);
  return text;
}

}  // namespace poros
