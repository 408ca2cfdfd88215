// SPDX-License-Identifier: Apache-2.0
#include "campaign/attempt.hpp"

#include <csignal>
#include <cstring>
#include <system_error>

#include <fcntl.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "cell/protocol.hpp"
#include "cell/sampler.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

std::string signal_text(int number) {
  const char* name = ::sigdescr_np(number);
  return fmt::format("signal {} ({})", number, name == nullptr ? "unknown" : name);
}

std::string position(const CellProgress& last) {
  if (last.step > 0) return fmt::format("after step {} of {}", last.step, last.steps);
  return last.phase.empty() ? "before its first sign of life" : "in phase " + last.phase;
}

void set_status(PassRecord& record, const char* status, const char* reason, std::string message) {
  record.status = status;
  record.reason = reason;
  record.error_message = std::move(message);
}

/// The last line of the log that says something.
std::string last_line(const std::string& log_tail) {
  const auto end = log_tail.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return {};
  const auto begin = log_tail.rfind('\n', end);
  return log_tail.substr(begin == std::string::npos ? 0 : begin + 1,
                         end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

/// The result file, checked: it must be of this very attempt. Nothing where there is none.
std::optional<PassRecord> read_result(const fs::path& path, const AttemptJob& job) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const std::string origin = "result of " + job.cell.label();
  PassRecord record = pass_record_from_json(parse_json(read_file(path), origin), origin);
  if (record.cell_key != job.cell.key || record.pass != job.pass || record.attempt != job.attempt ||
      record.purpose != job.purpose || record.method != job.cell.spec.method) {
    fail(Fault::input, "{}: it is the record of another pass ({} pass {} attempt {})", origin,
         record.method, record.pass, record.attempt);
  }
  return record;
}

PassRecord empty_record(const AttemptJob& job) {
  PassRecord record;
  record.purpose = job.purpose;
  record.cell_key = job.cell.key;
  record.method = job.cell.spec.method;
  record.pass = job.pass;
  record.attempt = job.attempt;
  return record;
}

Json outcome_json(const CellOutcome& outcome, const std::string& log_path) {
  const bool exited = outcome.end == CellOutcome::End::exited;
  const bool signalled = outcome.end == CellOutcome::End::signalled;
  return {{"exit_code", exited ? Json(outcome.code) : Json(nullptr)},
          {"signal", signalled ? Json(outcome.code) : Json(nullptr)},
          {"missed_deadline", outcome.deadline.empty() ? Json(nullptr) : Json(outcome.deadline)},
          {"stopped", outcome.stopped},
          {"oom_killed", outcome.oom_killed},
          {"survivors", outcome.survivors},
          {"wall_s", outcome.wall_s},
          {"log", log_path},
          {"log_bytes", outcome.log_bytes},
          {"log_error", outcome.log_error.empty() ? Json(nullptr) : Json(outcome.log_error)},
          {"events", outcome.events},
          {"malformed_events", outcome.malformed_events},
          {"last_phase", outcome.last.phase},
          {"last_step", outcome.last.step}};
}

/// Not synced: nobody needs it after a power loss, and two syncs a pass are 10 ms on some disks.
void write_request(const fs::path& path, const std::string& text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) fail_errno(Fault::io, path.string() + ": create");
  write_all(fd.get(), text.data(), text.size(), path);
}

/// A cell that left no result where there is no room for one has not failed by itself: the run
/// stops, and the pass runs again when there is room.
void check_room(const fs::path& work) {
  constexpr std::uintmax_t kRoom_bytes = 1 << 20;
  std::error_code error;
  const fs::space_info space = fs::space(work, error);
  if (error || space.available >= kRoom_bytes) return;
  fail(Fault::io, "{}: No space left for a cell's result: {} bytes are free", work.string(),
       space.available);
}

