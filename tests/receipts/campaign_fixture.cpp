// SPDX-License-Identifier: Apache-2.0
#include "campaign_fixture.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "base/files.hpp"
#include "base/sha256.hpp"
#include "receipts/campaign_store.hpp"
#include "receipts/journal.hpp"

namespace poros::testing {
namespace {

namespace fs = std::filesystem;

/// Numbers in [0, 1), the same on every machine (SplitMix64).
class Numbers {
 public:
  explicit Numbers(const std::string& seed) {
    for (const char c : sha256_hex(seed).substr(0, 16))
      state_ = state_ * 31 + static_cast<unsigned char>(c);
  }
  double next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
  }

 private:
  std::uint64_t state_ = 0;
};

struct MethodShape {
  double memory, time;  // factors against resident
};

MethodShape shape_of(const std::string& method) {
  static const std::map<std::string, MethodShape> shapes{{"resident", {1.0, 1.0}},
                                                         {"poros", {0.27, 1.06}},
                                                         {"unsloth", {0.55, 1.9}},
                                                         {"peft", {1.15, 2.1}},
                                                         {"accelerate_offload", {0.7, 3.4}}};
  const auto found = shapes.find(method);
  return found == shapes.end() ? MethodShape{1, 1} : found->second;
}

double size_in_billions(const std::string& model) {
  std::string digits;
  for (const char c : model.substr(model.rfind('-') == std::string::npos ? 0 : model.rfind('-'))) {
    if ((c >= '0' && c <= '9') || c == '.') digits += c;
  }
  return digits.empty() ? 7 : std::stod(digits);
}

double card_mb(const std::string& hardware) {
  if (hardware.find("3090") != std::string::npos) return 24576;
  if (hardware.find("5090") != std::string::npos) return 32607;
  if (hardware.find("A100") != std::string::npos) return 81920;
  if (hardware.find("B300") != std::string::npos) return 275040;
  return 16384;
}

class Builder {
 public:
  Builder(fs::path dir, const FixtureOptions& options)
      : dir_(std::move(dir)), o_(options), journal_(JournalWriter::open(dir_ / kJournalName)) {}

  void build() {
    write_spec();
    for (const auto& hardware : o_.hardware) {
      for (const auto& model : o_.models) build_group(hardware, model);
    }
    journal_.close();
  }

