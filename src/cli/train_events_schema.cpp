// SPDX-License-Identifier: Apache-2.0
#include "cli/train_events_schema.hpp"

#include <vector>

#include "spec/text_form.hpp"

namespace poros {
namespace {

struct EventField {
  const char *name, *type, *text;  // type: of JSON; with "?" the field may be null
};
struct EventType {
  const char *name, *text;
  std::vector<EventField> fields;
};

const std::vector<EventField>& line_fields() {
  static const std::vector<EventField> fields = {
      {"event_type", "string", "One of the types below."},
      {"timestamp", "number", "Unix time [s]."},
      {"step", "integer", "Optimizer steps done, over all runs."},
      {"block_id", "null", "Of older readers; always null."},
      {"run_id", "string", "Of the process: a run that goes on has a new one."},
      {"data", "object", "By type."}};
  return fields;
}

const std::vector<EventType>& event_types() {
  static const std::vector<EventType> types = {
      {"setup",
       "Once a run, before its first step.",
       {{"model", "string", "As the config names it."},
        {"weights", "string", "pretrained@<hash> or random(<seed>)."},
        {"quantization", "string", "Storage of the base."},
        {"block_size", "integer", "Decoder layers of a block."},
        {"steps", "integer", "Of the whole training; the learning rate's horizon."},
        {"device", "object", "kind, name; of a GPU also uuid and memory_total_mb."},
        {"residency", "string", "resident, streamed or partial, as chosen."},
        {"compute_dtype", "string", "bf16 or fp32."},
        {"threads", "integer", "Of the CPU."},
        {"seq_len", "integer", "Tokens of a row."},
        {"rows_per_step", "integer", "batch_size x gradient_accumulation_steps."},
        {"rows", "integer", "Of the training data."},
        {"validation_rows", "integer?", "Rows to evaluate on."},
        {"token_sha256", "string", "Of the token file."},
        {"trainable_params", "integer", "Elements of the adapters."},
        {"planned_device_mb", "number", "Device memory of the plan [2^20 bytes]."},
        {"planned_host_mb", "number", "Host memory of the plan [2^20 bytes]."},
        {"plan_hash", "string", "Of the numerical plan: equal plans give equal bits."},
        {"versions", "object", "Libraries."},
        {"config", "object", "The whole config, defaults included."},
        {"output_dir", "string", "Folder of the training."},
        {"resumed_from", "object",
         "Where it goes on: run_id, step, steps, path, exact. Else absent."}}},
      {"step",
       "After each optimizer step.",
       {{"loss", "number", "Mean over the step's supervised tokens [nat]."},
        {"grad_norm", "number", "Global 2-norm before clipping."},
        {"lr", "number", "Learning rate that this step used."},
        {"s_per_step", "number", "Wall time [s]."},
        {"vram_allocated_mb", "number", "Allocator, or the arena on the CPU [2^20 bytes]."},
        {"vram_reserved_mb", "number", "Held from the device [2^20 bytes]."},
        {"host_rss_mb", "number?", "Resident set of the trainer [2^20 bytes]."},
        {"tokens", "integer", "Trained on so far, without padding, over all runs."},
        {"step_tokens", "integer", "Of this step, without padding."},
        {"supervised_tokens", "integer", "Of this step; 0: no update was made."},
        {"copied_bytes", "integer", "Of the base, host to device, in this step."}}},
      {"eval",
       "On the validation rows.",
       {{"step", "integer", "Steps done."},
        {"eval_loss", "number", "Mean over all supervised tokens [nat]."},
        {"eval_perplexity", "number", "exp(eval_loss)."},
        {"eval_seconds", "number", "Wall time [s]."},
        {"eval_rows", "integer", "Rows read."},
        {"eval_tokens", "integer", "Supervised tokens."}}},
      {"checkpoint",
       "A checkpoint is on the disk.",
       {{"path", "string", "Its folder."}, {"seconds", "number", "Wall time [s]."}}},
      {"oom",
       "Memory was refused.",
       {{"message", "string", "By whom."},
        {"asked_mb", "number?", "Device memory of the plan [2^20 bytes]."},
        {"asked_host_mb", "number?", "Host memory of the plan [2^20 bytes]."},
        {"held_mb", "number", "Device memory held [2^20 bytes]."},
        {"free_mb", "number?", "Free on the device, or the host where it is the CPU [2^20 bytes]."},
        {"largest", "array", "The plan's largest buffers: name, mb."},
        {"hints", "array", "Settings that need less."}}},
      {"error",
       "What went wrong; after damaged_checkpoint the run goes on.",
       {{"reason", "string", "diverged, damaged_checkpoint, bad_input, io, environment, failed."},
        {"message", "string", "For people."},
        {"loss", "number?", "Of diverged; null: not finite."},
        {"grad_norm", "number?", "Of diverged; null: not finite."}}},
      {"teardown",
       "Last of a run that was not killed.",
       {{"status", "string", "ok, stopped, oom or error."},
        {"reason", "string?", "signal, diverged, ..."},
        {"message", "string?", "For people."},
        {"device", "string", "cpu or cuda."},
        {"quantization", "string", "Storage of the base."},
        {"block_size", "integer", "As the config says."},
        {"total_steps", "integer", "Of the whole training."},
        {"steps_done", "integer", "Over all runs."},
        {"final_loss", "number?", "Of the last step of this run."},
        {"first_eval_loss", "number?", "First of this run [nat]."},
        {"final_eval_loss", "number?", "Last of this run [nat]."},
        {"final_eval_perplexity", "number?", "exp of it."},
        {"total_time_s", "number", "From the first step's begin."},
        {"avg_step_time_ms", "number?", "Evaluations and checkpoints included."},
        {"steps_per_sec", "number?", "The same."},
        {"tokens_processed", "integer", "Over all runs, without padding."},
        {"tokens_per_sec", "number?", "Of this run."},
        {"peak_vram_allocated_mb", "number?", "Largest of the steps [2^20 bytes]."},
        {"peak_vram_reserved_mb", "number?", "Largest of the steps [2^20 bytes]."},
        {"checkpoint", "string?", "The newest."},
        {"adapter", "string?", "Folder of the finished adapter."}}}};
  return types;
}

std::string table(const std::vector<EventField>& fields) {
  std::vector<std::vector<std::string>> rows = {{"field", "type", "meaning"}};
  for (const EventField& field : fields) rows.push_back({field.name, field.type, field.text});
  return markdown_table(rows);
}

Json object_schema(const std::vector<EventField>& fields) {
  Json properties = Json::object();
  for (const EventField& field : fields) {
    std::string type = field.type;
    const bool nullable = type.ends_with('?');
    if (nullable) type.pop_back();
    properties[field.name] = {{"type", nullable ? Json{type, "null"} : Json(type)},
                              {"description", field.text}};
  }
  return {{"type", "object"}, {"properties", properties}};
}

}  // namespace

std::string events_markdown() {
  std::string text =
      "# events.jsonl\n\nA training appends one JSON object a line. A type with `?` may be "
      "null.\n\n";
  text += table(line_fields());
  for (const EventType& type : event_types()) {
    text += fmt::format("\n## {}\n\n{}\n\n", type.name, type.text) + table(type.fields);
  }
  return text;
}

Json events_json() {
  Json schema = object_schema(line_fields());
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "line of events.jsonl";
  schema["required"] = {"event_type", "timestamp", "step", "block_id", "run_id", "data"};
  schema["oneOf"] = Json::array();
  for (const EventType& type : event_types()) {
    schema["oneOf"].push_back(
        {{"properties",
          {{"event_type", {{"const", type.name}}}, {"data", object_schema(type.fields)}}}});
  }
  return schema;
}

}  // namespace poros
