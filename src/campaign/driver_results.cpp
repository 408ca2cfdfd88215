// SPDX-License-Identifier: Apache-2.0
// The driver's results: artifacts of a comparison group, and its parity gate.
#include <system_error>

#include "base/files.hpp"
#include "base/sha256.hpp"
#include "campaign/driver.hpp"
#include "campaign/parity_run.hpp"

namespace poros {
namespace fs = std::filesystem;

std::optional<std::vector<RunArtifact>> Driver::load_finished(const ComparisonGroup& group) const {
  std::vector<RunArtifact> artifacts;
  for (const std::size_t index : group.cells) {
    const PlannedCell& cell = plan_.cells[index];
    const ResultEntry* entry = progress_.ledger.cell(cell.key);
    std::error_code error;
    if (entry == nullptr && !progress_.is_selected(cell)) continue;
    if (entry == nullptr || !fs::exists(folder_ / entry->path, error)) return std::nullopt;
    // A skip that holds no longer, or holds only now, makes the cell's result another one.
    if ((entry->status == "skipped" && progress_.ledger.passes(cell.key, "timed").empty()) !=
        progress_.skip(cell).has_value()) {
      return std::nullopt;
    }
    const std::string text = read_file(folder_ / entry->path);
    if (sha256_hex(text) != entry->sha256) return std::nullopt;
    RunArtifact artifact = run_artifact_from_json(parse_json(text, entry->path), entry->path);
    if (artifact.n_passes_expected != progress_.passes_of(group)) return std::nullopt;
    artifacts.push_back(std::move(artifact));
  }
  return artifacts;
}

void Driver::record_artifact(const PlannedCell& cell, const RunArtifact& artifact) {
  const Json json = to_json(artifact);
  const std::string text = dump_json(json, 1) + "\n";
  const std::string sha256 = sha256_hex(text);
  const fs::path path = child_path(folder_.dir(), cell.file);
  std::error_code error;
  const ResultEntry* known = progress_.ledger.cell(cell.key);
  if (known != nullptr && known->sha256 == sha256 && known->path == cell.file &&
      fs::exists(path, error) && sha256_file(path) == sha256) {
    return;
  }
  write_file_durably(path, text);
  Receipt receipt;
  receipt.kind = "cell";
  receipt.key = cell.key;
  receipt.fields = scalar_fields(json);
  receipt.artifact_path = cell.file;
  receipt.artifact_sha256 = sha256;
  append(std::move(receipt));
}

std::vector<RunArtifact> Driver::finish_group(GroupState& state) {
  std::vector<RunArtifact> artifacts;
  ArtifactContext context = artifact_context_;
  context.n_passes = progress_.passes_of(state.group);
  std::vector<std::size_t> indices;              // of the artifacts' cells
  std::vector<std::optional<PassRecord>> first;  // first good pass of each of them
  for (const std::size_t index : state.group.cells) {
    const PlannedCell& cell = plan_.cells[index];
    std::vector<RecordedPass> passes;
    for (const AttemptEntry& entry : progress_.ledger.passes(cell.key, "timed")) {
      if (!entry.superseded) passes.push_back(load_pass(entry));
    }
    if (passes.empty() && !progress_.is_selected(cell)) continue;
    indices.push_back(index);
    first.emplace_back();
    for (const RecordedPass& pass : passes) {
      if (pass.record.status == "ok" && !first.back()) first.back() = pass.record;
    }
    const auto& skip = progress_.skip(cell);
    if (passes.empty() && skip) {
      artifacts.push_back(skipped_artifact(context, cell, *skip));
    } else {
      artifacts.push_back(make_artifact(context, cell, passes));
    }
    const auto failure = state.input_failures.find(cell.key);
    if (failure != state.input_failures.end() && !skip) {
      artifacts.back().status = "error";
      artifacts.back().reason = "bad_input";
      artifacts.back().error_message = redactor_.redact(failure->second);
    }
  }
  std::vector<RunArtifact*> arms;
  std::vector<const PassRecord*> records;
  for (std::size_t i = 0; i < artifacts.size(); ++i) {
    arms.push_back(&artifacts[i]);
    records.push_back(first[i] ? &*first[i] : nullptr);
  }
  check_equal_work(arms, records);
  compare_arms(arms);
  for (std::size_t i = 0; i < artifacts.size(); ++i) {
    record_artifact(plan_.cells[indices[i]], artifacts[i]);
  }
  return artifacts;
}

std::optional<Json> Driver::load_parity(const ComparisonGroup& group) const {
  const ResultEntry* entry = progress_.ledger.parity(group.key);
  std::error_code error;
  if (entry == nullptr || !fs::exists(folder_ / entry->path, error)) return std::nullopt;
  const std::string text = read_file(folder_ / entry->path);
  if (sha256_hex(text) != entry->sha256) return std::nullopt;
  return parse_json(text, entry->path);
}

std::optional<Json> Driver::run_parity(GroupState& state,
                                       const std::vector<RunArtifact>& artifacts) {
  const ComparisonGroup& group = state.group;
  if (!progress_.wants_parity(group)) {
    if (progress_.ledger.parity(group.key) == nullptr || plan_.spec.parity != "auto") {
      return std::nullopt;
    }
    if (auto known = load_parity(group)) return known;
    live_.say(fmt::format("{}: its parity record is missing or was changed: measured again",
                          plan_.cells[group.cells.front()].model));
  }
  for (const RunArtifact& artifact : artifacts) {
    if (is_own_arm(artifact.method) && artifact.status != "ok") return std::nullopt;
  }
  if (!prepare(state) || !state.inputs) return std::nullopt;
  return measure_parity(state, *plan_.find(group, "poros"), *plan_.find(group, "resident"));
}

std::optional<Json> Driver::measure_parity(GroupState& state, const PlannedCell& a,
                                           const PlannedCell& b) {
  ParityEvidence evidence;
  evidence.a = &a;
  evidence.b = &b;
  for (const PlannedCell* cell : {&a, &b}) {
    const AttemptEntry* last = progress_.ledger.last_attempt(cell->key, "parity", 0);
    const bool usable = last != nullptr && last->status == "ok" && !last->superseded &&
                        last->cell_build == progress_.arm(*cell).build;
    auto pass = usable ? std::optional(load_pass(*last)) : run_pass(state, *cell, "parity", 0);
    if (!pass) return std::nullopt;
    if (pass->record.status != "ok" && evidence.failure.empty()) {
      evidence.failure =
          fmt::format("{}: {}: {}", cell->label(), pass->record.reason, pass->record.error_message);
    }
    evidence.passes.push_back(std::move(*pass));
  }
  try {
    if (evidence.failure.empty()) {
      evidence.hashes =
          compare_hashes(evidence.passes[0].record.hashes, evidence.passes[1].record.hashes);
    }
    if (evidence.hashes && evidence.hashes->first && evidence.hashes->first->kind != "steps") {
      std::vector<fs::path> dumps;
      for (const PlannedCell* cell : {&a, &b}) {
        dumps.push_back(
            fs::absolute(folder_.live() / ("dump-" + rank_name_ + "-" + cell->spec.method)));
        fs::remove_all(dumps.back());
        fs::create_directories(dumps.back());
        auto pass = run_pass(state, *cell, "parity", 1,
                             CellRequest::Dump{evidence.hashes->first->step, dumps.back()});
        if (!pass) return std::nullopt;
        if (pass->record.status != "ok") {
          fail(Fault::run, "{}: {}", cell->label(), pass->record.error_message);
        }
        evidence.passes.push_back(std::move(*pass));
      }
      evidence.dumps = compare_dumps(dumps[0], dumps[1]);
      for (const fs::path& dump : dumps) fs::remove_all(dump);
    }
  } catch (const Error& error) {
    if (error.fault() == Fault::io) throw;
    evidence.failure = error.what();
  }

  const Json record = redactor_.redact_json(parity_record(artifact_context_, evidence));
  std::int64_t number = 1;
  std::error_code error;
  while (fs::exists(folder_ / CampaignFolder::parity_file(a.group, number), error)) ++number;
  Receipt receipt;
  receipt.kind = "parity";
  receipt.key = a.group;
  receipt.fields = scalar_fields(record);
  receipt.artifact_path = CampaignFolder::parity_file(a.group, number);
  const std::string text = dump_json(record, 1) + "\n";
  receipt.artifact_sha256 = sha256_hex(text);
  fs::create_directories((folder_ / receipt.artifact_path).parent_path());
  write_file_durably(folder_ / receipt.artifact_path, text);
  append(std::move(receipt));
  live_.say(parity_line(record));
  return record;
}

}  // namespace poros