void check_hardware(const AttemptContext& context, const std::string& wanted, PassRecord& record) {
  if (record.status != "ok" || context.any_gpu || wanted == "unknown") return;
  const auto kind = json_find<std::string>(record.device, "kind", "device").value_or("");
  const auto name = json_find<std::string>(record.device, "name", "device").value_or("");
  if (kind != "cuda" || is_same_gpu(wanted, name)) return;
  set_status(record, "error", "hardware_mismatch",
             fmt::format("the spec names \"{}\", the cell ran on \"{}\"; correct "
                         "hardware.gpu_name, or give --allow-hardware-mismatch",
                         wanted, name));
}

}  // namespace

void judge_outcome(const CellOutcome& outcome, bool has_result, const TimeoutSpec& timeouts,
                   PassRecord& record) {
  using End = CellOutcome::End;
  const bool done = outcome.end == End::exited && outcome.code == 0 && has_result;
  const bool skipped = outcome.end == End::exited && outcome.code == kCellSkipped && has_result &&
                       record.status == "skipped";
  const std::string said = last_line(outcome.log_tail);
  const std::string last_words = said.empty() ? "" : "; its last words: " + said;
  if (outcome.end == End::start_failed) {
    set_status(record, "error", "start_failed", outcome.detail);
  } else if (outcome.end == End::lost) {
    set_status(record, "error", "lost",
               fmt::format("{} {}", outcome.detail, position(outcome.last)));
  } else if (!outcome.deadline.empty()) {
    const double limit_s = outcome.deadline == "load"   ? timeouts.load_s
                           : outcome.deadline == "step" ? timeouts.step_s
                                                        : timeouts.cell_s;
    set_status(record, "error", "timeout",
               fmt::format("the {} took longer than {:g} s ({}); timeouts.{} sets the limit",
                           outcome.deadline == "cell" ? "whole pass" : outcome.deadline, limit_s,
                           position(outcome.last), outcome.deadline));
  } else if (done || skipped) {
    return;  // what the record says holds
  } else if (outcome.stopped) {
    set_status(record, "error", "drained",
               fmt::format("stopped on request {}", position(outcome.last)));
  } else if (outcome.oom_killed) {
    set_status(record, "oom", "killed",
               fmt::format("the kernel's out-of-memory killer ended it {}: the host has too little "
                           "memory for this cell",
                           position(outcome.last)));
  } else if (has_result && record.status != "ok") {
    return;  // a failure that the cell itself could name
  } else if (!has_result && (outcome.end != End::signalled || outcome.code == SIGABRT) &&
             outcome.code != 0 && says_out_of_memory(outcome.log_tail)) {
    set_status(record, "oom", "",
               fmt::format("out of memory {}{}", position(outcome.last), last_words));
  } else if (outcome.end == End::signalled) {
    set_status(record, "error", "signal",
               fmt::format("ended by {} {}{}", signal_text(outcome.code), position(outcome.last),
                           last_words));
  } else if (outcome.code == 0) {
    set_status(record, "error", "no_result",
               fmt::format("ended with exit code 0 but left no result ({}){}",
                           position(outcome.last), last_words));
  } else {
    set_status(record, "error", "exit_code",
               fmt::format("exit code {} {}{}", outcome.code, position(outcome.last), last_words));
  }
}

