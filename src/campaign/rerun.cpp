// SPDX-License-Identifier: Apache-2.0
#include "campaign/rerun.hpp"

#include <system_error>

#include <unistd.h>

#include "base/files.hpp"
#include "base/nvml.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "campaign/arms.hpp"
#include "campaign/artifacts.hpp"
#include "campaign/attempt.hpp"
#include "campaign/campaign.hpp"
#include "campaign/inputs.hpp"
#include "campaign/ledger.hpp"
#include "campaign/open_campaign.hpp"
#include "campaign/signals.hpp"
#include "campaign/summary.hpp"
#include "cell/environment.hpp"
#include "receipts/journal.hpp"
#include "receipts/lease.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

struct RecordedCell {
  RunArtifact artifact;
  PlannedCell cell;
  std::int64_t threads = 1;
};

/// From a pass's record: with how many threads it ran, which is part of the numerical plan on the
/// CPU, and where model and data lay.
void take_pass_facts(const Json& record, const std::string& origin, RecordedCell& found) {
  const Json driver = record.value("driver", Json::object());
  const auto place = [&](const char* name, std::string& path) {
    if (const auto text = json_find<std::string>(driver, name, origin)) path = *text;
  };
  if (const auto n = json_find<std::int64_t>(driver, "threads", origin)) found.threads = *n;
  DatasetSpec& data = found.cell.spec.training.dataset;
  place("model_dir", found.cell.spec.model.path);
  place("dataset_path", data.path);
  place("validation_path", data.validation_path);
  place("chat_template_path", data.chat_template_path);
}

RecordedCell read_recorded_cell(const CampaignFolder& folder, const std::string& text,
                                const fs::path& model_dir) {
  const std::string key = find_cell_key(folder, text);
  const Ledger ledger(read_journal(folder.journal()).receipts);
  const ResultEntry* entry = ledger.cell(key);
  if (entry == nullptr) {
    fail(Fault::input, "{}: the cell {:.12} has no record yet: there is nothing to repeat",
         folder.dir().string(), key);
  }
  const fs::path path = child_path(folder.dir(), entry->path);
  const std::string bytes = read_file(path);
  if (sha256_hex(bytes) != entry->sha256) {
    fail(Fault::input, "{}: is not the record that the journal names: it was changed",
         path.string());
  }
  RecordedCell found;
  found.artifact = run_artifact_from_json(parse_json(bytes, path.string()), path.string());
  PlannedCell& cell = found.cell;
  cell.spec = cell_spec_from_json(found.artifact.spec_cell, path.string() + ": spec_cell");
  cell.key = cell_key(cell.spec);
  if (cell.key != key) {
    fail(Fault::input,
         "{}: this program reads another work from it ({:.12}); repeat it with the version that "
         "wrote it ({})",
         path.string(), cell.key, found.artifact.git_commit);
  }
  cell.group = found.artifact.group_key;
  cell.model = found.artifact.arch;
  cell.file = entry->path;
  found.threads = usable_threads();
  for (const AttemptEntry& pass : ledger.passes(key, "timed")) {
    std::error_code error;
    const fs::path record = folder / pass.path;
    if (!fs::exists(record, error)) continue;
    take_pass_facts(parse_json(read_file(record), record.string()), record.string(), found);
    break;
  }
  if (!model_dir.empty()) cell.spec.model.path = fs::absolute(model_dir).string();
  return found;
}