 private:
  std::string text(const std::string& plain) const {
    return o_.attack.empty() ? plain : plain + o_.attack;
  }
  std::string key_of(const std::string& hardware, const std::string& model,
                     const std::string& method) const {
    return sha256_hex(o_.spec_id + hardware + model + method);
  }
  std::string group_of(const std::string& hardware, const std::string& model) const {
    return sha256_hex(o_.spec_id + hardware + model);
  }
  static std::string slug(const std::string& model) {
    std::string result;
    for (const char c : model.substr(model.find('/') + 1)) {
      result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return result;
  }

  void write_spec() {
    Json cells = Json::object(), models = Json::array();
    int index = 0;
    for (const auto& hardware : o_.hardware) {
      for (const auto& model : o_.models) {
        for (const auto& method : o_.methods) {
          cells[key_of(hardware, model, method)] = {
              {"file", nullptr},          {"index", index++},
              {"method", text(method)},   {"model", text(display(model))},
              {"precision", text("nf4")}, {"group_key", group_of(hardware, model)}};
        }
      }
    }
    for (const auto& model : o_.models) {
      models.push_back({{"model_id", text(model)}, {"display_name", text(display(model))}});
    }
    const Json spec{{"spec_id", text(o_.spec_id)},
                    {"protocol", "shared"},
                    {"device", o_.device},
                    {"models", models},
                    {"training", training()}};
    spec_sha256_ = sha256_hex(dump_json(spec));
    write_file_durably(dir_ / kSpecFile, dump_json({{"v", 1},
                                                    {"spec_id", text(o_.spec_id)},
                                                    {"spec_sha256", spec_sha256_},
                                                    {"spec", spec},
                                                    {"cells", cells}},
                                                   2) +
                                             "\n");
  }

  static std::string display(const std::string& model) { return model.substr(model.find('/') + 1); }

  Json training() const {
    return {{"steps", o_.steps},
            {"seq_len", 512},
            {"batch_size", 1},
            {"gradient_accumulation_steps", 8},
            {"seed", 42},
            {"warmup_steps", 5},
            {"n_passes", o_.passes},
            {"compute_dtype", "auto"},
            {"learning_rate", 2e-5},
            {"lr_scheduler", "cosine"},
            {"max_grad_norm", 1.0},
            {"weight_decay", 0.01},
            {"dataset", {{"source", text("synthetic")}, {"format", "auto"}}}};
  }

  PassRecord make_pass(const std::string& hardware, const std::string& model,
                       const std::string& method, int pass) {
    Numbers random(hardware + model + method + std::to_string(pass));
    const double billions = size_in_billions(model);
    const auto [memory, time] = shape_of(method);
    PassRecord r;
    r.cell_key = key_of(hardware, model, method);
    r.method = text(method);
    r.pass = pass;
    r.started_at = fmt::format("2026-12-01T03:{:02}:00.000Z", pass);
    r.finished_at = fmt::format("2026-12-01T03:{:02}:50.000Z", pass);
    const double peak = memory * (1500 + 1350 * billions);
    const double step_s =
        time * (0.05 + 0.055 * billions) * (card_mb(hardware) > 50000 ? 0.6 : 1.0);
    Numbers curve(hardware + model);  // the group's arms train the same way
    for (int step = 0; step < o_.steps; ++step) {
      const double noise = curve.next() - 0.5;
      r.steps.loss.push_back(1.6 + 0.9 * std::exp(-step / 9.0) + 0.06 * noise +
                             (method == "peft" ? 2e-4 * random.next() : 0.0));
      r.steps.grad_norm.push_back(0.8 + 0.3 * noise);
      r.steps.learning_rate.push_back(2e-5 * (1 - step / static_cast<double>(o_.steps)));
      r.steps.s_per_step.push_back(step_s * (step < 2 ? 1.6 : 1 + 0.03 * random.next()));
      r.steps.allocated_mb.push_back(peak * (0.9 + 0.02 * random.next()));
      r.steps.reserved_mb.push_back(peak * 1.05);
      r.steps.host_rss_mb.push_back((method == "poros" ? 1.4 : 0.9) * (900 + 520 * billions) +
                                    20 * random.next());
      r.steps.supervised_tokens.push_back(4088);
    }
    auto sorted = std::vector<double>(r.steps.s_per_step.begin() + std::min(5, o_.steps - 1),
                                      r.steps.s_per_step.end());
    std::sort(sorted.begin(), sorted.end());
    r.s_per_step = 0.5 * (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]);
    r.load_s = 4 + billions * 1.1;
    if (o_.device == "cuda") {
      r.vram_peak_mb = peak;
      r.vram_reserved_peak_mb = peak * 1.05;
      r.vram_load_peak_mb = peak * 1.2;
    }
    r.host_rss_peak_mb = *std::max_element(r.steps.host_rss_mb.begin(), r.steps.host_rss_mb.end());
    if (method == "poros") r.pinned_mb = 510 * billions;
    if (method == "poros" || method == "resident") r.planned_peak_mb = peak * 0.99;
    r.trainable_params = static_cast<std::int64_t>(5.5e6 * billions);
    r.token_sha256 = sha256_hex("tokens" + model);
    r.adapter_sha256 = sha256_hex("adapter" + model);
    r.weights = text("pretrained@0123abcd");
    r.base_bytes = {{"nf4", 0.53e9 * billions}};
    const bool cuda = o_.device == "cuda";
    r.device = {{"kind", o_.device},
                {"name", text(cuda ? hardware : "AMD EPYC 7763 (synthetic)")},
                {"uuid", cuda ? Json(text("GPU-" + sha256_hex(hardware).substr(0, 8))) : Json()},
                {"memory_total_mb", cuda ? Json(card_mb(hardware)) : Json()}};
    r.versions = {{"torch", text("2.11.0")}};
    if (cuda) r.versions["cuda"] = text("13.0");
    if (method == "peft" || method == "unsloth") {
      r.versions["transformers"] = text("5.17.0");
      r.versions["bitsandbytes"] = text("0.50.2");
    }
    r.arm = {{"attention", text(method == "poros" ? "flash, deterministic" : "sdpa")}};
    r.driver = {{"exit_code", 0}, {"host", text("node7")}, {"cell_build", sha256_hex("build")}};
    return r;
  }

