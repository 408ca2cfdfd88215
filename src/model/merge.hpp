// SPDX-License-Identifier: Apache-2.0
// A model with its adapter merged in: a checkpoint like any other, which every loader of such
// checkpoints takes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace poros {

struct MergeOptions {
  std::filesystem::path model_dir, adapter_dir;
  std::filesystem::path out_dir;  // must not be there, or be an empty folder
  /// What the adapter is added to: "checkpoint", the values of the files (NF4 ones dequantised), or
  /// "nf4", those that QLoRA trained on: the linears as NF4 with double quantisation holds them.
  std::string base = "checkpoint";
  /// bf16 | fp16 | fp32; empty: each tensor as it is stored, dequantised ones as the embedding.
  std::string dtype;
  std::uint64_t max_shard_bytes = 5'000'000'000;
  std::filesystem::path cache_dir;  // of quantised bases; empty: default_cache_folder()
  int threads = 0;                  // 0: one a core. Never changes a byte.
};

struct MergeReport {
  std::int64_t tensors = 0, merged = 0, dequantised = 0;
  std::uint64_t bytes = 0;  // of all tensors
  std::int64_t shards = 0;  // files that hold them
  std::string dtype;        // of the embedding
  std::string adapter_sha256;
};

/// Writes the checkpoint's tensors under their own names and shapes (fused projections, experts,
/// parts that are not text as they are), W + scale * B A in place of each adapted W: summed in
/// fp32, rounded once. Tensors that aren't adapted keep their bytes unless `dtype` asks for others.
/// config.json loses quantization_config where something was dequantised and names the new dtype;
/// tokenizer files and generation_config.json are copied. Made in a hidden folder beside out_dir,
/// synced and renamed: there is the whole of it or nothing. Memory: one layer of NF4, the adapter
/// and a few MiB a thread.
/// @param progress told of each tensor: done, of how many
/// @throws Error(Fault::input) for what doesn't fit together, Error(Fault::io) (disk full)
MergeReport merge_adapter(const MergeOptions& options,
                          const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace poros
