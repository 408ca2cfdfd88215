// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>

#include "analysis/format.hpp"
#include "analysis/report_parts.hpp"

namespace poros {
namespace {

std::string text_at(const Json& object, const char* key) {
  return json_find<std::string>(object, key, kSpecFile).value_or("");
}

const Json& spec_body(const Campaign& campaign) {
  static const Json none = Json::object();
  const auto spec = campaign.spec.find("spec");
  if (spec != campaign.spec.end() && spec->is_object()) return *spec;
  return campaign.original_format ? campaign.spec : none;  // the original writes the spec alone
}

std::string value_text(const Json& value) {
  if (value.is_null()) return kMissing;
  return value.is_string() ? value.get<std::string>() : dump_json(value);
}

/// "training.steps" = "200" for every scalar or list below an object.
void flatten(const std::string& prefix, const Json& value, std::vector<NameValue>& into) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, item] : value.items()) {
      flatten(prefix.empty() ? key : prefix + "." + key, item, into);
    }
  } else {
    into.push_back({prefix, value_text(value)});
  }
}

/// In how many groups all measured arms agree on a value, as evidence in words.
std::string agreement(const ReportModel& model, const std::string& what,
                      const std::function<std::string(const Arm&)>& value_of) {
  std::size_t groups = 0, equal = 0, arms = 0, stated = 0;
  for (const Group& group : model.groups) {
    std::set<std::string> values;
    std::size_t with_value = 0;
    for (const Arm& arm : group.arms) {
      if (arm.passes_ok == 0) continue;
      ++arms;
      const std::string value = value_of(arm);
      if (value.empty()) continue;
      ++stated;
      ++with_value;
      values.insert(value);
    }
    if (with_value < 2) continue;
    ++groups;
    if (values.size() == 1) ++equal;
  }
  if (groups == 0) return fmt::format("{}: not comparable (no two arms state it)", what);
  return fmt::format("{}: equal in {} of {} (stated by {} of {} measured arms)", what, equal,
                     counted(groups, "comparison group"), stated, arms);
}

void describe_identity(ReportModel& model) {
  model.held_identical = {
      agreement(model, "Token file", [](const Arm& arm) { return arm.token_sha256; }),
      agreement(model, "Initial adapter", [](const Arm& arm) { return arm.adapter_sha256; }),
      agreement(model, "Number of trainable parameters",
                [](const Arm& arm) {
                  return arm.trainable_params ? std::to_string(*arm.trainable_params) : "";
                }),
      agreement(model, "Base weights", [](const Arm& arm) { return arm.weights; })};
  if (model.protocol == "shared") {
    model.held_identical.push_back(
        "AdamW (beta 0.9 and 0.999, epsilon 1e-8, weight decay), learning rate, schedule and "
        "gradient clipping: every arm is given the same settings");
    model.held_identical.push_back(
        "Step time: wall time of a whole optimizer step with the device synchronised at both ends");
    model.not_identical = {
        "Attention implementation, kernels and gradient checkpointing: each arm's own, as listed "
        "under Software",
        "Data types of embeddings, norms and head: each library's own"};
  } else if (model.protocol == "native") {
    model.not_identical = {
        "Data: the libraries' arms reuse one synthetic batch, the project's own arms train on the "
        "data set, so losses of different arms can't be compared",
        "Optimizer: the libraries' arms run a bare AdamW without schedule and clipping",
        "Attention implementation, kernels and gradient checkpointing: each arm's own"};
  }
  if (model.original_format) {
    model.not_identical.push_back(
        "These records were written by the Python original: they carry no checksums, and what its "
        "protocol held identical is not recorded");
  }
}

void describe_environments(const Campaign& campaign, ReportModel& model) {
  std::map<std::string, std::size_t> seen, seen_software;
  for (const CampaignCell& cell : campaign.cells) {
    const RunArtifact& a = cell.artifact;
    if (a.n_passes == 0) continue;
    std::vector<NameValue> facts{{"device", a.hardware}};
    if (a.gpu_uuid) facts.push_back({"GPU UUID", *a.gpu_uuid});
    if (a.vram_total_mb) facts.push_back({"device memory", memory(a.vram_total_mb)});
    flatten("", a.environment, facts);
    std::string key;
    for (const auto& fact : facts) key += fact.name + '\n' + fact.value + '\n';
    const auto [found, is_new] = seen.try_emplace(key, model.environments.size());
    if (is_new) model.environments.push_back({a.hardware, 0, std::move(facts), cell.path});
    ++model.environments[found->second].cells;

    std::vector<NameValue> software;
    const auto add = [&](const char* name, const std::optional<std::string>& value) {
      if (value && !value->empty()) software.push_back({name, *value});
    };
    add("torch", a.torch_version);
    add("CUDA", a.cuda_version);
    add("transformers", a.transformers_version);
    add("bitsandbytes", a.bitsandbytes_version);
    add("cell build", short_hash(a.cell_build));
    if (!cell.passes.empty()) flatten("", cell.passes.front().record.arm, software);
    key = a.method;
    for (const auto& fact : software) key += '\n' + fact.name + '\n' + fact.value;
    const auto [known, fresh] = seen_software.try_emplace(key, model.software.size());
    if (fresh) model.software.push_back({a.method, 0, std::move(software), cell.path});
    ++model.software[known->second].cells;
  }
}

}  // namespace

void describe_campaign(const Campaign& campaign, ReportModel& model) {
  const Json& spec = spec_body(campaign);
  model.original_format = campaign.original_format;
  model.title = text_at(campaign.spec, "spec_id");
  if (model.title.empty()) model.title = "Benchmark campaign";
  model.protocol = text_at(spec, "protocol");
  model.device = text_at(spec, "device");
  model.spec_sha256 = text_at(campaign.spec, "spec_sha256");
  model.receipts_sha256 = campaign.receipts_sha256;
  std::string first, last;
  for (const CampaignCell& cell : campaign.cells) {
    if (model.protocol.empty()) model.protocol = cell.artifact.protocol;
    if (model.device.empty()) model.device = cell.artifact.device;
    for (const CampaignPass& pass : cell.passes) {
      const std::string& begin = pass.record.started_at;
      const std::string& end = pass.record.finished_at;
      if (!begin.empty() && (first.empty() || begin < first)) first = begin;
      last = std::max(last, end);
    }
  }
  if (!first.empty() && !last.empty()) model.period = fmt::format("{} to {}", first, last);
}

void describe_conditions(const Campaign& campaign, ReportModel& model) {
  describe_identity(model);
  flatten("", spec_body(campaign), model.settings);
  describe_environments(campaign, model);
}

}  // namespace poros