/// A folder for the new run: the one that was asked for, or a temporary one that goes with this.
class WorkFolder {
 public:
  explicit WorkFolder(const std::optional<fs::path>& into) {
    if (into) {
      std::error_code error;
      if (fs::exists(*into, error) && !fs::is_empty(*into, error)) {
        fail(Fault::input, "{}: is not empty; name a new folder", into->string());
      }
      path_ = fs::absolute(*into);
      fs::create_directories(path_);
      return;
    }
    std::string name = (fs::temp_directory_path() / "poros-rerun-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_errno(Fault::io, name);
    path_ = name;
    temporary_ = true;
  }
  ~WorkFolder() {
    std::error_code error;
    if (temporary_) fs::remove_all(path_, error);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] bool is_temporary() const { return temporary_; }

 private:
  fs::path path_;
  bool temporary_ = false;
};

/// The driver's environment; the record's GPU is chosen where it is here and nobody chose another.
std::map<std::string, std::string> environment_for(const RunArtifact& artifact) {
  std::map<std::string, std::string> environment = current_environment();
  if (!artifact.gpu_uuid || environment.contains("CUDA_VISIBLE_DEVICES")) return environment;
  const Nvml* nvml = Nvml::open();
  if (nvml != nullptr && nvml->resolve(*artifact.gpu_uuid) != nullptr) {
    environment["CUDA_VISIBLE_DEVICES"] = *artifact.gpu_uuid;
  }
  return environment;
}

struct Figure {
  const char* name;
  std::optional<double> RunArtifact::*value;
};
constexpr Figure kFigures[] = {{"s_per_step", &RunArtifact::s_per_step},
                               {"tok_per_sec", &RunArtifact::tok_per_sec},
                               {"vram_peak_mb", &RunArtifact::vram_peak_mb},
                               {"host_rss_peak_mb", &RunArtifact::host_rss_peak_mb},
                               {"pinned_mb", &RunArtifact::pinned_mb},
                               {"joule_per_token", &RunArtifact::joule_per_token},
                               {"load_s", &RunArtifact::load_s},
                               {"first_step_loss", &RunArtifact::first_step_loss},
                               {"mean_loss_last10", &RunArtifact::mean_loss_last10}};

/// What must be the same for the figures to be those of the same work, and what may explain a
/// difference.
Json differences(const RunArtifact& old, const RunArtifact& now, bool work) {
  Json list = Json::array();
  const auto compare = [&](const char* name, const std::string& a, const std::string& b) {
    if (a != b && !a.empty()) list.push_back({{"what", name}, {"recorded", a}, {"now", b}});
  };
  if (work) {
    compare("status", old.status, now.status);
    if (now.status != "ok") return list;
    compare("token_sha256", old.token_sha256, now.token_sha256);
    compare("adapter_sha256", old.adapter_sha256, now.adapter_sha256);
    compare("weights", old.weights, now.weights);
    const auto count = [](const std::optional<std::int64_t>& n) {
      return n ? std::to_string(*n) : std::string();
    };
    compare("trainable_params", count(old.trainable_params), count(now.trainable_params));
    return list;
  }
  compare("hardware", old.hardware, now.hardware);
  compare("gpu_uuid", old.gpu_uuid.value_or(""), now.gpu_uuid.value_or(""));
  compare("cell_build", old.cell_build, now.cell_build);
  compare("torch_version", old.torch_version.value_or(""), now.torch_version.value_or(""));
  return list;
}

Json comparison_json(const RunArtifact& old, const RunArtifact& now) {
  Json figures = Json::object();
  for (const auto& [name, value] : kFigures) {
    const std::optional<double>&a = old.*value, &b = now.*value;
    figures[name] = {{"recorded", a ? Json(*a) : Json(nullptr)},
                     {"now", b ? Json(*b) : Json(nullptr)},
                     {"ratio", a && b && *a != 0 ? Json(*b / *a) : Json(nullptr)}};
  }
  return {{"cell_key", old.cell_key},
          {"figures", figures},
          {"other_work", differences(old, now, true)},
          {"other_conditions", differences(old, now, false)}};
}

std::string comparison_text(const RunArtifact& old, const RunArtifact& now, const Json& compared) {
  const auto text = [](const Json& value) {
    return value.is_null() ? std::string("--") : fmt::format("{:.6g}", value.get<double>());
  };
  std::vector<std::vector<std::string>> rows{{"", "recorded", "now", "now/recorded"}};
  rows.push_back({"status", old.status, now.status, ""});
  rows.push_back({"passes", std::to_string(old.n_passes), std::to_string(now.n_passes), ""});
  for (const auto& [name, value] : kFigures) {
    const Json& figure = compared.at("figures").at(name);
    rows.push_back({name, text(figure.at("recorded")), text(figure.at("now")),
                    figure.at("ratio").is_null()
                        ? "--"
                        : fmt::format("{:.4f}", figure.at("ratio").get<double>())});
  }
  std::string out = aligned(rows);
  for (const char* kind : {"other_work", "other_conditions"}) {
    for (const Json& line : compared.at(kind)) {
      out += fmt::format("{} {}: {:.24} recorded, {:.24} now\n",
                         std::string(kind) == "other_work" ? "OTHER WORK" : "other",
                         line.at("what").get<std::string>(), line.at("recorded").get<std::string>(),
                         line.at("now").get<std::string>());
    }
  }
  return out;
}

}  // namespace

