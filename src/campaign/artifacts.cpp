// SPDX-License-Identifier: Apache-2.0
#include "campaign/artifacts.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/median.hpp"

namespace poros {
namespace {

constexpr std::int64_t kWindow = 10;  // steps of mean_loss_first10 and mean_loss_last10

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Of at least one value.
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return median_of_sorted(values);
}

/// Over the population, of at least one value.
double population_stddev(const std::vector<double>& values) {
  const double centre = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - centre) * (value - centre);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

/// Adds a number to a list where there is one.
void add(std::vector<double>& list, const std::optional<double>& value) {
  if (value) list.push_back(*value);
}

std::optional<double> largest(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return *std::max_element(values.begin(), values.end());
}

std::optional<std::string> text_of(const Json& object, const char* key) {
  return json_find<std::string>(object, key, "record");
}

RunArtifact begin_artifact(const ArtifactContext& context, const PlannedCell& cell) {
  RunArtifact artifact;
  const CellSpec& spec = cell.spec;
  artifact.method = spec.method;
  artifact.model_id = spec.model.model_id;
  artifact.display_name = spec.model.display_name.empty() ? cell.model : spec.model.display_name;
  artifact.precision = spec.precision;
  artifact.hardware = spec.hardware.gpu_name;
  artifact.steps = spec.training.steps;
  artifact.seq_len = spec.training.seq_len;
  if (is_own_arm(spec.method)) artifact.block_size = spec.poros.block_size;
  artifact.arch = cell.model;
  artifact.run_id = context.run_id;
  artifact.cell_key = cell.key;
  artifact.group_key = cell.group;
  artifact.spec_sha256 = context.spec_sha256;
  artifact.spec_id = context.spec_id;
  artifact.protocol = spec.protocol;
  artifact.protocol_warnings = protocol_warnings(spec.protocol, spec.method);
  artifact.device = spec.device;
  artifact.n_passes_expected = context.n_passes;
  artifact.tokens_per_step =
      spec.training.batch_size * spec.training.gradient_accumulation_steps * spec.training.seq_len;
  artifact.spec_cell = to_json(spec);
  return artifact;
}

/// What all passes of a cell say alike: device, libraries, hashes.
void take_facts(RunArtifact& artifact, const PassRecord& record) {
  if (auto name = text_of(record.device, "name")) artifact.hardware = *name;
  artifact.gpu_uuid = text_of(record.device, "uuid");
  artifact.vram_total_mb = json_find<double>(record.device, "memory_total_mb", "record");
  artifact.cuda_version = text_of(record.versions, "cuda");
  artifact.torch_version = text_of(record.versions, "torch");
  artifact.transformers_version = text_of(record.versions, "transformers");
  artifact.bitsandbytes_version = text_of(record.versions, "bitsandbytes");
  artifact.trainable_params = record.trainable_params;
  artifact.token_sha256 = record.token_sha256;
  artifact.adapter_sha256 = record.adapter_sha256;
  artifact.weights = record.weights;
  artifact.planned_peak_mb = record.planned_peak_mb;
  artifact.cell_build = text_of(record.driver, "cell_build").value_or("");
  const auto environment = record.driver.find("environment");
  if (environment == record.driver.end() || !environment->is_object()) return;
  artifact.environment = *environment;
  const Json build = environment->value("build", Json::object());
  artifact.git_commit = text_of(build, "git_commit").value_or("");
  artifact.git_dirty = json_find<bool>(build, "git_dirty", "record").value_or(false);
}

void take_losses(RunArtifact& artifact, const std::vector<const PassRecord*>& passes) {
  std::vector<double> first, first10, last10;
  for (const PassRecord* pass : passes) {
    const std::vector<double>& loss = pass->steps.loss;
    if (!loss.empty()) first.push_back(loss.front());
    if (static_cast<std::int64_t>(loss.size()) < kWindow) continue;
    first10.push_back(mean({loss.begin(), loss.begin() + kWindow}));
    last10.push_back(mean({loss.end() - kWindow, loss.end()}));
  }
  // Passes repeat the same work: the first loss of the first pass stands for all.
  if (!first.empty()) artifact.first_step_loss = first.front();
  if (!first10.empty()) artifact.mean_loss_first10 = mean(first10);
  if (!last10.empty()) artifact.mean_loss_last10 = mean(last10);
}

/// By the GPU's energy counter over the timed steps of a pass; nothing where it was not read.
std::optional<double> joule_per_token(const RunArtifact& artifact, const PassRecord& pass) {
  const auto samples = pass.driver.find("gpu_samples");
  if (samples == pass.driver.end() || !samples->is_object()) return std::nullopt;
  const auto energy_j = json_find<double>(*samples, "timed_energy_j", "record");
  const auto steps = json_find<std::int64_t>(*samples, "timed_steps", "record");
  if (!energy_j || !steps || *steps < 1 || !artifact.tokens_per_step) return std::nullopt;
  return *energy_j / static_cast<double>(*steps * *artifact.tokens_per_step);
}

void take_measurements(RunArtifact& artifact, const std::vector<const PassRecord*>& passes) {
  std::vector<double> load, rss, pinned, joules;
  for (const PassRecord* pass : passes) {
    add(artifact.pass_s_per_step, pass->s_per_step);
    add(artifact.pass_vram_peaks_mb, pass->vram_peak_mb);
    if (!pass->steps.allocated_mb.empty()) {
      artifact.pass_vram_avgs_mb.push_back(mean(pass->steps.allocated_mb));
    }
    add(load, pass->load_s);
    add(rss, pass->host_rss_peak_mb);
    add(pinned, pass->pinned_mb);
    add(joules, joule_per_token(artifact, *pass));
  }
  if (!artifact.pass_s_per_step.empty()) {
    const std::vector<double>& times = artifact.pass_s_per_step;
    artifact.s_per_step = median(times);
    artifact.s_per_step_min = *std::min_element(times.begin(), times.end());
    artifact.s_per_step_max = *std::max_element(times.begin(), times.end());
    artifact.s_per_step_stddev = population_stddev(times);
    artifact.tok_per_sec = static_cast<double>(*artifact.tokens_per_step) / *artifact.s_per_step;
  }
  artifact.vram_peak_mb = largest(artifact.pass_vram_peaks_mb);
  if (!artifact.pass_vram_avgs_mb.empty()) artifact.vram_avg_mb = mean(artifact.pass_vram_avgs_mb);
  if (!load.empty()) artifact.load_s = median(load);
  artifact.host_rss_peak_mb = largest(rss);
  artifact.pinned_mb = largest(pinned);
  if (!joules.empty()) artifact.joule_per_token = median(joules);
  take_losses(artifact, passes);
}

const char* compute_dtype(const RunArtifact& artifact) {
  const auto named = artifact.spec_cell.at("training").at("compute_dtype").get<std::string>();
  if (named == "fp32") return "fp32";
  return named == "auto" && artifact.device == "cpu" ? "fp32" : "bf16";
}

/// In words, what differs from the reference; empty where the work is equal.
std::string work_difference(const RunArtifact& arm, const PassRecord& record,
                            const RunArtifact& reference, const PassRecord& reference_record) {
  // With protocol native the libraries train on something else by contract (protocol_warnings).
  const bool same_data =
      arm.protocol != "native" || is_own_arm(arm.method) == is_own_arm(reference.method);
  if (same_data && arm.token_sha256 != reference.token_sha256) {
    return fmt::format("other tokens: {:.8} against {:.8}", arm.token_sha256,
                       reference.token_sha256);
  }
  if (arm.adapter_sha256 != reference.adapter_sha256) {
    return fmt::format("other initial adapter: {:.8} against {:.8}", arm.adapter_sha256,
                       reference.adapter_sha256);
  }
  if (arm.trainable_params != reference.trainable_params) {
    return fmt::format("trainable parameters: {} against {}", arm.trainable_params.value_or(-1),
                       reference.trainable_params.value_or(-1));
  }
  const auto nf4 = record.base_bytes.find("nf4");
  const auto reference_nf4 = reference_record.base_bytes.find("nf4");
  const bool quantised = nf4 != record.base_bytes.end();
  const bool reference_quantised = reference_nf4 != reference_record.base_bytes.end();
  if (quantised != reference_quantised) {
    return quantised ? "an NF4 base against one that is not" : "its base is not NF4";
  }
  // The codes are what counts; how absmax values are padded or nested may differ a little.
  if (quantised && std::abs(nf4->second - reference_nf4->second) > 0.02 * reference_nf4->second) {
    return fmt::format("bytes of the NF4 base: {:.0f} against {:.0f}", nf4->second,
                       reference_nf4->second);
  }
  if (same_data && arm.first_step_loss && reference.first_step_loss) {
    const double difference = std::abs(*arm.first_step_loss - *reference.first_step_loss);
    if (!(difference <= first_step_tolerance(compute_dtype(arm)))) {
      return fmt::format("first-step loss: {:.6f} against {:.6f}", *arm.first_step_loss,
                         *reference.first_step_loss);
    }
  }
  return {};
}

bool comparable(const RunArtifact& artifact) {
  // On a shared host the arms still stand side by side; the flag stays with the numbers.
  return artifact.status == "ok" &&
         std::all_of(artifact.flags.begin(), artifact.flags.end(),
                     [](const std::string& flag) { return flag == "shared_host"; });
}

std::optional<double> saved_pct(const std::optional<double>& own,
                                const std::optional<double>& other) {
  if (!own || !other || !(*other > 0)) return std::nullopt;
  return 100.0 * (1.0 - *own / *other);
}

std::optional<double> ratio(const std::optional<double>& own, const std::optional<double>& other) {
  if (!own || !other || !(*other > 0)) return std::nullopt;
  return *own / *other;
}

}  // namespace

