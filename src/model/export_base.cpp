// SPDX-License-Identifier: Apache-2.0
#include "model/export_base.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "model/layer_reader.hpp"
#include "model/precision.hpp"
#include "model/safetensors.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

TensorType type_of(Storage storage) {
  return storage == Storage::fp32   ? TensorType::f32
         : storage == Storage::fp16 ? TensorType::f16
                                    : TensorType::bf16;
}

class Exporter {
 public:
  explicit Exporter(const BaseStore& base)
      : base_(base), reader_(std::make_shared<LayerReader>(base)) {
    dtype_ = base.embedding().storage == Storage::fp16 ? "float16" : "bfloat16";
  }

  std::vector<TensorToWrite> tensors() {
    const Architecture& a = base_.architecture();
    for (std::int64_t layer = 0; layer < a.layer_count(); ++layer) {
      for (const TensorPlace& place : base_.layout(layer).tensors) {
        const std::string name = fmt::format("model.layers.{}.{}", layer, place.name);
        if (place.storage != Storage::nf4) {
          add_slice(layer, name, type_of(place.storage), shape_of(place), place.offset,
                    value_bytes(place));
        } else if (place.name.find(".experts.") != std::string::npos) {
          add_dequantised(layer, name, place);
        } else {
          add_nf4(layer, name, place);
        }
      }
    }
    add_end("model.embed_tokens.weight", base_.embedding(), false);
    add_end("model.norm.weight", base_.final_norm(), true);
    if (!a.tied_embeddings) add_end("lm_head.weight", base_.head(), false);
    return std::move(tensors_);
  }

  bool any_nf4 = false, any_double = false;
  [[nodiscard]] const std::string& dtype() const { return dtype_; }

 private:
  static std::vector<std::int64_t> shape_of(const TensorPlace& place) {
    const bool is_vector = place.name.ends_with(".bias") || place.name.ends_with("norm.weight");
    return is_vector ? std::vector{place.cols} : std::vector{place.rows, place.cols};
  }

  TensorToWrite& add(const std::string& name, TensorType type, std::vector<std::int64_t> shape) {
    TensorToWrite& tensor = tensors_.emplace_back();
    tensor.name = name;
    tensor.type = type;
    tensor.shape = std::move(shape);
    return tensor;
  }

  void add_slice(std::int64_t layer, const std::string& name, TensorType type,
                 std::vector<std::int64_t> shape, std::uint64_t offset, std::uint64_t bytes) {
    add(name, type, std::move(shape)).write = [=, reader = reader_](const auto& put) {
      put(reader->slab(layer) + offset, bytes);
    };
  }

  void add_constants(const std::string& name, std::span<const float> values) {
    add(name, TensorType::f32, {static_cast<std::int64_t>(values.size())}).write =
        [values](const auto& put) { put(values.data(), values.size_bytes()); };
  }

