// SPDX-License-Identifier: Apache-2.0
#include "train/arm/train_facts.hpp"

#include <algorithm>

#include "cell/environment.hpp"
#include "train/arm/host.hpp"
#include "train/arm/libraries.hpp"
#include "train/arm/residency_choice.hpp"
#include "train/device.hpp"

namespace poros {
namespace {

constexpr double kMiB = 1048576.0;

double mib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / kMiB;
}

/// The largest buffers of a plan in device memory: "moments 512 MiB, ...".
Json largest_buffers(const MemoryPlan& plan) {
  std::vector<const PlannedBuffer*> buffers;
  for (const PlannedBuffer& buffer : plan.buffers) {
    if (buffer.place == MemoryPlace::device) buffers.push_back(&buffer);
  }
  std::ranges::sort(buffers, std::greater<>(), [](const auto* buffer) { return buffer->bytes; });
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min<std::size_t>(buffers.size(), 5); ++i) {
    list.push_back({{"name", buffers[i]->name}, {"mb", mib(buffers[i]->bytes)}});
  }
  return list;
}

std::vector<std::string> hints(const TrainConfig& config, const Session& session) {
  std::vector<std::string> hints;
  const bool cuda = config.device == "cuda";
  const MemoryPlan& plan = session.memory;
  const bool resident =
      config.residency == "resident" || plan.settings.kind == ResidencyKind::resident;
  if (cuda && resident) hints.emplace_back("residency: poros (streams the base from host memory)");
  if (cuda && plan.settings.inputs_on_device) hints.emplace_back("poros.layer_inputs: host");
  if (cuda && !resident && config.poros.block_size > 1) {
    hints.push_back(fmt::format("poros.block_size below {}", config.poros.block_size));
  }
  const TrainingSpec& training = config.training;
  if (training.batch_size > 1) {
    hints.push_back(fmt::format(
        "training.batch_size: 1 with gradient_accumulation_steps: {} (the same rows a step)",
        training.batch_size * training.gradient_accumulation_steps));
  }
  if (!config.poros.sweep_rows) {
    hints.push_back(fmt::format("poros.sweep_rows: {}", training.batch_size * training.seq_len));
  }
  if (training.seq_len > 128)
    hints.push_back(fmt::format("training.seq_len below {}", training.seq_len));
  if (config.precision != "nf4") hints.emplace_back("precision: nf4");
  if (config.lora.rank > 8) hints.push_back(fmt::format("lora.rank below {}", config.lora.rank));
  return hints;
}

}  // namespace

CellSpec training_cell(const TrainConfig& config) {
  CellSpec cell;
  cell.method = config.residency;
  cell.model = config.model;
  cell.precision = config.precision;
  cell.device = config.device;
  cell.training = config.training;
  cell.lora = config.lora;
  cell.poros = config.poros;
  return cell;
}

Json setup_facts(const TrainConfig& config, const Session& session, const TokenFile& tokens,
                 const std::optional<TokenFile>& validation) {
  const MemoryPlan& memory = session.memory;
  Json versions = library_versions();
  Json device = {{"kind", "cpu"}, {"name", cpu_model_name()}};
  if (session.numerical.device.cuda) {
    const CudaFacts facts = cuda_device().facts();
    device = {{"kind", "cuda"},
              {"name", facts.name},
              {"uuid", facts.uuid},
              {"memory_total_mb", mib(facts.total_bytes)}};
  }
  const TrainingSpec& training = config.training;
  return {{"model", config.model.model_id},
          {"weights", session.base->weights()},
          {"quantization", config.precision},
          {"block_size", memory.settings.block_size},
          {"steps", training.steps},
          {"device", device},
          {"residency", name_of(memory.settings.kind)},
          {"compute_dtype", name_of(session.numerical.compute)},
          {"threads", session.numerical.device.threads},
          {"seq_len", training.seq_len},
          {"rows_per_step", training.batch_size * training.gradient_accumulation_steps},
          {"rows", tokens.rows},
          {"validation_rows", validation ? Json(validation->rows) : Json()},
          {"token_sha256", tokens.sha256},
          {"trainable_params", session.executor->trainable_parameters()},
          {"planned_device_mb", mib(memory.device_bytes())},
          {"planned_host_mb", mib(memory.host_bytes + memory.pinned_bytes)},
          {"plan_hash", plan_hash(session.numerical)},
          {"versions", versions},
          {"config", to_json(config)}};
}

Json oom_facts(const TrainConfig& config, const Session& session, const std::string& message) {
  const bool planned = session.memory.arena_bytes > 0;
  Json data = {
      {"message", message},
      {"asked_mb", planned ? Json(mib(session.memory.device_bytes())) : Json()},
      {"asked_host_mb",
       planned ? Json(mib(session.memory.host_bytes + session.memory.pinned_bytes)) : Json()},
      {"largest", planned ? largest_buffers(session.memory) : Json::array()},
      {"hints", hints(config, session)}};
  if (config.device == "cuda" && has_cuda()) {
    const auto free_bytes = free_device_bytes(session.numerical.device);
    data["held_mb"] = mib(cuda_device().memory().reserved);
    data["free_mb"] = free_bytes ? Json(mib(*free_bytes)) : Json();
  } else {
    const auto free_bytes = meminfo_bytes("MemAvailable");
    data["held_mb"] = session.executor ? Json(mib(session.memory.arena_bytes)) : Json(0.0);
    data["free_mb"] = free_bytes ? Json(*free_bytes / kMiB) : Json();
  }
  return data;
}

}  // namespace poros
