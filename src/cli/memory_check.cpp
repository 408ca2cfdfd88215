// SPDX-License-Identifier: Apache-2.0
#include "cli/memory_check.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/error.hpp"
#include "cli/output.hpp"
#include "model/adapter.hpp"
#include "model/shape_store.hpp"
#include "plan/gpu_cards.hpp"
#include "plan/memory_plan.hpp"
#include "plan/numerical_plan.hpp"

namespace poros {
namespace {

constexpr std::array kMethods = {"resident", "poros"};
/// Answers to "how long may rows be" are multiples of this, up to the most.
constexpr std::int64_t kSeqLenStep = 256, kMostSeqLen = 131072;

MemoryPlan plan_arm(const BaseStore& base, const MemoryQuestion& question, const char* method,
                    const DeviceModel& device) {
  TrainingSpec training;
  training.seq_len = question.seq_len;
  training.batch_size = question.batch_size;
  training.gradient_accumulation_steps = question.accumulation;
  LoraSpec lora;
  lora.rank = question.rank;
  PorosSpec poros;
  poros.block_size = question.block_size;
  poros.vram_budget_mb = question.vram_budget_mb;
  const NumericalPlan plan =
      make_numerical_plan(base.architecture(), training, lora, poros, device);
  return make_memory_plan(base, plan, lora_places(base.architecture(), lora),
                          residency_settings(method, poros));
}

std::int64_t seq_len_limit(const Architecture& architecture) {
  return std::min(architecture.max_positions, kMostSeqLen);
}

/// The longest rows whose plan stays below `limit`; 0 where even the shortest don't.
std::int64_t largest_seq_len(const BaseStore& base, MemoryQuestion question, const char* method,
                             const DeviceModel& device, std::uint64_t limit) {
  const std::int64_t most = seq_len_limit(base.architecture());
  const auto fits = [&](std::int64_t steps) {
    question.seq_len = std::min(steps * kSeqLenStep, most);
    try {
      return plan_arm(base, question, method, device).device_bytes() <= limit;
    } catch (const Error&) {  // a budget that holds no step of such rows
      return false;
    }
  };
  std::int64_t good = 0, bad = (most + kSeqLenStep - 1) / kSeqLenStep + 1;
  while (bad - good > 1) {
    const std::int64_t middle = (good + bad) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return std::min(good * kSeqLenStep, most);
}

Json plan_for_card(const BaseStore& base, const MemoryQuestion& question, const GpuCard& card) {
  const std::uint64_t capacity = card.bytes();
  const DeviceModel device = cuda_device_like(card.multiprocessors);
  Json arms = Json::array();
  for (const char* method : kMethods) {
    const std::uint64_t bytes = plan_arm(base, question, method, device).device_bytes();
    arms.push_back({{"method", method},
                    {"device_bytes", bytes},
                    {"fits", bytes + kDriverBytes <= capacity},
                    {"largest_seq_len",
                     largest_seq_len(base, question, method, device, capacity - kDriverBytes)}});
  }
  return {{"name", card.shown}, {"capacity_bytes", capacity}, {"arms", arms}};
}

std::string cards_text(const Json& planned) {
  TextTable table{{"card", "method", "estimate", "fits", "longest rows"}, {}, "llrlr"};
  for (const Json& card : planned["cards"]) {
    for (const Json& arm : card["arms"]) {
      const auto longest = arm["largest_seq_len"].get<std::int64_t>();
      const std::string rows = longest >= planned["seq_len_limit"].get<std::int64_t>()
                                   ? fmt::format(">= {}", longest)
                               : longest > 0 ? std::to_string(longest)
                                             : "none";
      table.rows.push_back({card["name"], arm["method"],
                            bytes_text(arm["device_bytes"].get<double>()),
                            arm["fits"].get<bool>() ? "yes" : "no", rows});
    }
  }
  return "\n" + table.text() +
         fmt::format(
             "\nestimate: planned for the card, not measured on it; it fits when {} stay "
             "free for the driver.\nlongest rows: largest seq_len, in steps of {}, that "
             "fits with the other settings as they are.\n",
             bytes_text(static_cast<double>(kDriverBytes)), kSeqLenStep);
}

}  // namespace

Json planned_memory(const Architecture& architecture, const MemoryQuestion& question) {
  const auto base = shape_store(architecture, parse_precision(question.precision));
  const bool cuda = question.device == "cuda";
  Json planned = {{"precision", question.precision},
                  {"device", question.device},
                  {"seq_len", question.seq_len},
                  {"batch_size", question.batch_size},
                  {"gradient_accumulation_steps", question.accumulation},
                  {"rank", question.rank},
                  {"block_size", question.block_size},
                  {"arms", Json::array()}};
  if (question.vram_budget_mb) planned["vram_budget_mb"] = *question.vram_budget_mb;
  for (const char* method : kMethods) {
    const MemoryPlan memory =
        plan_arm(*base, question, method, cuda ? cuda_device_like(0) : cpu_device_model(1));
    planned["arms"].push_back({{"method", method},
                               {"device_bytes", memory.device_bytes()},
                               {"pinned_bytes", memory.pinned_bytes},
                               {"host_bytes", memory.host_bytes},
                               {"trainable_params", memory.parameters}});
  }
  if (!cuda) return planned;
  planned["seq_len_limit"] = seq_len_limit(architecture);
  planned["cards"] = Json::array();
  for (const GpuCard& card : gpu_cards()) {
    planned["cards"].push_back(plan_for_card(*base, question, card));
  }
  return planned;
}

std::string memory_text(const Json& planned) {
  TextTable table{{"method", "device memory", "pinned", "host", "trainable"}, {}, "lrrrr"};
  for (const Json& arm : planned["arms"]) {
    const auto bytes = [&](const char* key) { return bytes_text(arm[key].get<double>()); };
    table.rows.push_back({arm["method"], bytes("device_bytes"), bytes("pinned_bytes"),
                          bytes("host_bytes"),
                          std::to_string(arm["trainable_params"].get<std::int64_t>())});
  }
  const bool cuda = planned["device"] == "cuda";
  const auto number = [&](const char* key) { return planned[key].get<std::int64_t>(); };
  return "\n" + table.text() +
         fmt::format(
             "\nPlanned for {}, {} base, {} x {} rows of {} tokens a step, rank {}, block_size {} "
             "and a "
             "spec's\nother defaults; the trainer takes what the plan says.{}\n",
             planned["device"].get<std::string>(), planned["precision"].get<std::string>(),
             number("gradient_accumulation_steps"), number("batch_size"), number("seq_len"),
             number("rank"), number("block_size"),
             cuda ? " The GPU driver's own memory comes on top." : "") +
         (cuda ? cards_text(planned) : "");
}

}  // namespace poros
