// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "cli/command.hpp"
#include "cli/memory_check.hpp"
#include "cli/output.hpp"
#include "model/architectures.hpp"
#include "model/check.hpp"
#include "model/config.hpp"
#include "spec/schema.hpp"

namespace poros {
namespace {

struct CheckOptions {
  std::string model;
  MemoryQuestion memory;
  bool json = false;
};

/// What both of our arms would take, for a model that the trainer knows.
Json planned_arms(const CheckReport& report, const MemoryQuestion& question) {
  return planned_memory(read_architecture(read_model_config(report.path)), question);
}

}  // namespace

void add_check(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* command = parent.add_subcommand(
      "check", "Whether the trainer knows a model, and the memory that it would take");
  command
      ->add_option("MODEL", options->model,
                   "Checkpoint folder, config.json, or a hub id in the local cache")
      ->required();
  MemoryQuestion& memory = options->memory;
  command->add_option("--precision", memory.precision, "Of the frozen base")
      ->check(CLI::IsMember(schema_key("precisions").rule.choices))
      ->capture_default_str();
  command->add_option("--device", memory.device, "cuda or cpu")
      ->check(CLI::IsMember(schema_key("device").rule.choices))
      ->capture_default_str();
  const auto number = [&](const char* name, std::int64_t& value, const char* help,
                          std::int64_t least, std::int64_t most) {
    command->add_option(name, value, help)->check(CLI::Range(least, most))->capture_default_str();
  };
  number("--seq-len", memory.seq_len, "Tokens of a row", 2, 1048576);
  number("--batch", memory.batch_size, "Rows of a micro-batch", 1, 65536);
  number("--accumulation", memory.accumulation, "Micro-batches of a step", 1, 65536);
  number("--rank", memory.rank, "Of LoRA, on all linear layers", 1, 4096);
  number("--block-size", memory.block_size, "Decoder layers copied together", 1, 1024);
  command
      ->add_option("--vram-budget-mb", memory.vram_budget_mb,
                   "Limit of the arm poros: keeps as many blocks on the GPU as fit")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros check Qwen/Qwen2.5-7B
  poros check configs/models/qwen2.5-32b --seq-len 4096 --rank 64
  poros check configs/models/kjv-qwen2 --device cpu

Exit codes: 0 can be trained; 1 read, but can't be (architecture or checkpoint); 2 there is no such
model on this machine.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] {
      LoraSpec lora;
      lora.rank = options->memory.rank;
      const CheckReport report = check_model(options->model, "main", lora);
      const Json planned =
          report.supported ? planned_arms(report, options->memory) : Json::object();
      if (options->json) {
        Json result = to_json(report);
        result.update(planned);
        print_json(result);
      } else {
        print_text(to_text(report) + (report.supported ? memory_text(planned) : ""));
      }
      return report.exit_code();
    };
  });
}

}  // namespace poros
