// SPDX-License-Identifier: Apache-2.0
#include "train/arm/run_request.hpp"

#include <cstdio>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "cell/protocol.hpp"
#include "model/token_file.hpp"
#include "train/arm/failure.hpp"
#include "train/arm/host.hpp"
#include "train/arm/libraries.hpp"
#include "train/arm/record.hpp"
#include "train/arm/session.hpp"
#include "train/device.hpp"
#include "train/dump.hpp"
#include "train/events.hpp"
#include "train/memory_probe.hpp"
#include "train/parity_hash.hpp"
#include "train/trainer.hpp"

namespace poros {
namespace {

constexpr double kMiB = 1048576.0;

/// One pass, from the request to a filled record.
class Pass {
 public:
  Pass(const CellRequest& request, EventPipe& events, PassRecord& record)
      : request_(request), events_(events), record_(record) {}

  void run(const std::function<bool()>& stop_requested) {
    refuse_what_cannot_run();
    load();
    describe();
    train_all(stop_requested);
  }

  [[nodiscard]] std::string asked_for() const { return session_.asked_for(); }

 private:
  void refuse_what_cannot_run() const {
    const CellSpec& cell = request_.cell;
    if (cell.method != "poros" && cell.method != "resident") {
      fail(Fault::input, "poros-cell runs the methods poros and resident, not \"{}\"", cell.method);
    }
    check_device(cell.device);
  }

  void phase(const char* name) {
    events_.phase(name);
    log_line(fmt::format("{} phase {}", utc_now(), name));
  }

  void load() {
    phase("load");
    tokens_ = open_tokens(request_.tokens_path);
    record_.token_sha256 = tokens_.sha256;
    SessionInput input;
    input.cell = request_.cell;
    input.model_dir = request_.model_dir;
    input.cache_dir = request_.cache_dir;
    input.adapter_dir = request_.adapter_dir;
    input.threads = request_.threads;
    open_session(
        input, [this](const char* name) { phase(name); }, session_);
    check_vocabulary(tokens_, session_.base->architecture(), request_.tokens_path);
  }

  /// Everything about the arm that stays the same over the steps.
  void describe() {
    const NumericalPlan& numerical = session_.numerical;
    const MemoryPlan& memory = session_.memory;
    record_.adapter_sha256 = session_.adapter.sha256;
    record_.weights = session_.base->weights();
    record_.base_bytes = session_.base->bytes_by_storage();
    record_.trainable_params = session_.executor->trainable_parameters();
    record_.planned_peak_mb = static_cast<double>(memory.device_bytes()) / kMiB;
    record_.versions = library_versions();
    if (on_cuda()) {
      describe_cuda();
    } else {
      record_.device = {{"kind", "cpu"},
                        {"name", cpu_model_name()},
                        {"uuid", nullptr},
                        {"memory_total_mb", json_or_null(host_memory_mb())}};
    }
    Json attention = Json::array();
    for (const AttentionPath path : numerical.attention) {
      const char* name = path == AttentionPath::flash ? "flash" : "blocked";
      if (attention.empty() || attention.back() != name) attention.push_back(name);
    }
    record_.arm = {{"residency", name_of(memory.settings.kind)},
                   {"plan_hash", plan_hash(numerical)},
                   {"numerical_plan", to_json(numerical)},
                   {"compute_dtype", name_of(numerical.compute)},
                   {"attention", attention},
                   {"block_size", memory.settings.block_size},
                   {"blocks", memory.blocks.size()},
                   {"slots", memory.slots},
                   {"prefetch", memory.settings.prefetch},
                   {"layer_inputs", memory.settings.inputs_on_device ? "device" : "host"},
                   {"sweeps", numerical.sweeps},
                   {"sweep_rows", numerical.row_capacity()},
                   {"threads", numerical.device.threads},
                   {"instruction_set", numerical.device.instruction_set},
                   {"planned_host_mb", static_cast<double>(memory.host_bytes) / kMiB},
                   {"planned_pinned_mb", static_cast<double>(memory.pinned_bytes) / kMiB}};
    record_.arm["host_rss_load_peak_mb"] = json_or_null(host_rss_peak_mb());
    record_.arm["host_rss_peak_counts_from"] =
        reset_host_rss_peak() ? "end of load" : "start of process";
  }

  [[nodiscard]] bool on_cuda() const { return session_.numerical.device.cuda; }