  void add_nf4(std::int64_t layer, const std::string& name, const TensorPlace& place) {
    const std::int64_t n = place.rows * place.cols;
    any_nf4 = true;
    any_double = any_double || place.double_quantised;
    add_slice(layer, name, TensorType::u8, {nf4_code_bytes(n), 1}, place.offset,
              value_bytes(place));
    add_constants(name + ".quant_map", nf4_values());
    // As Python's json writes it.
    std::string state =
        fmt::format(R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "{}", "shape": [{}, {}])",
                    kNf4Block, dtype_, place.rows, place.cols);
    const auto blocks = static_cast<std::uint64_t>(nf4_blocks(n));
    const auto nested = static_cast<std::uint64_t>(nf4_nested_blocks(n));
    if (place.double_quantised) {
      add_slice(layer, name + ".absmax", TensorType::u8, {nf4_blocks(n)}, place.absmax_offset,
                blocks);
      add_slice(layer, name + ".nested_absmax", TensorType::f32, {nf4_nested_blocks(n)},
                place.nested_absmax_offset, 4 * nested);
      add_constants(name + ".nested_quant_map", nf4_dynamic_map());
      state +=
          fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {})",
                      kNf4NestedBlock, static_cast<double>(place.nested_offset));
    } else {
      add_slice(layer, name + ".absmax", TensorType::f32, {nf4_blocks(n)}, place.absmax_offset,
                4 * blocks);
    }
    state += "}";
    add(name + ".quant_state.bitsandbytes__nf4", TensorType::u8,
        {static_cast<std::int64_t>(state.size())})
        .write = [state](const auto& put) { put(state.data(), state.size()); };
  }

  void add_dequantised(std::int64_t layer, const std::string& name, const TensorPlace& place) {
    add(name, TensorType::bf16, shape_of(place)).write = [=, reader = reader_](const auto& put) {
      const Nf4View view = nf4_view(place, reader->slab(layer));
      constexpr std::int64_t kPiece = std::int64_t{1} << 20;
      std::vector<Bf16> values(static_cast<std::size_t>(kPiece));
      const std::int64_t n = place.rows * place.cols;
      for (std::int64_t i = 0; i < n; i += kPiece) {
        const std::int64_t count = std::min(kPiece, n - i);
        nf4_dequantise_bf16(view, i, count, values.data());
        put(values.data(), static_cast<std::uint64_t>(count) * 2);
      }
    };
  }

  void add_end(const std::string& name, const EndTensor& end, bool is_vector) {
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(end.rows * end.cols) * bytes_per_element(end.storage);
    add(name, type_of(end.storage),
        is_vector ? std::vector{end.cols} : std::vector{end.rows, end.cols})
        .write = [data = end.data, bytes](const auto& put) { put(data, bytes); };
  }

  const BaseStore& base_;
  std::shared_ptr<LayerReader> reader_;
  std::string dtype_;
  std::vector<TensorToWrite> tensors_;
};

Json quantization_config(const Exporter& exporter) {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"_load_in_4bit", true},
          {"_load_in_8bit", false},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", exporter.any_double},
          {"bnb_4bit_compute_dtype", exporter.dtype()},
          {"bnb_4bit_quant_storage", "uint8"},
          {"llm_int8_threshold", 6.0},
          {"llm_int8_skip_modules", nullptr},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false}};
}

/// config.json of what is written: that of the text part where the given one is multimodal.
Json written_config(const ModelConfig& config, const Architecture& architecture) {
  Json json = config.json();
  if (const auto text = config.nested("text_config")) {
    json = text->json();
    json["model_type"] = "gemma3_text";
    json["architectures"] = {"Gemma3ForCausalLM"};
    json["tie_word_embeddings"] = architecture.tied_embeddings;
    // Older files leave out what then was the default.
    for (const auto& [key, value] :
         {std::pair{"vocab_size", architecture.vocab},
          std::pair{"max_position_embeddings", architecture.max_positions}}) {
      if (!json.contains(key)) json[key] = value;
    }
  }
  json.erase("quantization_config");
  return json;
}

}  // namespace

std::string export_base(const BaseStore& base, const ModelConfig& config, const fs::path& folder) {
  Exporter exporter(base);
  std::vector<TensorToWrite> tensors = exporter.tensors();
  Json json = written_config(config, base.architecture());
  const Storage ends = base.embedding().storage;
  const bool newer = json.contains("dtype");
  json[newer ? "dtype" : "torch_dtype"] = ends == Storage::fp32 ? "float32" : exporter.dtype();
  if (exporter.any_nf4) json["quantization_config"] = quantization_config(exporter);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(Fault::io, "{}: {}", folder.string(), error.message());
  const std::string sha256 = write_safetensors(folder / "model.safetensors", std::move(tensors));
  write_file_durably(folder / "config.json", dump_json(json, 2) + "\n");
  return sha256;
}

}  // namespace poros
