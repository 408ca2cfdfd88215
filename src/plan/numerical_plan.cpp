// SPDX-License-Identifier: Apache-2.0
#include "plan/numerical_plan.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/sha256.hpp"
#include "kernels/cross_entropy.hpp"

namespace poros {
namespace {

constexpr std::int64_t kPlanVersion = 2;
constexpr std::int64_t kRowGranule = 64;          // rows are padded to a multiple of this
constexpr std::int64_t kRowCounts = 8;            // at most so many different row counts
constexpr std::int64_t kDefaultSweepRows = 4096;  // GEMMs gain little from more rows
constexpr std::int64_t kGradientGroupRows = 512;
constexpr std::int64_t kExpertRowGranule = 32;
constexpr std::int64_t kCpuQueryBlock = 128;
// Logits of one vocabulary chunk, rows x classes: small enough to stay in a CPU's outer cache, and
// large enough for a GPU's matrix unit.
constexpr std::int64_t kCpuLogits = std::int64_t{1} << 22;
constexpr std::int64_t kCudaLogits = std::int64_t{1} << 24;
constexpr std::int64_t kLeastChunk = 512, kMostChunk = 8192;
static_assert(kCudaLogits / kDefaultSweepRows == kCrossEntropyInPlace);
constexpr std::int64_t kCudaGemmWorkspace = std::int64_t{32}
                                            << 20;  // what NVIDIA advises from
                                                    // Hopper on; more gains nothing

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

ComputeType compute_type(const std::string& name, const DeviceModel& device) {
  if (name == "fp32") return ComputeType::fp32;
  if (name == "bf16") return ComputeType::bf16;
  if (name == "auto") return device.cuda ? ComputeType::bf16 : ComputeType::fp32;
  fail(Fault::input, "training.compute_dtype: \"{}\" is not auto, bf16 or fp32", name);
}

const char* name_of(AttentionPath path) {
  return path == AttentionPath::flash ? "flash" : "blocked";
}

/// What flash attention covers: bf16 on CUDA, no soft-cap, head_dim a multiple of 8 up to 256.
AttentionPath attention_path(const AttentionShape& shape, const NumericalPlan& plan) {
  const bool covered = plan.device.cuda && plan.compute == ComputeType::bf16 &&
                       shape.softcap == 0 && shape.head_dim % 8 == 0 && shape.head_dim <= 256;
  return covered ? AttentionPath::flash : AttentionPath::blocked;
}

void plan_sweeps(NumericalPlan& plan, const PorosSpec& poros) {
  const std::int64_t micro_rows = plan.batch_size * plan.seq_len;
  const std::int64_t limit = poros.sweep_rows.value_or(std::max(kDefaultSweepRows, micro_rows));
  if (limit < micro_rows) {
    fail(Fault::input,
         "poros.sweep_rows: {} holds not even one micro-batch (batch_size {} x seq_len {} = {} "
         "tokens); give at least that many",
         limit, plan.batch_size, plan.seq_len, micro_rows);
  }
  plan.block_major = poros.accumulation == "block_major";
  plan.micro_batches_per_sweep =
      plan.block_major ? std::min(plan.micro_batches, limit / micro_rows) : 1;
  plan.sweeps =
      (plan.micro_batches + plan.micro_batches_per_sweep - 1) / plan.micro_batches_per_sweep;
  const std::int64_t capacity = round_up(plan.micro_batches_per_sweep * micro_rows, kRowGranule);
  const std::int64_t spacing = round_up((capacity + kRowCounts - 1) / kRowCounts, kRowGranule);
  for (std::int64_t rows = spacing; rows < capacity; rows += spacing) {
    plan.row_counts.push_back(rows);
  }
  plan.row_counts.push_back(capacity);
}

}  // namespace

const char* name_of(ComputeType type) {
  return type == ComputeType::bf16 ? "bf16" : "fp32";
}

std::int64_t bytes_of(ComputeType type) {
  return type == ComputeType::bf16 ? 2 : 4;
}

DeviceModel cpu_device_model(int threads) {
  if (threads < 1) fail(Fault::input, "threads: {} is not at least 1", threads);
  DeviceModel device;
  device.threads = threads;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    device.instruction_set = "avx512";
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    device.instruction_set = "avx2";
  } else {
    device.instruction_set = "baseline";
  }
  return device;
}

std::int64_t NumericalPlan::padded_rows(std::int64_t tokens) const {
  const auto found = std::lower_bound(row_counts.begin(), row_counts.end(), tokens);
  if (found == row_counts.end()) {
    fail(Fault::run, "{} tokens in a sweep that the plan gave {} rows", tokens, row_capacity());
  }
  return *found;
}

