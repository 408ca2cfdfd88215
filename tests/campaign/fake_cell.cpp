// SPDX-License-Identifier: Apache-2.0
#include "fake_cell.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <signal.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "cell/protocol.hpp"
#include "cell/request.hpp"
#include "model/safetensors.hpp"
#include "model/token_file.hpp"
#include "receipts/pass_record.hpp"

namespace poros::testing {
namespace fs = std::filesystem;
namespace {

volatile std::sig_atomic_t g_stop = 0;

extern "C" void on_term(int) {
  g_stop = 1;
}

void event(const Json& line) {
  const std::string text = dump_json(line) + "\n";
  const int fd = std::atoi(std::getenv(kEventFdVariable));
  write_all(fd, text.data(), text.size(), "events");
}

void dump_tensor(const fs::path& path, const char* name, float value) {
  TensorToWrite tensor;
  tensor.name = name;
  tensor.shape = {1};
  tensor.write = [value](const TensorToWrite::Sink& sink) { sink(&value, sizeof value); };
  static_cast<void>(write_safetensors(path, {tensor}));
}

/// The weights after a step: as in the other arm, or off by 0.25 from `change_step` on.
float weight_after(std::int64_t step, std::int64_t change_step) {
  return static_cast<float>(step) + (change_step > 0 && step >= change_step ? 0.25F : 0.0F);
}

void dump(const CellRequest::Dump& where, std::int64_t change_step) {
  for (const char* kind : {"gradient", "exp_avg", "exp_avg_sq"}) {
    dump_tensor(where.dir / (std::string(kind) + ".safetensors"), "lora_A", 1.0F);
  }
  dump_tensor(where.dir / "weight.safetensors", "lora_A", weight_after(where.step, change_step));
  std::vector<TensorToWrite> scalars;
  static const float kOne = 1.0F;
  for (const char* name : {"loss", "grad_norm"}) {
    TensorToWrite tensor;
    tensor.name = name;
    tensor.shape = {1};
    tensor.write = [](const TensorToWrite::Sink& sink) { sink(&kOne, sizeof kOne); };
    scalars.push_back(tensor);
  }
  static_cast<void>(write_safetensors(where.dir / "scalars.safetensors", scalars));
}

void note_call(const CellRequest& request, const std::string& settings_path) {
  std::ofstream calls(settings_path + ".calls", std::ios::app);
  calls << request.cell.method << " " << request.purpose << " " << request.pass << " "
        << request.attempt << (request.dump ? " dump" : "") << std::endl;
}

PassRecord begin(const CellRequest& request, const Json& settings) {
  PassRecord record;
  record.purpose = request.purpose;
  record.cell_key = request.cell_key;
  record.method = request.cell.method;
  record.pass = request.pass;
  record.attempt = request.attempt;
  record.started_at = utc_now();
  record.token_sha256 = request.tokens_path.stem().string();
  record.adapter_sha256 = request.adapter_dir.stem().string();
  record.trainable_params = settings.value("trainable_params", 1000);
  record.base_bytes = {{"nf4", 4096.0}};
  record.weights = "random(0)";
  record.load_s = 0.25;
  record.vram_peak_mb = request.cell.method == "poros" ? 100.0 : 400.0;
  record.device = {{"kind", "cpu"}, {"name", "fake"}, {"uuid", nullptr}};
  return record;
}

void run_steps(const CellRequest& request, const Json& settings, PassRecord& record) {
  const std::int64_t steps = request.max_steps.value_or(request.cell.training.steps);
  const std::int64_t change_step = settings.value("change_step", 0);
  const double first_loss = settings.value("first_loss", 5.0);
  const Json times = settings.value("s_per_step", Json::array({0.5}));
  const double s_per_step = times.at(static_cast<std::size_t>(request.pass) % times.size());
  event({{"event", "phase"}, {"phase", "train"}});
  for (std::int64_t step = 1; step <= steps && g_stop == 0; ++step) {
    ::usleep(static_cast<useconds_t>(settings.value("step_s", 0.0) * 1e6));
    record.steps.loss.push_back(first_loss - 0.01 * static_cast<double>(step - 1));
    record.steps.s_per_step.push_back(s_per_step);
    record.steps.allocated_mb.push_back(50);
    if (request.purpose == "parity") {
      StepHashes hashes;
      hashes.loss = hashes.grad_norm = "00";
      for (const char* kind : {"gradient", "exp_avg", "exp_avg_sq"}) {
        hashes.tensors[kind]["lora_A"] = "00";
      }
      hashes.tensors["weight"]["lora_A"] = std::to_string(weight_after(step, change_step));
      record.hashes.push_back(hashes);
    }
    event({{"event", "step"},
           {"step", step},
           {"steps", steps},
           {"loss", record.steps.loss.back()},
           {"s_per_step", s_per_step}});
  }
  record.s_per_step = s_per_step;
  if (g_stop != 0) {
    record.status = "error";
    record.reason = "drained";
  }
  if (request.dump) dump(*request.dump, change_step);
}

void write_result(const CellRequest& request, PassRecord record) {
  record.finished_at = utc_now();
  write_file_durably(request.result_path, dump_json(to_json(record)) + "\n");
}

}  // namespace

int fake_cell(const char* request_path) {
  ::signal(SIGTERM, on_term);
  const CellRequest request = read_request(request_path);
  const std::string settings_path = std::getenv("POROS_FAKE_CELL");
  note_call(request, settings_path);
  const Json all = parse_json(read_file(settings_path), settings_path);
  const Json settings = all.value(request.cell.method, Json::object());
  std::printf("%s\n", settings.value("print", "hello").c_str());
  if (const char* name = std::getenv("POROS_FAKE_PRINT")) std::printf("%s\n", std::getenv(name));
  std::fflush(stdout);

  std::string mode = settings.value("mode", "ok");
  if (request.attempt > settings.value("mode_attempts", 1000)) mode = "ok";
  PassRecord record = begin(request, settings);
  if (mode == "silent") return 0;
  if (mode == "crash") ::abort();
  if (mode == "hang") {
    ::signal(SIGTERM, SIG_IGN);
    while (true) ::pause();
  }
  if (mode == "kill_supervisor") {
    ::kill(::getppid(), SIGKILL);
    ::sleep(60);
  }
  if (mode == "garbage") {
    write_file_durably(request.result_path, "{\"no\": ");
    return 0;
  }
  if (mode == "foreign") record.cell_key = std::string(64, 'f');
  if (mode == "oom") {
    record.status = "oom";
    record.error_message = "asked for too much";
    write_result(request, record);
    return 0;
  }
  if (mode == "skipped") {
    record.status = "skipped";
    record.reason = "unsupported";
    record.error_message = "not on this machine";
    write_result(request, record);
    return kCellSkipped;
  }
  run_steps(request, settings, record);
  write_result(request, record);
  return mode == "late_failure" ? 1 : 0;
}

int fake_tokeniser(const char* text) {
  const Json request = parse_json(text, "tokenising request");
  TokenFile tokens;
  tokens.seq_len = request.at("training").at("seq_len").get<std::int64_t>();
  tokens.rows = 2;
  tokens.vocab = 100;
  tokens.note = "{}";
  tokens.ids.assign(static_cast<std::size_t>(tokens.rows * tokens.seq_len), 7);
  tokens.flags.assign(tokens.ids.size(), TokenFile::kSupervised);
  for (std::int64_t row = 0; row < tokens.rows; ++row) {
    tokens.flags[static_cast<std::size_t>(row * tokens.seq_len)] = TokenFile::kDocumentStart;
  }
  const std::string bytes = token_file_bytes(tokens);
  const std::string sha256 = sha256_hex(bytes);
  const fs::path folder = request.at("inputs_dir").get<std::string>();
  write_file_durably(folder / (sha256 + ".tokens"), bytes);
  const Json answer{{"sha256", sha256},
                    {"path", (folder / (sha256 + ".tokens")).string()},
                    {"statistics", Json::object()},
                    {"text", ""},
                    {"validation", nullptr}};
  std::printf("%s\n", dump_json(answer).c_str());
  return 0;
}

}  // namespace poros::testing