  /// The GPU, and the allocator's peaks of the load; from here on they count anew.
  void describe_cuda() {
    const CudaFacts facts = cuda_device().facts();
    record_.device = {{"kind", "cuda"},
                      {"name", facts.name},
                      {"uuid", facts.uuid},
                      {"memory_total_mb", static_cast<double>(facts.total_bytes) / kMiB},
                      {"compute_capability", facts.compute_capability}};
    record_.versions["cuda_runtime"] = facts.runtime_version;
    record_.versions["cuda_driver"] = facts.driver_version;
    record_.versions["cublaslt"] = facts.cublaslt_version;
    record_.pinned_mb = static_cast<double>(session_.memory.pinned_bytes) / kMiB;
    record_.vram_load_peak_mb = static_cast<double>(cuda_device().memory().allocated_peak) / kMiB;
    cuda_device().reset_peaks();
    if (request_.cell.hardware.vram_cap_mb.has_value()) record_.flags.emplace_back("capped");
  }

  void train_all(const std::function<bool()>& stop_requested) {
    const TrainingSpec& training = request_.cell.training;
    StepRows rows(std::move(tokens_), training.batch_size, training.gradient_accumulation_steps);
    TrainHooks hooks;
    hooks.should_stop = [&](std::int64_t step) {
      if (step == 1 && training.warmup_steps > 0) phase("warmup");
      if (step == training.warmup_steps + 1) phase("train");
      if (step == 1) record_.load_s = process_age_s();
      return stop_requested();
    };
    hooks.after_step = [&](const StepReport& report) { after_step(report); };
    const TrainSummary summary =
        train(*session_.executor, rows, training, request_.max_steps, hooks);
    record_end(record_, summary, training.steps);
    record_.s_per_step = median_after(record_.steps.s_per_step, training.warmup_steps);
    record_.host_rss_peak_mb = host_rss_peak_mb();
    if (on_cuda()) {
      const CudaMemory memory = cuda_device().memory();
      record_.vram_peak_mb = static_cast<double>(memory.allocated_peak) / kMiB;
      record_.vram_reserved_peak_mb = static_cast<double>(memory.reserved_peak) / kMiB;
    }
    const ExecutorCounters counters = session_.executor->counters();
    record_.arm["block_copies"] = counters.block_copies;
    record_.arm["bytes_copied"] = counters.bytes_copied;
    record_.arm["copy_stall_s"] = counters.copy_stall_s;
    record_.arm["base_load_s"] = counters.load_s;
    record_.arm["arena_mb"] = static_cast<double>(counters.arena_bytes) / kMiB;
  }

  void after_step(const StepReport& report) {
    const std::int64_t steps = request_.cell.training.steps;
    add_step(record_, report, step_memory(session_));
    const bool dumps = request_.dump && request_.dump->step == report.step;
    FlatParameters parameters;
    std::vector<float> memory;
    if (dumps || request_.purpose == "parity") {
      parameters = host_parameters(*session_.executor, memory);
    }
    if (request_.purpose == "parity") {
      record_.hashes.push_back({parity_hash({&report.loss, 1}), parity_hash({&report.grad_norm, 1}),
                                parity_hashes(parameters)});
    }
    if (dumps) {
      dump_step(request_.dump->dir, parameters, report.loss, report.grad_norm);
    }
    events_.step({report.step, steps, static_cast<double>(report.loss), report.seconds,
                  host_rss_mb().value_or(0)});
    log_line(fmt::format("{} step {}/{} loss {:.4f} norm {:.4f} lr {:.3e} {:.3f} s", utc_now(),
                         report.step, steps, report.loss, report.grad_norm, report.learning_rate,
                         report.seconds));
  }

  const CellRequest& request_;
  EventPipe& events_;
  PassRecord& record_;
  TokenFile tokens_;
  Session session_;
};

}  // namespace

int run_request(const CellRequest& request, const std::function<bool()>& stop_requested) {
  EventPipe events(EventPipe::fd_from_environment(kEventFdVariable));
  PassRecord record = begin_record(request);
  {
    Pass pass(request, events, record);
    try {
      pass.run(stop_requested);
    } catch (...) {
      Failure failure = describe_failure(pass.asked_for());
      record.status = std::move(failure.status);
      record.reason = std::move(failure.reason);
      record.error_message = std::move(failure.message);
    }
  }
  events.phase("finish");
  record.finished_at = utc_now();
  write_file_durably(request.result_path, dump_json(to_json(record)) + "\n");
  if (record.status != "ok") {
    std::fprintf(stderr, "poros-cell: %s%s%s: %s\n", record.status.c_str(),
                 record.reason.empty() ? "" : "/", record.reason.c_str(),
                 record.error_message.c_str());
  }
  return record.status == "skipped" ? kCellSkipped : kDone;
}

}  // namespace poros
