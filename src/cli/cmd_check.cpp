// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "campaign/inputs.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/shape_store.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "plan/memory_plan.hpp"
#include "plan/numerical_plan.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

struct CheckOptions {
  std::string model, precision = "nf4", device = "cuda";
  std::int64_t seq_len = TrainingSpec{}.seq_len;
  bool json = false;
};

double parameters_of(const Architecture& architecture) {
  double count = static_cast<double>(architecture.vocab) *
                     static_cast<double>(architecture.hidden) *
                     (architecture.tied_embeddings ? 1 : 2) +
                 static_cast<double>(architecture.hidden);
  for (const LayerShape& layer : architecture.layers) {
    for (const LinearShape& linear : layer.linears) {
      count += static_cast<double>(linear.out) * static_cast<double>(linear.in) +
               (linear.has_bias ? static_cast<double>(linear.out) : 0);
    }
    for (const std::string& norm : layer.norms) {
      count += static_cast<double>(norm_size(architecture, layer, norm));
    }
  }
  return count;
}

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

Json check_model(const CheckOptions& options) {
  ModelSpec model;
  model.model_id = options.model;
  if (is_local_path(options.model) || std::filesystem::exists(options.model)) {
    model.path = std::filesystem::absolute(options.model).lexically_normal().string();
  } else if (const auto wrong = form_complaint(TextForm::model, options.model)) {
    fail(Fault::input, "{}; expected a checkpoint folder or {}", *wrong,
         form_expectation(TextForm::model));
  }
  const std::filesystem::path folder = model_folder(model);
  const ModelConfig config = read_model_config(folder);
  Json result = {{"model", options.model},
                 {"folder", folder.string()},
                 {"model_type", config.model_type()},
                 {"supported", false},
                 {"reason", nullptr}};
  Architecture architecture;
  try {
    architecture = read_architecture(config);
  } catch (const Error& error) {
    if (error.fault() != Fault::input) throw;
    result["reason"] = error.what();
    return result;
  }
  const auto base = shape_store(architecture, parse_precision(options.precision));
  result["supported"] = true;
  result["layers"] = architecture.layer_count();
  result["hidden"] = architecture.hidden;
  result["vocab"] = architecture.vocab;
  result["parameters"] = parameters_of(architecture);
  result["precision"] = options.precision;
  result["base_bytes"] = base->bytes_by_storage();
  result["seq_len"] = options.seq_len;
  result["device"] = options.device;
  result["arms"] = {arm_plan(*base, options, "resident"), arm_plan(*base, options, "poros")};
  return result;
}

std::string check_text(const Json& result) {
  std::string text = fmt::format("{}\n\nmodel type  {}\n", result["folder"].get<std::string>(),
                                 result["model_type"].get<std::string>());
  if (!result["supported"].get<bool>()) {
    return text + fmt::format("supported   no: {}\n", result["reason"].get<std::string>());
  }
  double base = 0;
  for (const auto& [storage, bytes] : result["base_bytes"].items()) base += bytes.get<double>();
  text += fmt::format(
      "supported   yes\nparameters  {:.2f} million in {} layers, hidden {}, vocabulary {}\n"
      "base        {} in {}\n\n",
      result["parameters"].get<double>() / 1e6, result["layers"].get<std::int64_t>(),
      result["hidden"].get<std::int64_t>(), result["vocab"].get<std::int64_t>(), bytes_text(base),
      result["precision"].get<std::string>());
  TextTable table{{"method", "device memory", "pinned", "host", "trainable"}, {}, "lrrrr"};
  for (const Json& arm : result["arms"]) {
    const auto bytes = [&](const char* key) { return bytes_text(arm[key].get<double>()); };
    table.rows.push_back({arm["method"], bytes("device_bytes"), bytes("pinned_bytes"),
                          bytes("host_bytes"),
                          std::to_string(arm["trainable_params"].get<std::int64_t>())});
  }
  const bool cuda = result["device"] == "cuda";
  return text + table.text() +
         fmt::format(
             "\nPlanned for {}, rows of {} tokens and a spec's other defaults; the trainer "
             "takes what the\nplan says.{}\n",
             result["device"].get<std::string>(), result["seq_len"].get<std::int64_t>(),
             cuda ? " The GPU driver's own memory comes on top." : "");
}

}  // namespace

void add_check(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* command = parent.add_subcommand(
      "check", "Whether the trainer knows a model, and the memory that it would take");
  command->add_option("MODEL", options->model, "Checkpoint folder, or a hub id in the local cache")
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

Reads config.json alone. Exit codes: 0 known; 1 the trainer does not know it; 2 there is no such
model on this machine.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] {
      const Json result = check_model(*options);
      if (options->json) {
        print_json(result);
      } else {
        print_text(check_text(result));
      }
      return result["supported"].get<bool>() ? kDone : kFailed;
    };
  });
}

}  // namespace poros