  RunArtifact make_artifact(const std::string& hardware, const std::string& model,
                            const std::string& method, const std::vector<PassRecord>& passes) {
    RunArtifact a;
    a.method = text(method);
    a.model_id = text(model);
    a.display_name = text(display(model));
    a.precision = text("nf4");
    a.hardware = text(hardware);
    a.arch = text(slug(model));
    a.steps = o_.steps;
    a.seq_len = 512;
    a.tokens_per_step = 4096;
    if (method == "poros" || method == "resident") a.block_size = 4;
    a.run_id = text("run-1");
    a.cell_key = key_of(hardware, model, method);
    a.group_key = group_of(hardware, model);
    a.spec_sha256 = spec_sha256_;
    a.spec_id = text(o_.spec_id);
    a.protocol = text("shared");
    a.device = o_.device;
    a.n_passes_expected = o_.passes;
    a.git_commit = "3fec041d0c6be1a8f6a9ac0ba35e8f0b4b9d8f11";
    a.spec_cell = {{"method", text(method)},
                   {"training", training()},
                   {"lora", {{"rank", 16}, {"alpha", 32.0}, {"dropout", 0.05}}},
                   {"precision", "nf4"}};
    a.environment = {{"hostname", text("node7")},
                     {"os", text("Debian GNU/Linux 12")},
                     {"kernel", text("6.1.0")},
                     {"cpu_model", text("AMD EPYC 7763")},
                     {"cpu_cores", 16},
                     {"memory_mb", 257000},
                     {"nvidia_driver", text("580.1")},
                     {"variables", {{"OMP_NUM_THREADS", text("8")}}}};
    if (passes.empty()) return a;
    const PassRecord& p = passes.front();
    if (o_.device == "cuda") a.gpu_uuid = p.device.at("uuid").get<std::string>();
    if (o_.device == "cuda") a.vram_total_mb = card_mb(hardware);
    if (p.versions.contains("cuda")) a.cuda_version = p.versions.at("cuda").get<std::string>();
    a.torch_version = p.versions.at("torch").get<std::string>();
    a.trainable_params = p.trainable_params;
    a.token_sha256 = p.token_sha256;
    a.adapter_sha256 = p.adapter_sha256;
    a.weights = p.weights;
    a.cell_build = sha256_hex("build");
    a.planned_peak_mb = p.planned_peak_mb;
    a.n_passes = static_cast<std::int64_t>(passes.size());
    double vram = 0, rss = 0;
    for (const PassRecord& pass : passes) {
      a.pass_s_per_step.push_back(*pass.s_per_step);
      if (pass.vram_peak_mb) a.pass_vram_peaks_mb.push_back(*pass.vram_peak_mb);
      vram = std::max(vram, pass.vram_peak_mb.value_or(0));
      rss = std::max(rss, *pass.host_rss_peak_mb);
    }
    auto times = a.pass_s_per_step;
    std::sort(times.begin(), times.end());
    a.s_per_step = 0.5 * (times[(times.size() - 1) / 2] + times[times.size() / 2]);
    a.s_per_step_min = times.front();
    a.s_per_step_max = times.back();
    a.tok_per_sec = 4096 / *a.s_per_step;
    if (vram > 0) a.vram_peak_mb = vram;
    a.host_rss_peak_mb = rss;
    a.pinned_mb = p.pinned_mb;
    a.load_s = p.load_s;
    a.first_step_loss = p.steps.loss.front();
    const auto mean = [](auto begin, auto end) {
      return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
    };
    const auto window =
        std::min<std::ptrdiff_t>(10, static_cast<std::ptrdiff_t>(p.steps.loss.size()));
    a.mean_loss_first10 = mean(p.steps.loss.begin(), p.steps.loss.begin() + window);
    a.mean_loss_last10 = mean(p.steps.loss.end() - window, p.steps.loss.end());
    a.timestamp = passes.back().finished_at;
    return a;
  }

  std::string put(const std::string& relative, const Json& json) {
    const std::string content = dump_json(json, 1) + "\n";
    fs::create_directories((dir_ / relative).parent_path());
    write_file_durably(dir_ / relative, content);
    return sha256_hex(content);
  }