NumericalPlan make_numerical_plan(const Architecture& architecture, const TrainingSpec& training,
                                  const LoraSpec& lora, const PorosSpec& poros,
                                  const DeviceModel& device) {
  if (training.seq_len < 1 || training.batch_size < 1 || training.gradient_accumulation_steps < 1) {
    fail(Fault::input,
         "training: seq_len, batch_size and gradient_accumulation_steps must be at "
         "least 1");
  }
  if (training.seq_len > architecture.max_positions) {
    fail(Fault::input,
         "training.seq_len: {} is more than the {} positions that the model was made "
         "for",
         training.seq_len, architecture.max_positions);
  }
  if (!(lora.dropout >= 0 && lora.dropout < 1)) {
    fail(Fault::input, "lora.dropout: {} is not in [0, 1)", lora.dropout);
  }
  NumericalPlan plan;
  plan.device = device;
  plan.compute = compute_type(training.compute_dtype, device);
  plan.model_type = architecture.model_type;
  plan.layers = architecture.layer_count();
  plan.hidden = architecture.hidden;
  plan.vocab = architecture.vocab;
  plan.seq_len = training.seq_len;
  plan.batch_size = training.batch_size;
  plan.micro_batches = training.gradient_accumulation_steps;
  plan_sweeps(plan, poros);

  const std::int64_t logits = device.cuda ? kCudaLogits : kCpuLogits;
  const std::int64_t most = device.cuda ? kCrossEntropyInPlace : kMostChunk;
  const std::int64_t chunk =
      std::clamp(logits / plan.row_capacity() / 256 * 256, kLeastChunk, most);
  plan.vocabulary_chunk = std::min(chunk, round_up(architecture.vocab, 16));
  // A GPU's matrix unit sums up a whole sweep in one launch; on the CPU short sums are more exact.
  plan.gradient_group_rows = device.cuda ? plan.row_capacity() : kGradientGroupRows;
  plan.query_block = kCpuQueryBlock;
  plan.dropout = static_cast<float>(lora.dropout);
  plan.seed = static_cast<std::uint64_t>(training.seed);
  for (const LayerShape& layer : architecture.layers) {
    plan.attention.push_back(attention_path(layer.attention, plan));
    if (layer.mlp.experts > 0) plan.expert_row_granule = kExpertRowGranule;
  }
  if (device.cuda) {
    plan.document_slots = plan.micro_batches_per_sweep * plan.batch_size;
    plan.gemm_workspace_bytes = kCudaGemmWorkspace;
  }
  return plan;
}

Json to_json(const NumericalPlan& plan) {
  Json attention = Json::array();
  for (const AttentionPath path : plan.attention) attention.push_back(name_of(path));
  Json device = {{"kind", plan.device.cuda ? "cuda" : "cpu"}, {"name", plan.device.name}};
  if (!plan.device.cuda) {
    device["instruction_set"] = plan.device.instruction_set;
    device["threads"] = plan.device.threads;
  }
  Json json = {{"v", kPlanVersion},
               {"device", device},
               {"compute_dtype", name_of(plan.compute)},
               {"model_type", plan.model_type},
               {"layers", plan.layers},
               {"hidden", plan.hidden},
               {"vocab", plan.vocab},
               {"seq_len", plan.seq_len},
               {"batch_size", plan.batch_size},
               {"micro_batches", plan.micro_batches},
               {"accumulation", plan.block_major ? "block_major" : "micro_major"},
               {"micro_batches_per_sweep", plan.micro_batches_per_sweep},
               {"sweeps", plan.sweeps},
               {"row_counts", plan.row_counts},
               {"vocabulary_chunk", plan.vocabulary_chunk},
               {"gradient_group_rows", plan.gradient_group_rows},
               {"query_block", plan.query_block},
               {"attention", attention},
               {"alignment", plan.alignment},
               {"dropout", plan.dropout},
               {"seed", plan.seed}};
  if (plan.expert_row_granule > 0) json["expert_row_granule"] = plan.expert_row_granule;
  if (plan.device.cuda) {
    json["device"]["multiprocessors"] = plan.device.multiprocessors;
    json["document_slots"] = plan.document_slots;
    json["gemm_workspace_bytes"] = plan.gemm_workspace_bytes;
  }
  return json;
}

std::string plan_hash(const NumericalPlan& plan) {
  return sha256_hex(dump_json(to_json(plan)));
}

}  // namespace poros
