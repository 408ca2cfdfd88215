// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/shape_store.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/check.hpp"
#include "model/config.hpp"
#include "plan/memory_plan.hpp"
#include "plan/numerical_plan.hpp"
#include "spec/schema.hpp"

namespace poros {
namespace {

struct CheckOptions {
  std::string model, precision = "nf4", device = "cuda";
  std::int64_t seq_len = TrainingSpec{}.seq_len;
  bool json = false;
};

/// The planned memory of one of our arms with the spec's defaults.
Json arm_plan(const BaseStore& base, const CheckOptions& options, const std::string& method) {
  TrainingSpec training;
  training.seq_len = options.seq_len;
  const LoraSpec lora;
  const PorosSpec poros;
  DeviceModel device = cpu_device_model(1);
  if (options.device == "cuda") {
    device = DeviceModel{};
    device.cuda = true;
    device.name = "cuda";
  }
  const NumericalPlan plan =
      make_numerical_plan(base.architecture(), training, lora, poros, device);
  const MemoryPlan memory = make_memory_plan(base, plan, lora_places(base.architecture(), lora),
                                             residency_settings(method, poros));
  return {{"method", method},
          {"device_bytes", memory.arena_bytes},
          {"pinned_bytes", memory.pinned_bytes},
          {"host_bytes", memory.host_bytes},
          {"trainable_params", memory.parameters}};
}

/// What both of our arms would take, for a model that the trainer knows.
Json planned_arms(const CheckReport& report, const CheckOptions& options) {
  const Architecture architecture = read_architecture(read_model_config(report.path));
  const auto base = shape_store(architecture, parse_precision(options.precision));
  return {{"precision", options.precision},
          {"seq_len", options.seq_len},
          {"device", options.device},
          {"arms", {arm_plan(*base, options, "resident"), arm_plan(*base, options, "poros")}}};
}

std::string arms_text(const Json& planned) {
  TextTable table{{"method", "device memory", "pinned", "host", "trainable"}, {}, "lrrrr"};
  for (const Json& arm : planned["arms"]) {
    const auto bytes = [&](const char* key) { return bytes_text(arm[key].get<double>()); };
    table.rows.push_back({arm["method"], bytes("device_bytes"), bytes("pinned_bytes"),
                          bytes("host_bytes"),
                          std::to_string(arm["trainable_params"].get<std::int64_t>())});
  }
  const bool cuda = planned["device"] == "cuda";
  return "\n" + table.text() +
         fmt::format(
             "\nPlanned for {}, {} base, rows of {} tokens and a spec's other defaults; the "
             "trainer takes what\nthe plan says.{}\n",
             planned["device"].get<std::string>(), planned["precision"].get<std::string>(),
             planned["seq_len"].get<std::int64_t>(),
             cuda ? " The GPU driver's own memory comes on top." : "");
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
  command->add_option("--precision", options->precision, "Of the frozen base")
      ->check(CLI::IsMember(schema_key("precisions").rule.choices))
      ->capture_default_str();
  command->add_option("--seq-len", options->seq_len, "Tokens of a row")
      ->check(CLI::Range(2, 1048576))
      ->capture_default_str();
  command->add_option("--device", options->device, "cuda or cpu")
      ->check(CLI::IsMember(schema_key("device").rule.choices))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros check Qwen/Qwen2.5-7B
  poros check configs/models/kjv-qwen2 --device cpu

Exit codes: 0 can be trained; 1 read, but can't be (architecture or checkpoint); 2 there is no such
model on this machine.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] {
      const CheckReport report = check_model(options->model);
      const Json planned = report.supported ? planned_arms(report, *options) : Json::object();
      if (options->json) {
        Json result = to_json(report);
        result.update(planned);
        print_json(result);
      } else {
        print_text(to_text(report) + (report.supported ? arms_text(planned) : ""));
      }
      return report.exit_code();
    };
  });
}

}  // namespace poros