  void acknowledge(const std::string& kind, const std::string& key, const Json& record,
                   const std::string& path, const std::string& sha256) {
    Receipt receipt;
    receipt.kind = kind;
    receipt.key = key;
    receipt.fields = scalar_fields(record);
    receipt.artifact_path = path;
    receipt.artifact_sha256 = sha256;
    journal_.append(receipt);
  }

  void finish_cell(const RunArtifact& a, const std::string& hardware, const std::string& model,
                   const std::string& method) {
    std::string file = fmt::format("{}_{}_nf4", method, slug(model));
    if (o_.hardware.size() > 1) file += "_" + key_of(hardware, model, method).substr(0, 8);
    const std::string path = file + ".json";
    const Json json = to_json(a);
    acknowledge("cell", a.cell_key, json, path, put(path, json));
  }

  void build_group(const std::string& hardware, const std::string& model) {
    const bool small_card = card_mb(hardware) < 30000 && size_in_billions(model) > 20;
    for (const auto& method : o_.methods) {
      if (o_.incidents && method == "accelerate_offload" && !small_card &&
          size_in_billions(model) > 20) {
        continue;  // not run yet
      }
      std::vector<PassRecord> passes;
      Json entries = Json::array();
      const bool skipped = o_.incidents && o_.device == "cpu" && method == "unsloth";
      const bool oom = o_.incidents && small_card && o_.device == "cuda" && method != "poros" &&
                       method != "unsloth";
      const bool error = o_.incidents && method == "accelerate_offload" && !small_card;
      PassRecord failed;
      for (int pass = 0; pass < o_.passes && !skipped; ++pass) {
        PassRecord record = make_pass(hardware, model, method, pass);
        if (oom || error) {
          record.status = oom ? "oom" : "error";
          record.error_message =
              text(oom ? "CUDA out of memory. Tried to allocate 270 MiB (synthetic)"
                       : "MmBackward0 returned an invalid gradient (synthetic)");
          record.reason = text(oom ? "" : "exception");
          for (const StepColumn& column : step_columns()) (record.steps.*column.values).clear();
          record.s_per_step.reset();
          record.vram_peak_mb.reset();
        }
        const std::string path = fmt::format("artifacts/{}/{}.1.json", record.cell_key, pass);
        const Json json = to_json(record);
        const std::string sha256 = put(path, json);
        acknowledge("attempt", record.cell_key, json, path, sha256);
        entries.push_back({{"pass", pass},
                           {"attempt", 1},
                           {"status", record.status},
                           {"artifact_path", path},
                           {"artifact_sha256", sha256}});
        if (oom || error) {
          failed = record;
          break;
        }
        passes.push_back(std::move(record));
      }
      RunArtifact a = make_artifact(hardware, model, method, passes);
      a.passes = entries;
      if (oom || error) {
        a.status = failed.status;
        a.oom = oom;
        a.error_message = failed.error_message;
        if (error) a.reason = failed.reason;
      }
      if (skipped) {
        a.status = "skipped";
        a.reason = text("no_cuda");
        a.error_message = text("unsloth: needs CUDA");
      }
      if (o_.incidents && method == "unsloth" && small_card) {
        a.flags = {text("suspect")};
        a.reason = text("first-step loss: 2.512345 against 2.498765 of resident");
      }
      if (method == "poros" && o_.parity && a.status == "ok") {
        const Json parity{{"status", "ok"},
                          {"method_a", text("poros")},
                          {"method_b", text("resident")},
                          {"hashes", 1204},
                          {"steps", o_.steps},
                          {"bitwise_exact", true},
                          {"parity_loss_max_diff", 0.0},
                          {"parity_weight_max_diff", 0.0}};
        const std::string path = fmt::format("artifacts/{}/parity.1.json", a.group_key);
        acknowledge("parity", a.group_key, parity, path, put(path, parity));
      }
      finish_cell(a, hardware, model, method);
    }
  }

  fs::path dir_;
  const FixtureOptions& o_;
  JournalWriter journal_;
  std::string spec_sha256_;
};

}  // namespace

void write_campaign(const fs::path& dir, const FixtureOptions& options) {
  Builder(dir, options).build();
}

}  // namespace poros::testing
