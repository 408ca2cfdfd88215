// SPDX-License-Identifier: Apache-2.0
// After construction a step takes all its buffers from the arena: what it allocates besides are the
// few integers a token that describe a sweep. Own program, since it replaces operator new.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "executor_fixture.hpp"

namespace {

std::atomic<bool> g_counting{false};
std::atomic<std::size_t> g_bytes{0}, g_largest{0};

void* counted(std::size_t bytes) {
  if (g_counting) {
    g_bytes += bytes;
    std::size_t largest = g_largest;
    while (bytes > largest && !g_largest.compare_exchange_weak(largest, bytes)) {
    }
  }
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes);
}
void* operator new[](std::size_t bytes) {
  return counted(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace poros {
namespace {

TEST(ExecutorAllocations, AStepAllocatesNoActivations) {
  const auto base = random_base(R"({"model_type": "qwen2", "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true,
    "hidden_act": "silu", "torch_dtype": "bfloat16"})",
                                "nf4");
  const Adapter adapter = lively_adapter(*base, 4);
  RunSettings settings;
  settings.seq_len = 128;
  settings.micro_batches = 4;
  settings.dropout = 0.1;
  settings.residency = {.kind = ResidencyKind::streamed, .inputs_on_device = false};
  const auto executor = make_executor(*base, adapter, settings);
  const TokenRows rows = random_rows(4, 128, 512, true, 1);
  (void)executor->run_step(rows.batch(), 0);
  g_counting = true;
  (void)executor->run_step(rows.batch(), 1);
  g_counting = false;
  // The smallest activation, 512 tokens x 128 x 4 bytes, is 256 KiB; a layer has some twenty.
  EXPECT_LT(g_largest, std::size_t{16} << 10);
  EXPECT_LT(g_bytes, std::size_t{256} << 10);
  EXPECT_GT(g_bytes, 0U) << "nothing was counted";
}

}  // namespace
}  // namespace poros
