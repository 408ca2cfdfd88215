// SPDX-License-Identifier: Apache-2.0
#include "plan/step_buffers.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "kernels/moe.hpp"

namespace poros {
namespace {

constexpr std::uint64_t kF32 = 4, kI32 = 4;

/// Collects buffers; sizes are counts of elements.
class Collector {
 public:
  void add(const std::string& name, BufferPhase phase, std::int64_t elements,
           std::uint64_t element_bytes, MemoryPlace place = MemoryPlace::device) {
    if (elements <= 0) return;
    buffers_.push_back({name, phase, static_cast<std::uint64_t>(elements) * element_bytes, place});
  }
  [[nodiscard]] std::vector<StepBuffer> take() { return std::move(buffers_); }

 private:
  std::vector<StepBuffer> buffers_;
};

/// Columns behind the input of a dense site.
std::int64_t padding_of(const SiteRanks& ranks, Site site) {
  return lora_padding(ranks.dense[static_cast<int>(site)]);
}

/// Columns behind the gradients of the residual stream, for s B^T dy of the sites that end there.
std::int64_t gradient_padding(const SiteRanks& ranks) {
  return std::max(padding_of(ranks, Site::attention_out), padding_of(ranks, Site::mlp_down));
}

/// Elements of the largest dequantised weight with the columns of LoRA's B, or the rows of A.
std::int64_t most_weight_elements(const Architecture& architecture, const SiteRanks& ranks) {
  std::int64_t most = 0;
  for (const LayerShape& layer : architecture.layers) {
    const std::vector<LinearRole> roles = linear_roles(layer);
    for (std::size_t i = 0; i < roles.size(); ++i) {
      const LinearShape& linear = layer.linears[i];
      const bool dense = roles[i].expert < 0 && !roles[i].router;
      const std::int64_t padding = dense ? padding_of(ranks, roles[i].site) : 0;
      most =
          std::max({most, linear.out * (linear.in + padding), (linear.out + padding) * linear.in});
    }
  }
  return most;
}

/// Rows of the experts' matrices. The router may send every token to the same experts: one of them
/// has at most as many rows as there are tokens, all together experts_per_token times as many and
/// what pads each to whole granules.
std::int64_t expert_rows(const NumericalPlan& plan, const LayerExtents& size) {
  if (size.experts == 0) return 0;
  return moe_sorted_rows(plan.row_capacity() * size.experts_per_token, size.experts,
                         plan.expert_row_granule);
}

void add_attention(Collector& out, const NumericalPlan& plan, const LayerExtents& size,
                   const SiteRanks& ranks, std::uint64_t element) {
  using enum BufferPhase;
  const std::int64_t rows = plan.row_capacity();
  const std::int64_t qkv = size.query + 2 * size.key;
  const bool rounds = plan.compute == ComputeType::bf16;
  out.add("layer.qkv", layer, rows * qkv, element);
  out.add("layer.qkv_gradient", attention_gradient,
          rows * (qkv + padding_of(ranks, Site::attention_in)), element);
  out.add("layer.attention", layer, rows * (size.query + padding_of(ranks, Site::attention_out)),
          element);
  out.add("layer.attention_gradient", attention_gradient, rows * size.query, element);
  if (size.qk_norm) {
    out.add("layer.qk_raw", layer, rows * (size.query + size.key), element);
    out.add("layer.q_rstd", layer, rows * size.heads, kF32);
    out.add("layer.k_rstd", layer, rows * size.kv_heads, kF32);
  }
  const bool blocked =
      std::any_of(plan.attention.begin(), plan.attention.end(),
                  [](AttentionPath path) { return path == AttentionPath::blocked; });
  if (blocked) {
    const std::int64_t tile = size.group * plan.query_block * attention_key_capacity(plan);
    out.add("attention.scores", layer, tile, kF32);
    out.add("attention.score_gradients", layer, tile, kF32);
    out.add("attention.logsumexp", layer, size.group * plan.query_block, kF32);
    out.add("attention.scores_rounded", layer, rounds ? tile : 0, element);
    out.add("attention.key_value_gradient", layer, rounds ? rows * 2 * size.key : 0, kF32);
  }
}

void add_mlp(Collector& out, const Architecture& architecture, const NumericalPlan& plan,
             const LayerExtents& size, const SiteRanks& ranks, std::uint64_t element) {
  using enum BufferPhase;
  const std::int64_t tokens = plan.row_capacity();
  const std::int64_t slots = tokens * size.experts_per_token, sorted = expert_rows(plan, size);
  const std::int64_t rows = std::max(tokens, sorted);
  out.add("layer.gate_up", mlp,
          std::max(rows * 2 * size.intermediate,
                   tokens * (2 * size.intermediate + padding_of(ranks, Site::mlp_in))),
          element);
  // Its gradient takes its place: dA is done when dX comes.
  out.add("layer.activated", mlp,
          std::max(rows * size.intermediate,
                   tokens * (size.intermediate + padding_of(ranks, Site::mlp_down))),
          element);
  if (size.experts == 0) return;
  out.add("moe.logits", layer, tokens * size.experts, element);
  out.add("moe.probabilities", layer, tokens * size.experts, kF32);
  out.add("moe.expert", layer, slots, kI32);
  out.add("moe.weights", layer, slots, kF32);
  out.add("moe.weight_gradients", layer, slots, kF32);
  out.add("moe.offsets", layer, size.experts + 1, kI32);
  out.add("moe.slot", layer, sorted, kI32);
  out.add("moe.token", layer, sorted, kI32);
  out.add("moe.position", layer, slots, kI32);
  // The input's gradient takes its place, as activated's does.
  out.add("moe.input", mlp, sorted * architecture.hidden, element);
  out.add("moe.output", mlp, sorted * architecture.hidden, element);
  out.add("moe.low_rank_in", layer, sorted * ranks.expert_in, element);
  out.add("moe.low_rank_down", layer, sorted * ranks.expert_down, element);
  out.add("moe.low_rank_gradient", layer, sorted * std::max(ranks.expert_in, ranks.expert_down),
          element);
  if (plan.dropout > 0) {
    out.add("moe.dropped_input", mlp, ranks.expert_in > 0 ? sorted * architecture.hidden : 0,
            element);
    out.add("moe.micro_batch", layer, ranks.expert_down > 0 ? sorted : 0, kI32);
    out.add("moe.row_index", layer, ranks.expert_down > 0 ? sorted : 0, kI32);
  }
}

void add_head(Collector& out, const Architecture& architecture, const NumericalPlan& plan,
              std::uint64_t element) {
  using enum BufferPhase;
  const std::int64_t rows = plan.row_capacity(), hidden = architecture.hidden;
  const bool rounds = plan.compute == ComputeType::bf16;
  out.add("head.norm", head, rows * hidden, element);
  out.add("head.norm_rstd", head, rows, kF32);
  out.add("head.weight", head, plan.vocabulary_chunk * hidden, element);
  out.add("head.logits", logits, rows * plan.vocabulary_chunk, kF32);
  // A GPU rounds them in place.
  out.add("head.exponentials", logits,
          rounds && !plan.device.cuda ? rows * plan.vocabulary_chunk : 0, element);
  out.add("head.gradient_sum", head, rows * hidden, kF32);
  out.add("head.target_rows", head, rows * hidden, element);
  out.add("head.max", head, rows, kF32);
  out.add("head.sum", head, rows, kF32);
  out.add("head.target_logit", head, rows, kF32);
  out.add("head.rescale", head, rows, kF32);
  out.add("head.row_loss", always, rows, kF32);
  out.add("head.total_loss", always, 1, 8);
  out.add("head.final_norm", always, hidden, kF32);
}

/// cublasLt's workspace. bf16 on the CPU: operands are converted to fp32 and the product is rounded
/// once.
void add_gemm_workspace(Collector& out, const Architecture& architecture, const NumericalPlan& plan,
                        const LayerExtents& size, const SiteRanks& ranks) {
  if (plan.device.cuda) {
    out.add("gemm.workspace", BufferPhase::always, plan.gemm_workspace_bytes, 1);
    return;
  }
  if (plan.compute != ComputeType::bf16) return;
  const std::int64_t tokens =
      plan.row_capacity() * std::max<std::int64_t>(1, size.experts_per_token);
  const std::int64_t widest =
      std::max(
          {size.linear_out, size.linear_in, size.query + 2 * size.key, 2 * size.intermediate}) +
      lora_padding(*std::max_element(std::begin(ranks.dense), std::end(ranks.dense)));
  const std::int64_t a = std::max(tokens * widest, plan.row_capacity() * plan.vocabulary_chunk);
  const std::int64_t b = std::max({most_weight_elements(architecture, ranks),
                                   plan.vocabulary_chunk * architecture.hidden, tokens * widest});
  out.add("gemm.workspace", BufferPhase::always, a + b + tokens * widest, kF32);
}

}  // namespace

SiteRanks site_ranks(const std::vector<LoraSiteGroup>& groups) {
  SiteRanks ranks;
  for (const LoraSiteGroup& group : groups) {
    std::int64_t& rank = group.expert < 0             ? ranks.dense[static_cast<int>(group.site)]
                         : group.site == Site::mlp_in ? ranks.expert_in
                                                      : ranks.expert_down;
    rank = std::max(rank, group.rank);
  }
  return ranks;
}

std::int64_t attention_key_capacity(const NumericalPlan& plan) {
  // A tile's first query sees at most seq_len keys (its document), the others follow it; the first
  // key is rounded down to a multiple of 16.
  const std::int64_t keys = plan.seq_len + plan.query_block + 16;
  return std::min((keys + 15) / 16 * 16, (plan.row_capacity() + 15) / 16 * 16);
}

std::int64_t rotary_table_rows(const NumericalPlan& plan, const RopeTable& table) {
  return table.original_length > 0 ? 2 * plan.seq_len : plan.seq_len;
}

FlashTemporaries flash_temporaries(const Architecture& architecture, const NumericalPlan& plan) {
  FlashTemporaries most;
  const std::int64_t rows = plan.row_capacity();
  for (std::size_t index = 0; index < architecture.layers.size(); ++index) {
    if (plan.attention[index] != AttentionPath::flash) continue;
    const AttentionShape& shape = architecture.layers[index].attention;
    const std::int64_t granule = shape.head_dim <= 128 ? 32 : 64;
    const std::int64_t dim = (shape.head_dim + granule - 1) / granule * granule;
    const std::int64_t query = shape.heads * shape.head_dim, key = shape.kv_heads * shape.head_dim;
    const std::int64_t logsumexp = 4 * shape.heads * rows;
    // The output, before it is copied to where its LoRA columns are.
    const std::int64_t forward = 2 * rows * query + logsumexp;
    // The backward: the deterministic fp32 sums of dQ come in as many copies as it takes to give
    // each multiprocessor a share; with grouped heads dK and dV exist for each query head first;
    // the output is made contiguous.
    const std::int64_t padded = rows + 128 * plan.document_slots;
    const std::int64_t launched = std::max<std::int64_t>(1, plan.document_slots * shape.heads);
    const std::int64_t copies =
        std::max<std::int64_t>(1, (plan.device.multiprocessors + launched - 1) / launched);
    const std::int64_t grouped = shape.heads == shape.kv_heads ? 0 : 2 * query;
    const std::int64_t backward = 2 * rows * (query + 2 * key + grouped + query) + logsumexp +
                                  4 * shape.heads * padded +
                                  4 * copies * padded * shape.heads * dim;
    most.forward = std::max(most.forward, static_cast<std::uint64_t>(forward));
    most.backward = std::max(most.backward, static_cast<std::uint64_t>(backward));
  }
  return most;
}

std::vector<StepBuffer> step_buffers(const Architecture& architecture, const NumericalPlan& plan,
                                     const std::vector<LoraSiteGroup>& groups,
                                     bool inputs_on_device) {
  using enum BufferPhase;
  Collector out;
  const LayerExtents size = layer_extents(architecture);
  const SiteRanks ranks = site_ranks(groups);
  const std::int64_t rows = plan.row_capacity(), hidden = architecture.hidden;
  const auto element = static_cast<std::uint64_t>(bytes_of(plan.compute));

  // What describes a sweep's tokens.
  out.add("sweep.ids", always, rows, kI32);
  out.add("sweep.documents", always, rows, kI32);
  out.add("sweep.targets", always, rows, kI32);
  out.add("sweep.target_ids", always, rows, kI32);
  out.add("sweep.micro_batch", always, rows, kI32);
  out.add("sweep.row_index", always, rows, kI32);
  // Every token can be a document of its own, and their number is doubled until it holds them.
  if (plan.document_slots > 0) {
    out.add("sweep.document_offsets", always, std::max(2 * rows, plan.document_slots) + 1, kI32);
  }
  for (std::size_t table = 0; table < architecture.rope_tables.size(); ++table) {
    const RopeTable& rope = architecture.rope_tables[table];
    const std::int64_t elements =
        rotary_table_rows(plan, rope) * static_cast<std::int64_t>(rope.inv_freq.size());
    out.add("sweep.positions." + std::to_string(table), always, rows, kI32);
    out.add("rotary.cos." + std::to_string(table), always, elements, kF32);
    out.add("rotary.sin." + std::to_string(table), always, elements, kF32);
  }

  // The residual stream: each layer's input, the last layer's output, the gradient.
  const std::int64_t waiting = plan.layers * rows * hidden;
  if (inputs_on_device) {
    out.add("layer_inputs", always, waiting, element);
  } else {
    out.add("layer_inputs", always, waiting, element,
            plan.device.cuda ? MemoryPlace::pinned_host : MemoryPlace::host);
    out.add("layer_inputs.ring", always, 2 * rows * hidden, element);
  }
  out.add("residual.output", always, rows * hidden, element);
  out.add("residual.gradient", always, rows * (hidden + gradient_padding(ranks)), element);

  // Inside a layer.
  out.add("layer.weight", layer, most_weight_elements(architecture, ranks), element);
  out.add("layer.norm_attention", layer, rows * (hidden + padding_of(ranks, Site::attention_in)),
          element);
  out.add("layer.norm_mlp", layer, rows * (hidden + padding_of(ranks, Site::mlp_in)), element);
  out.add("layer.norm_gradient", layer, rows * hidden, element);
  out.add("layer.middle", layer, rows * hidden, element);
  out.add("layer.norm_attention_rstd", layer, rows, kF32);
  out.add("layer.norm_mlp_rstd", layer, rows, kF32);
  // Without norms behind the branches norm_gradient, which only the backward needs, holds them.
  if (architecture.post_norms) {
    out.add("layer.branch", layer, rows * hidden, element);
    out.add("layer.branch_mlp", layer, rows * hidden, element);
    out.add("layer.branch_gradient", layer, rows * (hidden + gradient_padding(ranks)), element);
    out.add("layer.post_attention_rstd", layer, rows, kF32);
    out.add("layer.post_mlp_rstd", layer, rows, kF32);
  }
  add_attention(out, plan, size, ranks, element);
  add_mlp(out, architecture, plan, size, ranks, element);
  if (plan.dropout > 0) {
    const std::int64_t most = std::max(rows, expert_rows(plan, size));
    const std::int64_t widest =
        std::max({most * hidden, rows * size.query, most * size.intermediate});
    out.add("lora.dropped", layer, widest, element);
    out.add("lora.dropped_gradient", layer, widest, element);
  }
  add_head(out, architecture, plan, element);
  add_gemm_workspace(out, architecture, plan, size, ranks);
  return out.take();
}

}  // namespace poros
