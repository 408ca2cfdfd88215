// SPDX-License-Identifier: Apache-2.0
#include "train/workspace.hpp"

#include <algorithm>
#include <string>

namespace poros {

Workspace::Workspace(Arena& arena, const MemoryPlan& plan, std::size_t rotary_tables)
    : arena_(arena) {
  const auto f32 = [&](const char* name) { return arena.find_as<float>(name); };
  const auto i32 = [&](const char* name) { return arena.find_as<std::int32_t>(name); };
  weight = arena.at("layer.weight");
  weight_bytes = arena.bytes_of("layer.weight");
  norm_attention = arena.find("layer.norm_attention");
  norm_mlp = arena.find("layer.norm_mlp");
  norm_gradient = arena.find("layer.norm_gradient");
  middle = arena.find("layer.middle");
  branch = arena.find("layer.branch");
  if (branch == nullptr) branch = norm_gradient;
  branch_mlp = arena.find("layer.branch_mlp");
  branch_gradient = arena.find("layer.branch_gradient");
  norm_attention_rstd = f32("layer.norm_attention_rstd");
  norm_mlp_rstd = f32("layer.norm_mlp_rstd");
  post_attention_rstd = f32("layer.post_attention_rstd");
  post_mlp_rstd = f32("layer.post_mlp_rstd");
  qkv = arena.find("layer.qkv");
  qk_raw = arena.find("layer.qk_raw");
  q_rstd = f32("layer.q_rstd");
  k_rstd = f32("layer.k_rstd");
  attention = arena.find("layer.attention");
  scores = f32("attention.scores");
  score_gradients = f32("attention.score_gradients");
  logsumexp = f32("attention.logsumexp");
  scores_rounded = arena.find("attention.scores_rounded");
  key_value_gradient = f32("attention.key_value_gradient");
  const auto lend = [&](Borrowed which, const char* name, void** pointer) {
    *pointer = nullptr;
    if (std::none_of(plan.buffers.begin(), plan.buffers.end(),
                     [&](const PlannedBuffer& buffer) { return buffer.name == name; })) {
      return;
    }
    loans_.push_back({which, pointer, plan.find(name).offset});
  };
  lend(kBorrowedMlp, "layer.gate_up", &gate_up);
  lend(kBorrowedMlp, "layer.activated", &activated);
  lend(kBorrowedMlp, "moe.input", &moe.input);
  lend(kBorrowedMlp, "moe.output", &moe.output);
  lend(kBorrowedMlp, "moe.dropped_input", &moe.dropped_input);
  lend(kBorrowedAttentionGradient, "layer.attention_gradient", &attention_gradient);
  lend(kBorrowedAttentionGradient, "layer.qkv_gradient", &qkv_gradient);
  lend(kBorrowedLogits, "head.logits", reinterpret_cast<void**>(&logits));
  lend(kBorrowedLogits, "head.exponentials", &exponentials);
  dropped = arena.find("lora.dropped");
  dropped_gradient = arena.find("lora.dropped_gradient");

  moe.logits = arena.find("moe.logits");
  moe.probabilities = f32("moe.probabilities");
  moe.weights = f32("moe.weights");
  moe.weight_gradients = f32("moe.weight_gradients");
  moe.expert = i32("moe.expert");
  moe.offsets = i32("moe.offsets");
  if (moe.offsets != nullptr) {
    moe.host_offsets.resize(arena.bytes_of("moe.offsets") / sizeof(std::int32_t));
  }
  moe.slot = i32("moe.slot");
  moe.token = i32("moe.token");
  moe.position = i32("moe.position");
  moe.micro_batch = i32("moe.micro_batch");
  moe.row_index = i32("moe.row_index");
  moe.low_rank_in = arena.find("moe.low_rank_in");
  moe.low_rank_down = arena.find("moe.low_rank_down");
  moe.low_rank_gradient = arena.find("moe.low_rank_gradient");

  for (std::size_t table = 0; table < rotary_tables; ++table) {
    rotary.push_back({arena.as<float>("rotary.cos." + std::to_string(table)),
                      arena.as<float>("rotary.sin." + std::to_string(table)), 0});
  }
}

void Workspace::borrow(Borrowed which) {
  std::byte* data = arena_.borrow(which);
  for (const Loan& loan : loans_) {
    *loan.pointer = loan.which == which ? data + loan.offset : nullptr;
  }
}

void Workspace::begin_mlp() {
  borrow(kBorrowedMlp);
}

void Workspace::begin_attention_gradient() {
  borrow(kBorrowedAttentionGradient);
}

void Workspace::begin_logits() {
  borrow(kBorrowedLogits);
  if (exponentials == nullptr) exponentials = logits;
}

void Workspace::give_back() {
  arena_.give_back();
  for (const Loan& loan : loans_) *loan.pointer = nullptr;
  exponentials = nullptr;
}

}  // namespace poros
