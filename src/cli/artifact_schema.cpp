// SPDX-License-Identifier: Apache-2.0
#include "cli/artifact_schema.hpp"

#include "receipts/run_artifact.hpp"
#include "spec/text_form.hpp"

namespace poros {

const std::vector<ArtifactField>& artifact_fields() {
  constexpr const char* mib = "2^20 bytes";
  static const std::vector<ArtifactField> fields = {
      {"schema_version", "string", false, "",
       "Of this file; another major number is another format."},
      {"method", "string", false, "", "The arm."},
      {"model_id", "string", false, "", "As in the spec."},
      {"display_name", "string", false, "", "Name in reports."},
      {"precision", "string", false, "", "Storage of the frozen base."},
      {"arch", "string", false, "", "Architecture and scale, as in the file's name."},
      {"status", "string", false, "", "ok, oom, error or skipped."},
      {"reason", "string", true, "", "Refines status: timeout, lost, diverged, no_cuda, ..."},
      {"error_message", "string", true, "", "What went wrong, for people."},
      {"oom", "boolean", false, "", "status is oom."},
      {"flags", "texts", false, "", "Qualify an ok: suspect, throttled, shared_host, capped."},

      {"s_per_step", "number", true, "s", "Median over passes of the pass median after warm-up."},
      {"s_per_step_min", "number", true, "s", "Fastest pass."},
      {"s_per_step_max", "number", true, "s", "Slowest pass."},
      {"s_per_step_stddev", "number", true, "s", "Population standard deviation over passes."},
      {"pass_s_per_step", "numbers", false, "s", "One value a pass that ended ok."},
      {"tok_per_sec", "number", true, "tokens/s", "tokens_per_step / s_per_step."},
      {"tokens_per_step", "integer", true, "tokens", "Of an optimizer step, padding included."},
      {"steps", "integer", false, "", "Optimizer steps of a pass."},
      {"seq_len", "integer", false, "tokens", "Length of a row."},
      {"block_size", "integer", true, "decoder layers", "Of poros and resident."},
      {"n_passes", "integer", false, "", "Passes that ended ok."},
      {"n_passes_expected", "integer", false, "", "Passes that were asked for."},
      {"passes", "array", false, "", "Each attempt: pass, attempt, status, artifact_path, sha256."},
      {"load_s", "number", true, "s", "From a process's start to its first step."},

      {"vram_peak_mb", "number", true, mib, "Allocator peak in the worst pass, after loading."},
      {"vram_avg_mb", "number", true, mib, "Allocator at the ends of steps, mean over passes."},
      {"pass_vram_peaks_mb", "numbers", false, mib, "One value a pass that ended ok."},
      {"pass_vram_avgs_mb", "numbers", false, mib, "One value a pass that ended ok."},
      {"planned_peak_mb", "number", true, mib, "What the memory plan foretold."},
      {"host_rss_peak_mb", "number", true, mib, "Peak resident memory of the process."},
      {"pinned_mb", "number", true, mib, "Pinned host memory."},
      {"joule_per_token", "number", true, "J/token",
       "Of the whole GPU over the timed steps, by its energy counter; median over passes."},
      {"vram_total_mb", "number", true, mib, "Memory of the GPU."},

      {"first_step_loss", "number", true, "nat", "Before the first update."},
      {"mean_loss_first10", "number", true, "nat", "Mean over the first ten steps."},
      {"mean_loss_last10", "number", true, "nat", "Mean over the last ten steps."},
      {"trainable_params", "integer", true, "", "Elements of the adapters."},
      {"parity_loss_max_diff", "number", true, "nat",
       "Largest difference of losses, poros to resident."},
      {"parity_weight_max_diff", "number", true, "", "Largest difference of adapter weights."},
      {"bitwise_exact", "boolean", true, "", "Every compared tensor was equal in every bit."},

      {"vram_resident_mb", "number", true, mib, "Peak of the arm resident in the same group."},
      {"vram_unsloth_mb", "number", true, mib, "Peak of unsloth in the same group."},
      {"vram_poros_mb", "number", true, mib, "Peak of poros in the same group."},
      {"vram_avg_resident_mb", "number", true, mib, "Mean of resident in the same group."},
      {"vram_avg_unsloth_mb", "number", true, mib, "Mean of unsloth in the same group."},
      {"vram_avg_poros_mb", "number", true, mib, "Mean of poros in the same group."},
      {"vram_saved_vs_resident_pct", "number", true, "%", "Of resident's peak."},
      {"vram_saved_vs_unsloth_pct", "number", true, "%", "Of unsloth's peak."},
      {"slowdown_vs_resident_x", "number", true, "", "s_per_step as a multiple of resident's."},
      {"slowdown_vs_unsloth_x", "number", true, "", "s_per_step as a multiple of unsloth's."},

      {"hardware", "string", false, "", "The device that was found."},
      {"device", "string", false, "", "cuda or cpu."},
      {"gpu_uuid", "string", true, "", "Of the GPU that ran it."},
      {"cuda_version", "string", true, "", "CUDA that the arm's library was built with."},
      {"torch_version", "string", true, "", "LibTorch or PyTorch."},
      {"transformers_version", "string", true, "", "Python arms."},
      {"bitsandbytes_version", "string", true, "", "Python arms."},

      {"cell_key", "string", false, "", "sha256 of what defines the work."},
      {"group_key", "string", false, "", "The same without the method: what is compared."},
      {"spec_id", "string", false, "", "Of the campaign."},
      {"spec_sha256", "string", false, "",
       "Of the spec without labels, passes, timeouts, reporting."},
      {"spec_cell", "object", false, "", "The cell's part of the spec, complete."},
      {"protocol", "string", false, "", "shared or native."},
      {"protocol_warnings", "texts", false, "", "What a reader must know of protocol native."},
      {"token_sha256", "string", false, "", "Of the token file that was read."},
      {"adapter_sha256", "string", false, "", "Of the initial adapter."},
      {"weights", "string", false, "", "pretrained@<sha256> or random(<seed>)."},
      {"cell_build", "string", false, "", "sha256 of the program that ran the cell."},
      {"git_commit", "string", false, "", "Of the driver; empty when it was not built from git."},
      {"git_dirty", "boolean", false, "", "The driver was built with local changes."},
      {"environment", "object", false, "", "Facts about the machine, from an allow-list."},
      {"run_id", "string", true, "", "Of the run of the driver."},
      {"timestamp", "string", true, "", "UTC, when the record was made."},
      {"entrypoint", "string", true, "", "Of the Python original's records."},
  };
  return fields;
}

std::string artifact_markdown() {
  std::string text = fmt::format(
      "# RunArtifact\n\n"
      "What one cell yielded over its passes: `{{method}}_{{arch}}_{{precision}}.json` in a "
      "campaign "
      "folder.\nSchema version {}.x. What was not measured is null, never 0. The names of the "
      "Python "
      "original are\nkept. This page is what `poros schema artifact` prints.\n\n",
      kArtifactSchemaMajor);
  std::vector<std::vector<std::string>> rows = {{"field", "type", "unit", "meaning"}};
  for (const ArtifactField& field : artifact_fields()) {
    rows.push_back({field.name, std::string(field.type) + (field.nullable ? " or null" : ""),
                    field.unit, field.text});
  }
  return text + markdown_table(rows);
}

Json artifact_json() {
  Json properties = Json::object(), required = Json::array();
  for (const ArtifactField& field : artifact_fields()) {
    const std::string type = field.type;
    Json schema = {{"type", type}};
    if (type == "numbers" || type == "texts") {
      schema = {{"type", "array"}, {"items", {{"type", type == "texts" ? "string" : "number"}}}};
    }
    if (field.nullable) schema["type"] = {schema["type"], "null"};
    const std::string unit = field.unit;
    schema["description"] = unit.empty() ? field.text : field.text + (" [" + unit + "]");
    properties[field.name] = schema;
    required.push_back(field.name);
  }
  properties["status"]["enum"] = {"ok", "oom", "error", "skipped"};
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", "Poros Bench RunArtifact"},
          {"type", "object"},
          {"properties", properties},
          {"required", required}};
}

}  // namespace poros
