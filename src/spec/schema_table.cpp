// SPDX-License-Identifier: Apache-2.0
// The table. A new key is one line here and one member in spec.hpp.
#include <limits>

#include "spec/fields.hpp"

namespace poros {
namespace {

constexpr double kMaxSeed = std::numeric_limits<std::uint32_t>::max();
constexpr double kMonth = 30 * 86400.0;  // [s]

}  // namespace

template <>
const std::vector<Field<BenchmarkSpec>>& fields() {
  using S = BenchmarkSpec;
  static const std::vector<Field<S>> table = {
      {"spec_id",
       &S::spec_id,
       {.form = TextForm::id, .required = true},
       "",
       "Name of the campaign: letters, digits, '.', '_', '-'; at most 64."},
      {"protocol",
       &S::protocol,
       {.choices = {"shared", "native"}},
       "",
       "shared: every arm does the same work; native: the libraries' arms reuse one synthetic "
       "batch "
       "with a bare AdamW (docs/measuring.md)."},
      {"parity",
       &S::parity,
       {.choices = {"auto", "off"}, .counts = false},
       "",
       "auto: one extra untimed pass an arm where poros and resident are both in the spec."},
      {"device",
       &S::device,
       {.choices = {"cuda", "cpu"}},
       "",
       "Where cells run; on cpu the GPU type is only a label."},
      {"methods",
       &S::methods,
       {.choices = all_methods()},
       "",
       "Arms, in the order in which they are shown."},
      {"precisions",
       &S::precisions,
       {.choices = {"nf4", "bf16", "fp16"}},
       "",
       "Storage of the frozen base."},
  };
  return table;
}

template <>
const std::vector<Field<HardwareSpec>>& fields() {
  using S = HardwareSpec;
  static const std::vector<Field<S>> table = {
      {"gpu_name", &S::gpu_name, {}, "", "GPU model that must be found, e.g. NVIDIA B300."},
      {"vram_gb",
       &S::vram_gb,
       {.min = 0, .max = 1e5, .counts = false},
       "10^9 bytes",
       "Nominal memory of the card; a label. 0: not given."},
      {"pcie_gen",
       &S::pcie_gen,
       {.min = 1, .max = 9, .counts = false},
       "",
       "PCIe generation of the slot; a label beside the one that is read."},
      {"vram_cap_mb",
       &S::vram_cap_mb,
       {.min = 1, .max = 1e9},
       "2^20 bytes",
       "Allocator limit for all arms, to imitate a smaller card; records say capped."},
  };
  return table;
}

template <>
const std::vector<Field<ModelSpec>>& fields() {
  using S = ModelSpec;
  static const std::vector<Field<S>> table = {
      {"model_id",
       &S::model_id,
       {.form = TextForm::model, .required = true},
       "",
       "Hub id (org/name), or a path that begins with /, ./ or ../, seen from the spec's folder."},
      {"display_name",
       &S::display_name,
       {.counts = false},
       "",
       "Name in reports; a label. Default: the last part of model_id."},
      {"param_count_b",
       &S::param_count_b,
       {.min = 0, .max = 1e6, .above_min = true, .counts = false},
       "10^9",
       "Number of parameters; a label."},
      {"revision",
       &S::revision,
       {.form = TextForm::revision},
       "",
       "Branch, tag or commit of a hub checkpoint."},
      {"weights",
       &S::weights,
       {.choices = {"pretrained", "synthetic"}},
       "",
       "synthetic: the model's real shapes filled with seeded numbers; records say so."},
  };
  return table;
}

template <>
const std::vector<Field<TrainingSpec>>& fields() {
  using S = TrainingSpec;
  static const std::vector<Field<S>> table = {
      {"steps",
       &S::steps,
       {.min = 1, .max = 1e8},
       "optimizer steps",
       "Length of a pass; more than warmup_steps."},
      {"seq_len", &S::seq_len, {.min = 2, .max = 1048576}, "tokens", "Length of a row."},
      {"batch_size", &S::batch_size, {.min = 1, .max = 65536}, "rows", "Rows of a micro-batch."},
      {"gradient_accumulation_steps",
       &S::gradient_accumulation_steps,
       {.min = 1, .max = 65536},
       "micro-batches",
       "Micro-batches of an optimizer step."},
      {"seed",
       &S::seed,
       {.min = 0, .max = kMaxSeed},
       "",
       "Of the data order, the initial adapter and dropout."},
      {"warmup_steps",
       &S::warmup_steps,
       {.min = 0, .max = 1e8},
       "optimizer steps",
       "First steps that are trained but left out of timing."},
      {"n_passes",
       &S::n_passes,
       {.min = 1, .max = 1000, .counts = false},
       "passes",
       "Fresh processes that run each cell; the median over them is reported."},
      {"compute_dtype",
       &S::compute_dtype,
       {.choices = {"auto", "bf16", "fp32"}},
       "",
       "auto: bf16 on CUDA, fp32 on the CPU; the same for every arm."},
      {"packing", &S::packing, {}, "", "Put several documents in one row."},
      {"learning_rate",
       &S::learning_rate,
       {.min = 0, .above_min = true},
       "",
       "Peak learning rate of AdamW."},
      {"lr_scheduler",
       &S::lr_scheduler,
       {.choices = {"constant", "cosine", "linear"}},
       "",
       "After the warm-up: stay, or fall to 0 along a cosine or a line."},
      {"lr_warmup_steps",
       &S::lr_warmup_steps,
       {.min = 0, .max = 1e8},
       "optimizer steps",
       "Steps in which the learning rate rises linearly."},
      {"max_grad_norm",
       &S::max_grad_norm,
       {.min = 0},
       "",
       "Global gradient norm above which gradients are scaled down; 0: never."},
      {"weight_decay", &S::weight_decay, {.min = 0, .max = 1}, "", "Decoupled decay of AdamW."},
  };
  return table;
}

template <>
const std::vector<Field<DatasetSpec>>& fields() {
  using S = DatasetSpec;
  static const std::vector<Field<S>> table = {
      {"source",
       &S::source,
       {.form = TextForm::dataset},
       "",
       "synthetic, a hub id (org/name), or a path that begins with /, ./ or ../."},
      {"format",
       &S::format,
       {.choices = {"auto", "jsonl", "text", "csv", "parquet"}},
       "",
       "Of a local file; auto: by the end of its name."},
      {"text_field", &S::text_field, {}, "", "Field that holds a document where rows are text."},
      {"rows",
       &S::rows,
       {.choices = {"auto", "messages", "instruction", "prompt", "text"}},
       "",
       "What a record is; auto: seen from the keys of the first one, and the same for all."},
      {"loss_on",
       &S::loss_on,
       {.choices = {"responses", "last", "all"}},
       "",
       "Tokens that are learnt: the answers, the last answer, or all. Plain text: always all."},
      {"too_long",
       &S::too_long,
       {.choices = {"auto", "split", "truncate", "drop"}},
       "",
       "A document longer than seq_len; auto: text is split into documents, the rest truncated."},
      {"shuffle", &S::shuffle, {}, "", "Order by the seed; false: the order of the file."},
      {"split", &S::split, {}, "", "Split of a hub dataset."},
      {"chat_template",
       &S::chat_template,
       {},
       "",
       "Path of a Jinja file that takes the place of the model's chat template."},
      {"validation_fraction",
       &S::validation_fraction,
       {.min = 0, .max = 1, .below_max = true},
       "",
       "Share of the documents that is kept apart to evaluate on."},
      {"validation",
       &S::validation,
       {},
       "",
       "Documents to evaluate on: a path that begins with /, ./ or ../, or a hub dataset's split."},
  };
  return table;
}

template <>
const std::vector<Field<LoraSpec>>& fields() {
  using S = LoraSpec;
  static const std::vector<Field<S>> table = {
      {"rank", &S::rank, {.min = 1, .max = 65536}, "", "Rank r of the adapters."},
      {"alpha", &S::alpha, {.min = 0, .above_min = true}, "", "Scale is alpha / rank."},
      {"dropout",
       &S::dropout,
       {.min = 0, .max = 1, .below_max = true},
       "",
       "Probability with which an adapter's input is zeroed."},
      {"target_modules",
       &S::target_modules,
       {.form = TextForm::module, .keyword = "all-linear"},
       "",
       "Linear layers that get an adapter, by the last part of their names."},
      {"use_rslora", &S::use_rslora, {}, "", "Scale is alpha / sqrt(rank) instead."},
      {"rank_pattern",
       &S::rank_pattern,
       {.min = 1, .max = 65536, .form = TextForm::module},
       "",
       "Other ranks for some layers: name or pattern to rank, as in PEFT."},
      {"alpha_pattern",
       &S::alpha_pattern,
       {.min = 0, .above_min = true, .form = TextForm::module},
       "",
       "Other alphas for some layers: name or pattern to alpha, as in PEFT."},
  };
  return table;
}

template <>
const std::vector<Field<PorosSpec>>& fields() {
  using S = PorosSpec;
  static const std::vector<Field<S>> table = {
      {"block_size",
       &S::block_size,
       {.min = 1, .max = 65536},
       "decoder layers",
       "Consecutive layers that are moved together."},
      {"enable_prefetch",
       &S::enable_prefetch,
       {},
       "",
       "Copy the next block while the present one is computed."},
      {"accumulation",
       &S::accumulation,
       {.choices = {"block_major", "micro_major"}},
       "",
       "block_major: a sweep of micro-batches passes through a block before the next is touched."},
      {"sweep_rows",
       &S::sweep_rows,
       {.min = 1, .max = 1e9},
       "tokens",
       "Most tokens of a sweep. Not set: max(4096, one micro-batch)."},
      {"layer_inputs",
       &S::layer_inputs,
       {.choices = {"auto", "host", "device"}},
       "",
       "Where layer inputs wait for the backward. auto: host for poros, device for resident."},
      {"vram_budget_mb",
       &S::vram_budget_mb,
       {.min = 1, .max = 1e8},
       "2^20 bytes",
       "Keep as many blocks resident as fit into this."},
      {"lean", &S::lean, {.later = true}, "", "Smallest footprint."},
      {"plan_file", &S::plan_file, {.later = true}, "", "Tuned GEMM plan."},
  };
  return table;
}

template <>
const std::vector<Field<PeerSpec>>& fields() {
  using S = PeerSpec;
  static const std::vector<Field<S>> table = {
      {"gradient_checkpointing",
       &S::gradient_checkpointing,
       {},
       "",
       "Recompute activations in the backward."},
      {"attn_implementation",
       &S::attn_implementation,
       {.choices = {"auto", "eager", "sdpa", "flash_attention_2"}},
       "",
       "Attention of the library; auto: the library's own choice."},
      {"best_shape",
       &S::best_shape,
       {},
       "",
       "One more cell: the same rows a step as one micro-batch, without accumulation."},
      {"offload_fraction",
       &S::offload_fraction,
       {.min = 0, .max = 1, .above_min = true},
       "",
       "Part of the decoder layers whose weights wait in host memory (accelerate_offload)."},
  };
  return table;
}

template <>
const std::vector<Field<TimeoutSpec>>& fields() {
  using S = TimeoutSpec;
  static const std::vector<Field<S>> table = {
      {"load",
       &S::load_s,
       {.min = 0, .max = kMonth, .above_min = true, .counts = false, .duration = true},
       "duration",
       "From the start of a process to its first step."},
      {"step",
       &S::step_s,
       {.min = 0, .max = kMonth, .above_min = true, .counts = false, .duration = true},
       "duration",
       "One optimizer step."},
      {"cell",
       &S::cell_s,
       {.min = 0, .max = kMonth, .above_min = true, .counts = false, .duration = true},
       "duration",
       "One pass of a cell."},
  };
  return table;
}

template <>
const std::vector<Field<ReportingSpec>>& fields() {
  using S = ReportingSpec;
  static const std::vector<Field<S>> table = {
      {"output_dir",
       &S::output_dir,
       {.counts = false},
       "",
       "Campaign folder, seen from the current folder; --output-dir goes before it."},
      {"html", &S::html, {.counts = false}, "", "Write report.html."},
      {"markdown", &S::markdown, {.counts = false}, "", "Write report.md."},
      {"emit_json", &S::emit_json, {.counts = false}, "", "Write the JSON file of each cell."},
  };
  return table;
}

const std::vector<std::string>& all_methods() {
  static const std::vector<std::string> methods = {"poros", "resident", "unsloth", "peft",
                                                   "accelerate_offload"};
  return methods;
}

const std::vector<std::string>& peer_methods() {
  static const std::vector<std::string> methods = {"peft", "unsloth", "accelerate_offload"};
  return methods;
}

const RefusedKey* find_refused_key(const std::string& path) {
  static const std::string recorded = "is read from the machine and recorded; leave it out";
  static const std::string later = "is not available yet; leave it out";
  static const std::vector<RefusedKey> table = {
      {"hardware.driver_version", recorded},
      {"hardware.cuda_version", recorded},
      {"hardware.torch_version", recorded},
      {"hardware.gpu_uuid", recorded},
      {"poros.fused_lora",
       "means nothing here: LoRA is fused where it pays, the same for every run; leave it out"},
      {"poros.deterministic", "means nothing here: every run is deterministic; leave it out"},
      {"poros.entrypoint", "means nothing here: there is one trainer; leave it out"},
      {"poros.attn_implementation",
       "means nothing here: the trainer has its own attention; for the libraries there is "
       "peers.<method>.attn_implementation"},
      {"exclusive_host", "is a flag of the command: poros bench matrix --exclusive-host"},
      {"gpus_per_cell", later},
      {"entrypoint", "means nothing here: there is one trainer; leave it out"},
      {"quantization", "is named precisions here: a list such as [nf4]"},
      {"output_dir", "is named reporting.output_dir here"},
      {"dataset", "is named training.dataset here"},
  };
  for (const RefusedKey& key : table) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

}  // namespace poros