double first_step_tolerance(const std::string& compute_dtype) {
  // The adapter's B is zero in the first step, so dropout plays no part: only rounding differs.
  return compute_dtype == "fp32" ? 1e-3 : 2e-2;
}

RunArtifact make_artifact(const ArtifactContext& context, const PlannedCell& cell,
                          const std::vector<RecordedPass>& passes) {
  RunArtifact artifact = begin_artifact(context, cell);
  std::vector<const PassRecord*> good;
  for (const RecordedPass& pass : passes) {
    const PassRecord& record = pass.record;
    artifact.passes.push_back({{"pass", record.pass},
                               {"attempt", record.attempt},
                               {"status", record.status},
                               {"artifact_path", pass.path},
                               {"artifact_sha256", pass.sha256}});
    if (record.status == "ok") {
      good.push_back(&record);
    } else if (artifact.status == "ok") {
      artifact.status = record.status;
      artifact.oom = record.status == "oom";
      if (!record.reason.empty()) artifact.reason = record.reason;
      if (!record.error_message.empty()) artifact.error_message = record.error_message;
    }
    for (const std::string& flag : record.flags) {
      const bool known =
          std::find(artifact.flags.begin(), artifact.flags.end(), flag) != artifact.flags.end();
      if (!known) artifact.flags.push_back(flag);
    }
    artifact.timestamp = record.finished_at;
  }
  artifact.n_passes = static_cast<std::int64_t>(good.size());
  const PassRecord* teller = !good.empty()     ? good.front()
                             : !passes.empty() ? &passes.front().record
                                               : nullptr;
  if (teller != nullptr) take_facts(artifact, *teller);
  take_measurements(artifact, good);
  return artifact;
}

