// SPDX-License-Identifier: Apache-2.0
#include "model/bnb_state.hpp"

#include <cmath>
#include <cstring>
#include <span>

#include "base/error.hpp"
#include "kernels/nf4.hpp"

namespace poros {
namespace {

constexpr const char* kNf4State = ".quant_state.bitsandbytes__nf4";

std::string where(const Checkpoint::Found& found) {
  return fmt::format("{}: tensor \"{}\"", found.file->path().string(), found.tensor->name);
}

Checkpoint::Found part(const Checkpoint& checkpoint, const std::string& name, TensorType type,
                       std::int64_t elements, std::set<std::string>& used) {
  const Checkpoint::Found found = checkpoint.at(name);
  if (found.tensor->type != type || found.tensor->elements() != elements) {
    fail(Fault::input, "{}: {} {}, expected {} values of {}", where(found),
         name_of(found.tensor->type), found.tensor->shape_text(), elements, name_of(type));
  }
  used.insert(name);
  return found;
}

void require_map(const Checkpoint& checkpoint, const std::string& name,
                 std::span<const float> values, std::set<std::string>& used) {
  const Checkpoint::Found found =
      part(checkpoint, name, TensorType::f32, static_cast<std::int64_t>(values.size()), used);
  if (std::memcmp(found.file->read(*found.tensor).data(), values.data(), values.size_bytes()) !=
      0) {
    fail(Fault::input, "{}: not the standard values; other value maps are not supported",
         where(found));
  }
}

}  // namespace

bool is_bnb_nf4(const ModelConfig& config) {
  const auto quant = config.nested("quantization_config");
  if (!quant) return false;
  const std::string method = quant->text("quant_method", "bitsandbytes");
  if (method != "bitsandbytes") {
    fail(Fault::input,
         "{}: quant_method \"{}\" is not supported; known is bitsandbytes (NF4). Use the model's "
         "16-bit checkpoint",
         quant->origin(), method);
  }
  const bool four_bit = quant->flag("load_in_4bit", quant->flag("_load_in_4bit", false));
  const std::string type = quant->text("bnb_4bit_quant_type", "fp4");
  if (!four_bit || type != "nf4") {
    fail(Fault::input, "{}: {} is not supported; known is 4 bit with bnb_4bit_quant_type \"nf4\"",
         quant->origin(), four_bit ? "bnb_4bit_quant_type \"" + type + "\"" : "8 bit");
  }
  return true;
}

bool has_bnb_state(const Checkpoint& checkpoint, const std::string& name) {
  if (checkpoint.find(name + ".quant_state.bitsandbytes__fp4")) {
    fail(Fault::input, "tensor \"{}\" is stored as fp4, which is not supported", name);
  }
  return static_cast<bool>(checkpoint.find(name + kNf4State));
}

BnbState read_bnb_state(const Checkpoint& checkpoint, const std::string& name, std::int64_t rows,
                        std::int64_t cols, std::set<std::string>& used) {
  const Checkpoint::Found text = checkpoint.at(name + kNf4State);
  if (text.tensor->type != TensorType::u8 || text.tensor->bytes > 65536) {
    fail(Fault::input, "{}: not a short text of bytes", where(text));
  }
  used.insert(text.tensor->name);
  const std::string origin = where(text);
  const Json json = parse_json(text.file->read(*text.tensor), origin);
  BnbState state;
  if (json_get<std::string>(json, "quant_type", origin) != "nf4") {
    fail(Fault::input, "{}: quant_type is not nf4", origin);
  }
  if (json_get<std::int64_t>(json, "blocksize", origin) != kNf4Block) {
    fail(Fault::input, "{}: blocksize {}; only {} is supported", origin, json["blocksize"].dump(),
         kNf4Block);
  }
  state.dtype = json_get<std::string>(json, "dtype", origin);
  if (json.value("shape", Json()) != Json{rows, cols}) {
    fail(Fault::input, "{}: shape {}, expected [{},{}]", origin, json.value("shape", Json()).dump(),
         rows, cols);
  }
  const std::int64_t n = rows * cols;
  state.codes = checkpoint.at(name);
  const TensorType storage = state.codes.tensor->type;
  const bool known_storage = storage == TensorType::u8 || storage == TensorType::bf16 ||
                             storage == TensorType::f16 || storage == TensorType::f32;
  if (!known_storage ||
      state.codes.tensor->bytes != static_cast<std::uint64_t>(nf4_code_bytes(n))) {
    fail(Fault::input, "{}: {} {}, expected {} bytes of codes", where(state.codes),
         name_of(storage), state.codes.tensor->shape_text(), nf4_code_bytes(n));
  }
  used.insert(name);
  require_map(checkpoint, name + ".quant_map", nf4_values(), used);
  state.double_quantised = json.contains("nested_blocksize");
  state.absmax =
      part(checkpoint, name + ".absmax", state.double_quantised ? TensorType::u8 : TensorType::f32,
           nf4_blocks(n), used);
  if (!state.double_quantised) return state;
  if (json_get<std::int64_t>(json, "nested_blocksize", origin) != kNf4NestedBlock) {
    fail(Fault::input, "{}: nested_blocksize {}; only {} is supported", origin,
         json["nested_blocksize"].dump(), kNf4NestedBlock);
  }
  if (json.value("nested_dtype", Json("float32")) != "float32") {
    fail(Fault::input, "{}: nested_dtype is not float32", origin);
  }
  state.nested_offset = static_cast<float>(json_get<double>(json, "nested_offset", origin));
  if (!std::isfinite(state.nested_offset)) {
    fail(Fault::input, "{}: nested_offset is not finite", origin);
  }
  require_map(checkpoint, name + ".nested_quant_map", nf4_dynamic_map(), used);
  state.nested_absmax =
      part(checkpoint, name + ".nested_absmax", TensorType::f32, nf4_nested_blocks(n), used);
  return state;
}

}  // namespace poros
