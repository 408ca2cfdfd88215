// SPDX-License-Identifier: Apache-2.0
#include "made_campaign.hpp"

#include <cmath>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "campaign/artifacts.hpp"
#include "campaign/open_campaign.hpp"
#include "receipts/journal.hpp"
#include "spec/spec_reader.hpp"

namespace poros::testing {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kPlacements = 1000;  // a spec takes 1,024

PassRecord make_pass(const PlannedCell& cell, const std::string& build, std::int64_t steps,
                     std::int64_t index) {
  PassRecord record;
  record.cell_key = cell.key;
  record.method = cell.spec.method;
  record.started_at = "2026-12-01T03:00:00.000Z";
  record.finished_at = "2026-12-01T03:00:50.000Z";
  const double shift = 0.001 * static_cast<double>(index % 997);
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto s = static_cast<double>(step);
    record.steps.loss.push_back(1.6 + 0.9 * std::exp(-s / 9.0) + shift);
    record.steps.grad_norm.push_back(0.8 + 0.3 * std::sin(s + shift));
    record.steps.learning_rate.push_back(2e-5 * (1 - s / static_cast<double>(steps)));
    record.steps.s_per_step.push_back(0.5 + 0.01 * std::cos(7 * s + shift));
    record.steps.allocated_mb.push_back(812.5 + shift);
    record.steps.reserved_mb.push_back(900);
    record.steps.host_rss_mb.push_back(1500 + s);
    record.steps.supervised_tokens.push_back(4088);
  }
  record.s_per_step = 0.5 + shift;
  record.load_s = 4;
  record.vram_peak_mb = 812.5 + shift;
  record.host_rss_peak_mb = 1700;
  record.trainable_params = 1000;
  record.token_sha256 = sha256_hex("tokens");
  record.adapter_sha256 = sha256_hex("adapter");
  record.weights = "pretrained@0123abcd";
  record.base_bytes = {{"nf4", 4096.0}};
  record.device = {{"kind", "cpu"}, {"name", "made up"}, {"uuid", nullptr}};
  record.versions = {{"torch", "2.11.0"}};
  record.driver = {{"exit_code", 0},
                   {"host", "node7"},
                   {"wall_s", 50.0},
                   {"cell_build", build},
                   {"environment", {{"hostname", "node7"}, {"cpu_cores", 16}}}};
  return record;
}

}  // namespace

MadeCampaign make_campaign(std::int64_t cells, std::int64_t steps, const fs::path& where) {
  const bool memory = ::access("/dev/shm", W_OK) == 0;
  const fs::path below = !where.empty() ? where : memory ? "/dev/shm" : fs::temp_directory_path();
  std::string pattern = (below / "poros-made.XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) fail_errno(Fault::io, pattern);
  MadeCampaign campaign{pattern, cells, steps};
  std::ofstream(campaign.root / "cells.json") << "{}\n";
  // As many models of the same files as placements alone are too few.
  const std::int64_t models = (cells + kPlacements - 1) / kPlacements;
  const fs::path model = fs::path(POROS_SOURCE_DIR) / "configs" / "models" / "kjv-qwen2";
  const std::int64_t placements = (cells + models - 1) / models;
  campaign.cells = models * placements;
  std::ofstream spec(campaign.spec());
  spec << "spec_id: made-up\ndevice: cpu\nparity: \"off\"\nmethods: [resident]\n"
          "training:\n  seq_len: 16\n  batch_size: 2\n  "
          "gradient_accumulation_steps: 1\n"
          "  dataset: synthetic\n  n_passes: 1\n  steps: "
       << steps << "\nmodels:\n";
  for (std::int64_t i = 0; i < models; ++i) {
    const fs::path link = campaign.root / fmt::format("kjv-qwen2-{}", i);
    fs::create_directory_symlink(model, link);
    spec << "  - model_id: " << link.string() << "\n    display_name: KJV " << i << "\n";
  }
  spec << "hardware:\n";
  for (std::int64_t i = 0; i < placements; ++i) {
    spec << "  - gpu_name: slot-" << i << "\n";
  }
  if (!spec.flush()) fail(Fault::io, "{}: can't be written", campaign.spec().string());
  ::setenv("POROS_FAKE_CELL", (campaign.root / "cells.json").c_str(), 1);
  ::setenv("POROS_PYTHON", "/proc/self/exe", 1);
  ::setenv("POROS_PEERS_DIR", campaign.root.c_str(), 1);  // holds no runner
  ::setenv("POROS_PEERS_PYTHON", "", 1);
  ::setenv("POROS_THREADS", "1", 1);
  ::setenv("POROS_CACHE_DIR", (campaign.root / "cache").c_str(), 1);
  return campaign;
}

void make_records(const MadeCampaign& campaign, std::int64_t finished) {
  const CampaignPlan plan = make_plan(read_spec(campaign.spec()));
  const CampaignFolder folder(campaign.dir());
  fs::create_directories(folder.dir());
  JournalWriter journal = JournalWriter::open(folder.journal());
  const CampaignIdentity identity = write_identity(folder, plan);
  const ArtifactContext context{plan.spec.spec_id, plan.spec_sha256, identity.campaign_id, 1};
  const auto put = [&](const char* kind, const std::string& key, const Json& json,
                       const std::string& path) {
    const std::string text = dump_json(json, 1) + "\n";
    fs::create_directories((folder / path).parent_path());
    std::ofstream(folder / path, std::ios::binary) << text;  // speed before durability
    Receipt receipt;
    receipt.kind = kind;
    receipt.key = key;
    receipt.fields = scalar_fields(json);
    receipt.artifact_path = path;
    receipt.artifact_sha256 = sha256_hex(text);
    return receipt;
  };
  const std::string build = sha256_file("/proc/self/exe");
  std::vector<Receipt> receipts;
  for (std::int64_t i = 0; i < finished; ++i) {
    const PlannedCell& cell = plan.cells.at(static_cast<std::size_t>(i));
    RecordedPass pass{make_pass(cell, build, campaign.steps, i),
                      CampaignFolder::pass_file(cell.key, "timed", 0, 1),
                      {}};
    Receipt attempt = put("attempt", cell.key, to_json(pass.record), pass.path);
    attempt.fields["cell_build"] = pass.record.driver.at("cell_build");
    attempt.fields["host"] = pass.record.driver.at("host");
    pass.sha256 = attempt.artifact_sha256;
    receipts.push_back(std::move(attempt));
    const RunArtifact artifact = make_artifact(context, cell, {pass});
    receipts.push_back(put("cell", cell.key, to_json(artifact), cell.file));
  }
  for (Receipt& receipt : receipts) static_cast<void>(journal.append(std::move(receipt)));
  journal.close();
}

}  // namespace poros::testing
