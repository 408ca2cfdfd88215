// SPDX-License-Identifier: Apache-2.0
// The memory part of `poros check`: its figures are the planner's, and its limits are limits.
#include "cli/memory_check.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"

namespace poros {
namespace {

Architecture qwen_7b() {
  return read_architecture(read_model_config(POROS_SOURCE_DIR "/configs/models/qwen2.5-7b"));
}

const Json& arm_of(const Json& list, const std::string& method) {
  for (const Json& arm : list["arms"]) {
    if (arm["method"] == method) return arm;
  }
  fail(Fault::run, "no arm {}", method);
}

TEST(MemoryCheck, LongestRowsFitAndLongerOnesDont) {
  const Architecture architecture = qwen_7b();
  MemoryQuestion question;
  question.accumulation = 1;
  const Json planned = planned_memory(architecture, question);
  for (const char* method : {"resident", "poros"}) {
    const Json& card = planned["cards"][0];  // the smallest
    const auto longest = arm_of(card, method)["largest_seq_len"].get<std::int64_t>();
    ASSERT_GT(longest, 512);
    ASSERT_LT(longest, planned["seq_len_limit"].get<std::int64_t>());
    MemoryQuestion other = question;
    other.seq_len = longest;
    const Json at = planned_memory(architecture, other);
    EXPECT_TRUE(arm_of(at["cards"][0], method)["fits"].get<bool>());
    other.seq_len = longest + 256;
    const Json above = planned_memory(architecture, other);
    EXPECT_FALSE(arm_of(above["cards"][0], method)["fits"].get<bool>());
  }
}

TEST(MemoryCheck, SettingsReachThePlanner) {
  const Architecture architecture = qwen_7b();
  const auto poros_bytes = [&](const MemoryQuestion& question) {
    return arm_of(planned_memory(architecture, question), "poros")["device_bytes"]
        .get<std::uint64_t>();
  };
  MemoryQuestion question;
  question.block_size = 1;
  const std::uint64_t plain = poros_bytes(question);
  MemoryQuestion other = question;
  other.block_size = 4;
  EXPECT_GT(poros_bytes(other), plain);
  other = question;
  other.rank = 64;
  EXPECT_GT(poros_bytes(other), plain);
  other = question;
  other.batch_size = 16;  // more tokens than a sweep of the default
  EXPECT_GT(poros_bytes(other), plain);
  other = question;
  other.vram_budget_mb = 4000;
  EXPECT_GT(poros_bytes(other), plain);
  EXPECT_LE(poros_bytes(other), std::uint64_t{4000} << 20);
  other.vram_budget_mb = 100;
  EXPECT_THROW(static_cast<void>(planned_memory(architecture, other)), Error);
}

TEST(MemoryCheck, TableIsHeadedEstimate) {
  const std::string text = memory_text(planned_memory(qwen_7b(), {}));
  EXPECT_NE(text.find("estimate"), std::string::npos);
  for (const char* card : {"RTX 3090", "RTX 5090", "A100 40GB", "A100 80GB", "H200", "B300"}) {
    EXPECT_NE(text.find(card), std::string::npos) << card;
  }
}

}  // namespace
}  // namespace poros
