// SPDX-License-Identifier: Apache-2.0
// The first adapter of a run, and writing adapters.
#include "model/adapter.hpp"

#include <cmath>

#include "base/error.hpp"
#include "base/files.hpp"
#include "kernels/philox.hpp"
#include "model/peft_config.hpp"
#include "model/safetensors.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr std::uint32_t kLoraStream = 0x4c6f5241;  // keeps these draws apart from dropout's

/// U(-1/sqrt(in), 1/sqrt(in)): element e is word e % 4 of the Philox block
/// {e / 4, layer, linear, kLoraStream}, its upper 24 bits taken as a fraction.
std::vector<float> draw_a(const LoraPlace& place, std::uint32_t linear, std::uint64_t seed) {
  const PhiloxKey key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  const float bound = 1.0F / std::sqrt(static_cast<float>(place.in));
  std::vector<float> a(static_cast<std::size_t>(place.rank * place.in));
  PhiloxCounter words{};
  for (std::size_t e = 0; e < a.size(); ++e) {
    if (e % 4 == 0) {
      words = philox4x32_10({static_cast<std::uint32_t>(e / 4),
                             static_cast<std::uint32_t>(place.layer), linear, kLoraStream},
                            key);
    }
    const float fraction = (static_cast<float>(words[e % 4] >> 8) + 0.5F) * 0x1p-24F;
    a[e] = bound * (2.0F * fraction - 1.0F);
  }
  return a;
}

std::uint32_t linear_index(const Architecture& architecture, const LoraPlace& place) {
  const auto& linears = architecture.layers.at(static_cast<std::size_t>(place.layer)).linears;
  std::uint32_t index = 0;
  while (linears.at(index).name != place.linear) ++index;
  return index;
}

}  // namespace

Adapter initial_adapter(const Architecture& architecture, const LoraSpec& lora,
                        const std::string& base_model, std::uint64_t seed) {
  Adapter adapter;
  adapter.places = lora_places(architecture, lora);
  for (const LoraPlace& place : adapter.places) {
    LoraWeights weights;
    weights.a = draw_a(place, linear_index(architecture, place), seed);
    weights.b.assign(static_cast<std::size_t>(place.out * place.rank), 0.0F);
    adapter.weights.push_back(std::move(weights));
  }
  adapter.config = peft_config(architecture, lora, adapter.places, base_model);
  return adapter;
}

std::string write_adapter(const fs::path& folder, const Adapter& adapter) {
  if (adapter.places.size() != adapter.weights.size()) {
    fail(Fault::run, "adapter: {} places, {} weights", adapter.places.size(),
         adapter.weights.size());
  }
  std::vector<TensorToWrite> tensors;
  for (std::size_t i = 0; i < adapter.places.size(); ++i) {
    const LoraPlace& place = adapter.places[i];
    const auto add = [&](const char* part, std::vector<std::int64_t> shape,
                         const std::vector<float>& values) {
      TensorToWrite tensor;
      tensor.name = place.peft_name + part;
      tensor.type = TensorType::f32;
      tensor.shape = std::move(shape);
      tensor.write = [&values](const TensorToWrite::Sink& put) {
        put(values.data(), values.size() * sizeof(float));
      };
      tensors.push_back(std::move(tensor));
    };
    add(".lora_A.weight", {place.rank, place.in}, adapter.weights[i].a);
    add(".lora_B.weight", {place.out, place.rank}, adapter.weights[i].b);
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(Fault::io, "{}: {}", folder.string(), error.message());
  write_file_durably(folder / "adapter_config.json", dump_json(adapter.config, 2) + "\n");
  return write_safetensors(folder / "adapter_model.safetensors", std::move(tensors));
}

}  // namespace poros