int rerun_cell(const RerunOptions& options) {
  const CampaignFolder recorded_folder(options.dir);
  const RecordedCell recorded = read_recorded_cell(recorded_folder, options.key, options.model_dir);
  const PlannedCell& cell = recorded.cell;
  const WorkFolder work(options.into);
  const CampaignFolder folder(work.path());
  const std::map<std::string, std::string> environment = environment_for(recorded.artifact);
  const Redactor redactor(environment);
  const OomCounter oom;
  const StopSignals signals;
  become_subreaper();
  const InstallPaths paths = find_install_paths(options.cell_program);
  const ArmProgram arm = arm_program(paths, cell.spec.method, cell.spec.device);
  if (arm.skip) fail(Fault::environment, "{}: {}", cell.label(), arm.skip->message);
  const auto say = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  GroupInputs inputs;
  try {
    const InputContext context{folder, paths, redactor, say, [&] { return signals.requested(); }};
    inputs = recorded_inputs(context, cell.spec,
                             {recorded_folder.inputs(), recorded.artifact.token_sha256,
                              recorded.artifact.adapter_sha256});
  } catch (const InputsStopped&) {
    return kStoppedEarly;
  }
  const std::string run_id = fmt::format("rerun-{}-{:.8}", ::getpid(), cell.key);
  const LeaseHolder self = this_process("", "");
  const AttemptContext context{
      .folder = folder,
      .redactor = redactor,
      .oom = oom,
      .environment = environment,
      .campaign_id = run_id,
      .supervisor_program = options.supervisor_program,
      .timeouts = {},
      .any_gpu = options.allow_hardware_mismatch,
      .driver_facts = {{"host", self.host},
                       {"pid", self.pid},
                       {"repeats", recorded.artifact.spec_id + "/" + cell.file},
                       {"argv", command_line(options.argc, options.argv, redactor)},
                       {"environment", environment_snapshot(environment)}}};
  CellHooks hooks;
  hooks.stop_requested = [&] { return signals.requested(); };
  hooks.wake_fd = signals.fd();
  const std::int64_t n_passes =
      options.n_passes.value_or(std::max<std::int64_t>(1, recorded.artifact.n_passes));
  std::vector<RecordedPass> passes;
  for (std::int64_t pass = 0; pass < n_passes; ++pass) {
    const PassRecord record = run_attempt(context,
                                          {.cell = cell,
                                           .inputs = inputs,
                                           .arm = arm,
                                           .pass = pass,
                                           .threads = recorded.threads,
                                           .dump = {},
                                           .max_steps = {}},
                                          hooks);
    if (signals.requested()) return kStoppedEarly;
    const std::string text = dump_json(to_json(record), 1) + "\n";
    const std::string path = CampaignFolder::pass_file(cell.key, "timed", pass, 1);
    fs::create_directories((folder / path).parent_path());
    write_file_durably(folder / path, text);
    passes.push_back({record, path, sha256_hex(text)});
    say(fmt::format("{} pass {}/{}: {}{}", cell.label(), pass + 1, n_passes, record.status,
                    record.reason.empty() ? "" : "/" + record.reason));
    if (record.status != "ok") break;
  }
  const ArtifactContext artifact_context{recorded.artifact.spec_id, recorded.artifact.spec_sha256,
                                         run_id, n_passes};
  const RunArtifact now = make_artifact(artifact_context, cell, passes);
  const std::string text = dump_json(to_json(now), 1) + "\n";
  if (options.output_file) write_file_durably(*options.output_file, text);
  if (!work.is_temporary()) write_file_durably(child_path(work.path(), cell.file), text);
  std::error_code ignored;
  fs::remove_all(folder.live(), ignored);

  const Json compared = comparison_json(recorded.artifact, now);
  if (options.json) {
    fmt::print("{}\n", dump_json(compared, 2));
  } else {
    fmt::print("{}\n{}", cell.label(), comparison_text(recorded.artifact, now, compared));
    if (now.status != "ok") fmt::print("{}\n", now.error_message.value_or(""));
  }
  return compared.at("other_work").empty() ? kDone : kFailed;
}

}  // namespace poros
