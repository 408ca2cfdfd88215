// SPDX-License-Identifier: Apache-2.0
// What a person writes: the benchmark spec, after validation. The one schema table
// (spec/schema.cpp) says for each key its type, default, range, text and since which work it
// counts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace poros {

struct HardwareSpec {
  std::string gpu_name = "unknown";
  double vram_gb = 0;  // [10^9 bytes], the card's nominal size
  std::optional<std::int64_t> pcie_gen;
  std::optional<std::int64_t> vram_cap_mb;  // [2^20 bytes] allocator limit for all arms
};

struct ModelSpec {
  std::string model_id;  // hub id "org/name", or a path that begins with "/", "./" or "../"
  std::string display_name;
  std::optional<double> param_count_b;  // [10^9 parameters]
  std::string revision = "main";
  std::string weights = "pretrained";  // pretrained | synthetic
  std::string path;  // set by the reader: absolute checkpoint folder; empty for a hub id
};

struct DatasetSpec {
  std::string source = "synthetic";  // "synthetic", a hub id, or a path
  std::string format = "auto";       // auto | jsonl | text | csv | parquet
  std::string text_field = "text";
  std::string rows = "auto";          // auto (by the keys) | messages | instruction | prompt | text
  std::string loss_on = "responses";  // responses | last | all
  std::string too_long = "auto";      // auto | split | truncate | drop
  bool shuffle = true;
  std::string split = "train";     // of a hub dataset
  std::string chat_template;       // a path; empty: the model's own
  double validation_fraction = 0;  // of the documents
  std::string validation;          // a path, or another split of the hub dataset; empty: none
  // Set by the reader: absolute; empty for "synthetic", a hub id and a split.
  std::string path, validation_path, chat_template_path;
};

struct TrainingSpec {
  std::int64_t steps = 200;
  std::int64_t seq_len = 512;  // [tokens]
  std::int64_t batch_size = 1;
  std::int64_t gradient_accumulation_steps = 8;
  DatasetSpec dataset;
  std::int64_t seed = 42;
  std::int64_t warmup_steps = 5;  // steps left out of timing
  std::int64_t n_passes = 3;
  std::string compute_dtype = "auto";  // auto (bf16 on CUDA, fp32 on the CPU) | bf16 | fp32
  bool packing = false;
  double learning_rate = 2e-5;
  std::string lr_scheduler = "cosine";  // constant | cosine | linear
  std::int64_t lr_warmup_steps = 0;
  double max_grad_norm = 1.0;
  double weight_decay = 0.01;
  // AdamW's remaining settings are fixed for every arm: beta 0.9, 0.999, epsilon 1e-8.
};

struct LoraSpec {
  std::int64_t rank = 16;
  double alpha = 32;
  double dropout = 0.05;
  std::vector<std::string>
      target_modules;  // empty: all linear layers of the decoder ("all-linear")
  bool use_rslora = false;
  std::map<std::string, std::int64_t> rank_pattern;
  std::map<std::string, double> alpha_pattern;
};

struct PorosSpec {
  std::int64_t block_size = 4;  // [decoder layers]
  bool enable_prefetch = true;
  std::string accumulation = "block_major";  // block_major | micro_major
  std::optional<std::int64_t> sweep_rows;    // [tokens] default max(4096, one micro-batch)
  std::string layer_inputs = "auto";  // auto (host for poros, device for resident) | host | device
  std::optional<std::int64_t> vram_budget_mb;
  bool lean = false;
  std::string plan_file;
};

struct PeerSpec {
  bool gradient_checkpointing = true;
  std::string attn_implementation = "auto";
  bool best_shape = false;
  std::optional<double> offload_fraction;
};

struct TimeoutSpec {
  double load_s = 1800;
  double step_s = 600;
  double cell_s = 7200;
};

struct ReportingSpec {
  std::string output_dir = "./bench_output";
  bool html = true;
  bool markdown = true;
  bool emit_json = true;
};

/// A rule of a matrix: settings of the cells that match (spec/matrix.hpp has the names).
struct MatrixRule {
  std::map<std::string, Json> match, set;
};

/// What a spec has beside the product of its lists. Applied in this order.
struct MatrixSpec {
  std::map<std::string, std::vector<Json>> sweep;    // every combination of these values
  std::vector<MatrixRule> include;                   // one more cell for each that matches
  std::vector<MatrixRule> overrides;                 // of the cells that match
  std::vector<std::map<std::string, Json>> exclude;  // cells that are left out
};

/// poros, resident, unsloth, peft, accelerate_offload.
[[nodiscard]] const std::vector<std::string>& all_methods();

struct BenchmarkSpec {
  std::string file;  // set by the reader: the spec file as it was named
  std::string spec_id;
  std::string protocol = "shared";           // shared | native
  std::string parity = "auto";               // auto | off
  std::string device = "cuda";               // cuda | cpu
  HardwareSpec hardware;                     // of a matrix: the first
  std::vector<HardwareSpec> hardware_types;  // of a matrix, two or more; else empty
  std::vector<ModelSpec> models;
  std::vector<std::string> methods = all_methods();
  std::vector<std::string> precisions = {"nf4"};
  TrainingSpec training;
  LoraSpec lora;
  PorosSpec poros;
  std::map<std::string, PeerSpec> peers;  // by method; all three after reading
  MatrixSpec matrix;
  TimeoutSpec timeouts;
  ReportingSpec reporting;
};

}  // namespace poros