RunArtifact skipped_artifact(const ArtifactContext& context, const PlannedCell& cell,
                             const Skip& skip) {
  RunArtifact artifact = begin_artifact(context, cell);
  artifact.status = "skipped";
  artifact.reason = skip.reason;
  artifact.error_message = skip.message;
  return artifact;
}

void check_equal_work(std::vector<RunArtifact*>& group,
                      const std::vector<const PassRecord*>& first_passes) {
  std::size_t reference = group.size();
  for (const char* method : {"resident", "peft"}) {
    for (std::size_t i = 0; i < group.size() && reference == group.size(); ++i) {
      if (group[i]->method == method && group[i]->status == "ok" && first_passes[i] != nullptr) {
        reference = i;
      }
    }
  }
  if (reference == group.size()) return;
  for (std::size_t i = 0; i < group.size(); ++i) {
    RunArtifact& arm = *group[i];
    if (i == reference || arm.status != "ok" || first_passes[i] == nullptr) continue;
    const std::string difference =
        work_difference(arm, *first_passes[i], *group[reference], *first_passes[reference]);
    if (difference.empty()) continue;
    if (std::find(arm.flags.begin(), arm.flags.end(), "suspect") == arm.flags.end()) {
      arm.flags.push_back("suspect");
    }
    arm.reason = difference + " (" + group[reference]->method + ")";
  }
}

void compare_arms(std::vector<RunArtifact*>& group) {
  const auto find = [&](const char* method) -> const RunArtifact* {
    for (const RunArtifact* arm : group) {
      if (arm->method == method && comparable(*arm)) return arm;
    }
    return nullptr;
  };
  const RunArtifact* resident = find("resident");
  const RunArtifact* unsloth = find("unsloth");
  const RunArtifact* poros = find("poros");
  for (RunArtifact* arm : group) {
    if (!comparable(*arm)) continue;
    if (resident != nullptr) {
      arm->vram_resident_mb = resident->vram_peak_mb;
      arm->vram_avg_resident_mb = resident->vram_avg_mb;
    }
    if (unsloth != nullptr) {
      arm->vram_unsloth_mb = unsloth->vram_peak_mb;
      arm->vram_avg_unsloth_mb = unsloth->vram_avg_mb;
    }
    if (poros != nullptr) {
      arm->vram_poros_mb = poros->vram_peak_mb;
      arm->vram_avg_poros_mb = poros->vram_avg_mb;
    }
    if (resident != nullptr && arm != resident) {
      arm->vram_saved_vs_resident_pct = saved_pct(arm->vram_peak_mb, resident->vram_peak_mb);
      arm->slowdown_vs_resident_x = ratio(arm->s_per_step, resident->s_per_step);
    }
    if (unsloth != nullptr && arm != unsloth) {
      arm->vram_saved_vs_unsloth_pct = saved_pct(arm->vram_peak_mb, unsloth->vram_peak_mb);
      arm->slowdown_vs_unsloth_x = ratio(arm->s_per_step, unsloth->s_per_step);
    }
  }
}

}  // namespace poros
