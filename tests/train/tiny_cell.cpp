// SPDX-License-Identifier: Apache-2.0
#include "tiny_cell.hpp"

#include <utility>
#include <vector>

#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "kernels/dtype.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "model/safetensors.hpp"
#include "model/token_file.hpp"
#include "train/arm/run_request.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kIntermediate = 128, kKvWidth = 32;

/// Numbers in [-1, 1) from a linear congruential generator: the same on every machine.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  float next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<float>(state_ >> 40) / 8388608.0F - 1.0F;
  }

 private:
  std::uint64_t state_;
};

TensorToWrite bf16_tensor(const std::string& name, std::vector<std::int64_t> shape, float middle,
                          float width, Numbers& numbers) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  std::vector<std::uint16_t> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(to_bf16(middle + width * numbers.next()).bits);
  }
  TensorToWrite tensor;
  tensor.name = name;
  tensor.type = TensorType::bf16;
  tensor.shape = std::move(shape);
  tensor.write = [values](const TensorToWrite::Sink& sink) {
    sink(values.data(), values.size() * sizeof(std::uint16_t));
  };
  return tensor;
}

void write_model(const fs::path& folder) {
  fs::create_directories(folder);
  const Json config{{"architectures", {"Qwen2ForCausalLM"}},
                    {"model_type", "qwen2"},
                    {"dtype", "bfloat16"},
                    {"hidden_act", "silu"},
                    {"hidden_size", TinyCell::kHidden},
                    {"intermediate_size", kIntermediate},
                    {"max_position_embeddings", 1 << 21},
                    {"num_attention_heads", 4},
                    {"num_key_value_heads", 2},
                    {"num_hidden_layers", TinyCell::kLayers},
                    {"rms_norm_eps", 1e-6},
                    {"rope_parameters", {{"rope_theta", 10000.0}, {"rope_type", "default"}}},
                    {"tie_word_embeddings", false},
                    {"use_sliding_window", false},
                    {"vocab_size", TinyCell::kVocab}};
  write_file_durably(folder / "config.json", dump_json(config, 2) + "\n");
  Numbers numbers(7);
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, float middle,
                       float width) {
    tensors.push_back(bf16_tensor(name, std::move(shape), middle, width, numbers));
  };
  constexpr std::int64_t h = TinyCell::kHidden;
  add("model.embed_tokens.weight", {TinyCell::kVocab, h}, 0, 1.0F);
  add("lm_head.weight", {TinyCell::kVocab, h}, 0, 0.2F);
  add("model.norm.weight", {h}, 1, 0.1F);
  for (std::int64_t layer = 0; layer < TinyCell::kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {h}, 1, 0.1F);
    add(prefix + "post_attention_layernorm.weight", {h}, 1, 0.1F);
    add(prefix + "self_attn.q_proj.weight", {h, h}, 0, 0.15F);
    add(prefix + "self_attn.q_proj.bias", {h}, 0, 0.1F);
    add(prefix + "self_attn.k_proj.weight", {kKvWidth, h}, 0, 0.15F);
    add(prefix + "self_attn.k_proj.bias", {kKvWidth}, 0, 0.1F);
    add(prefix + "self_attn.v_proj.weight", {kKvWidth, h}, 0, 0.15F);
    add(prefix + "self_attn.v_proj.bias", {kKvWidth}, 0, 0.1F);
    add(prefix + "self_attn.o_proj.weight", {h, h}, 0, 0.15F);
    add(prefix + "mlp.gate_proj.weight", {kIntermediate, h}, 0, 0.15F);
    add(prefix + "mlp.up_proj.weight", {kIntermediate, h}, 0, 0.15F);
    add(prefix + "mlp.down_proj.weight", {h, kIntermediate}, 0, 0.15F);
  }
  write_safetensors(folder / "model.safetensors", std::move(tensors));
}

/// Every token follows from the one before it, so that there is something to learn; rows hold two
/// documents, and some end in padding.
fs::path write_tokens(const fs::path& folder) {
  TokenFile tokens;
  tokens.seq_len = TinyCell::kSeqLen;
  tokens.rows = TinyCell::kRows;
  tokens.vocab = TinyCell::kVocab;
  tokens.note = "{}";
  for (std::int64_t row = 0; row < tokens.rows; ++row) {
    auto id = static_cast<std::uint32_t>(11 * row % TinyCell::kVocab);
    for (std::int64_t i = 0; i < tokens.seq_len; ++i) {
      const bool start = i == 0 || i == 20;
      const bool padding = row % 4 == 3 && i >= 28;
      tokens.ids.push_back(padding ? 0 : id);
      tokens.flags.push_back(padding ? TokenFile::kPadding
                             : start ? TokenFile::kDocumentStart
                                     : TokenFile::kSupervised);
      id = (id * 5 + 3) % TinyCell::kVocab;
    }
  }
  const fs::path path = folder / "tiny.tokens";
  write_file_durably(path, token_file_bytes(tokens));
  return path;
}

}  // namespace

TinyCell::TinyCell() {
  std::string name = (fs::temp_directory_path() / "poros_tiny_cell.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail_errno(Fault::io, name);
  folder_ = name;
  write_model(folder_ / "model");
  write_tokens(folder_);
}

TinyCell::~TinyCell() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

CellRequest TinyCell::request(const std::string& method, std::int64_t steps) {
  CellRequest request;
  CellSpec& cell = request.cell;
  cell.method = method;
  cell.model.model_id = (folder_ / "model").string();
  cell.model.display_name = "tiny";
  cell.device = "cpu";
  cell.training.steps = steps;
  cell.training.seq_len = kSeqLen;
  cell.training.batch_size = 1;
  cell.training.gradient_accumulation_steps = 4;
  cell.training.warmup_steps = 1;
  cell.training.learning_rate = 1e-2;
  cell.lora.rank = 4;
  cell.lora.alpha = 8;
  cell.lora.dropout = 0;
  cell.poros.block_size = 1;
  request.model_dir = folder_ / "model";
  request.tokens_path = folder_ / "tiny.tokens";
  request.cache_dir = folder_ / "cache";
  request.threads = 1;
  return request;
}

void TinyCell::finish(CellRequest& request) {
  const Architecture architecture = read_architecture(read_model_config(request.model_dir));
  request.adapter_dir = folder_ / ("adapter" + std::to_string(results_));
  write_adapter(request.adapter_dir, initial_adapter(architecture, request.cell.lora, "tiny", 42));
  request.cell_key = cell_key(request.cell);
  request.result_path = folder_ / ("result" + std::to_string(results_++) + ".json");
}

PassRecord TinyCell::record_of(const CellRequest& request) {
  const std::string origin = request.result_path.string();
  return pass_record_from_json(parse_json(read_file(request.result_path), origin), origin);
}

PassRecord TinyCell::run(CellRequest& request) {
  finish(request);
  run_request(request, [] { return false; });
  return record_of(request);
}

}  // namespace poros