PassRecord run_attempt(const AttemptContext& context, const AttemptJob& job,
                       const CellHooks& hooks) {
  const fs::path work = context.folder.live() / (context.work_name + ".work");
  fs::remove_all(work);
  fs::create_directories(work);
  const std::string log_path =
      CampaignFolder::log_file(job.cell.key, job.purpose, job.pass, job.attempt);
  fs::create_directories((context.folder / log_path).parent_path());

  CellRequest request;
  request.purpose = job.purpose;
  request.cell = job.cell.spec;
  request.cell_key = job.cell.key;
  request.pass = job.pass;
  request.attempt = job.attempt;
  const bool own = is_own_arm(job.cell.spec.method);
  request.model_dir = own ? job.inputs.model_dir : job.inputs.peer_model_dir;
  request.tokens_path = own ? job.inputs.tokens_path : job.inputs.peer_tokens_path;
  request.adapter_dir = job.inputs.adapter_dir;
  request.cache_dir = job.inputs.cache_dir;
  request.result_path = fs::absolute(work / "result.json");
  request.threads = job.threads;
  request.dump = job.dump;
  request.max_steps = job.max_steps;
  const fs::path request_path = fs::absolute(work / "request.json");
  write_request(request_path, dump_json(to_json(request), 1) + "\n");

  CellCommand command;
  command.argv = job.arm.command;
  command.argv.push_back(request_path.string());
  command.environment = cell_environment(context.environment, job.cell.spec.device);
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    command.environment[name] = std::to_string(job.threads);
  }
  for (const auto& [name, value] : job.arm.environment) command.environment[name] = value;
  command.tag = fmt::format("{}/{:.16}/{}{}.{}", context.campaign_id, job.cell.key, job.purpose,
                            job.pass, job.attempt);
  command.log_path = context.folder / log_path;
  command.supervisor_program = context.supervisor_program;
  command.timeouts = context.timeouts;
  const auto visible = command.environment.find("CUDA_VISIBLE_DEVICES");
  GpuSampler sampler(job.cell.spec.device,
                     visible == command.environment.end() ? "" : visible->second);
  CellHooks sampled = hooks;
  sampled.on_event = [&](CellEvent event, const CellProgress& progress) {
    sampler.observe(event, progress);
    if (hooks.on_event) hooks.on_event(event, progress);
  };
  sampled.on_tick = [&] {
    sampler.tick();
    if (hooks.on_tick) hooks.on_tick();
  };
  const CellOutcome outcome = run_cell(command, sampled, context.redactor, context.oom);
  const Json gpu_samples = sampler.summary();

  PassRecord record = empty_record(job);
  bool has_result = false;
  std::string bad_result;
  try {
    if (auto result = read_result(request.result_path, job)) {
      record = std::move(*result);
      has_result = true;
    }
  } catch (const Error& error) {
    bad_result = error.what();
  }
  judge_outcome(outcome, has_result, context.timeouts, record);
  const bool failed_itself = record.reason == "signal" || record.reason == "exit_code";
  if (!has_result && failed_itself) check_room(work);
  if (!bad_result.empty() && (record.reason == "no_result" || record.reason == "exit_code")) {
    set_status(record, "error", "bad_result", bad_result);
  }
  check_hardware(context, job.cell.spec.hardware.gpu_name, record);
  if (record.started_at.empty()) record.started_at = outcome.started_at;
  if (record.finished_at.empty()) record.finished_at = outcome.finished_at;
  record.driver = context.driver_facts;
  record.driver.update(outcome_json(outcome, log_path));
  record.driver["cell_build"] = job.arm.build;
  record.driver["threads"] = job.threads;
  // Where things lay: the cell's own spec names them as the person did, seen from the spec's
  // folder.
  record.driver["model_dir"] = job.inputs.model_dir.string();
  const DatasetSpec& data = job.cell.spec.training.dataset;
  for (const auto& [name, path] :
       {std::pair{"dataset_path", data.path}, std::pair{"validation_path", data.validation_path},
        std::pair{"chat_template_path", data.chat_template_path}}) {
    if (!path.empty()) record.driver[name] = path;
  }
  record.driver["gpu_samples"] = gpu_samples;
  const auto warnings = protocol_warnings(job.cell.spec.protocol, job.cell.spec.method);
  if (!warnings.empty()) record.driver["protocol_warnings"] = warnings;
  for (const std::string& flag : sampler.flags()) record.flags.push_back(flag);
  // Both stream weights from host memory, which other ranks' cells then read and write too.
  const std::string& method = job.cell.spec.method;
  if (context.shared_host && (method == "poros" || method == "accelerate_offload")) {
    record.flags.emplace_back("shared_host");
  }
  if (job.dump) record.driver["dump_step"] = job.dump->step;
  if (record.status != "ok") record.driver["log_tail"] = outcome.log_tail;
  const std::string origin = "record of " + job.cell.label();
  record = pass_record_from_json(context.redactor.redact_json(to_json(record)), origin);
  std::error_code ignored;
  fs::remove_all(work, ignored);
  return record;
}

}  // namespace poros
