// SPDX-License-Identifier: Apache-2.0
#include "train/arm/train_run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "cell/protocol.hpp"
#include "train/arm/failure.hpp"
#include "train/arm/libraries.hpp"
#include "train/arm/session.hpp"
#include "train/arm/train_facts.hpp"
#include "train/checkpoint.hpp"
#include "train/device.hpp"
#include "train/event_log.hpp"
#include "train/events.hpp"
#include "train/memory_probe.hpp"
#include "train/tensorboard.hpp"
#include "train/trainer.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr double kLockWait_s = 10;

/// Held while this process trains into a folder. @throws Error(Fault::input) where another does
UniqueFd lock_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(Fault::io, "{}: {}", folder.string(), error.message());
  const fs::path path = folder / ".lock";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) fail_errno(Fault::io, path.string());
  // The trainer of a command that was just killed is on its way out for some seconds.
  const double deadline = monotonic_s() + kLockWait_s;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (monotonic_s() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    fail(Fault::input, "{}: another run trains into this folder; wait for it or give another one",
         folder.string());
  }
  return fd;
}

/// The adapter in its final place: whole, or as it was before.
void write_final_adapter(const fs::path& output, const Adapter& adapter) {
  const fs::path making = output / ".adapter.making", old = output / ".adapter.old";
  std::error_code ignored;
  fs::remove_all(making, ignored);
  fs::remove_all(old, ignored);
  try {
    write_adapter(making, adapter);
    if (fs::exists(output / "adapter")) fs::rename(output / "adapter", old);
    fs::rename(making, output / "adapter");
  } catch (const fs::filesystem_error& error) {
    fail(Fault::io, "{}: {}", (output / "adapter").string(), error.code().message());
  } catch (...) {
    fs::remove_all(making, ignored);
    throw;
  }
  sync_folder(output);
  fs::remove_all(old, ignored);
}

class TrainRun {
 public:
  TrainRun(const TrainRequest& request, EventLog& log, EventPipe& pipe)
      : request_(request),
        config_(request.config),
        log_(log),
        pipe_(pipe),
        checkpoints_(request.output_dir / "checkpoints", config_.keep_checkpoints) {
    if (config_.tensorboard) tensorboard_.emplace(request.output_dir / "tensorboard");
  }

  int run(const std::function<bool()>& stop_requested) {
    load();
    set_up();
    return train_all(stop_requested);
  }

  /// After an exception, in its handler. @returns the exit code
  int fail_with(const Failure& failure, int exit_code) {
    if (failure.status == "oom") {
      log_.write("oom", step_, oom_facts(config_, session_, failure.message));
    }
    tear_down(failure.status == "skipped" ? "error" : failure.status, failure.reason,
              failure.message);
    return exit_code;
  }

 private:
  void phase(const char* name) {
    pipe_.phase(name);
    log_line(fmt::format("{} phase {}", utc_now(), name));
  }

  [[nodiscard]] std::optional<FoundCheckpoint> find_checkpoint() const {
    if (request_.resume == "none") {
      checkpoints_.move_aside();
      return std::nullopt;
    }
    if (request_.resume != "auto") return read_checkpoint(request_.resume);
    return checkpoints_.newest([&](const std::string& damage) {
      log_.write("error", 0, {{"reason", "damaged_checkpoint"}, {"message", damage}});
      log_line("passed over a checkpoint: " + damage);
    });
  }

  void load() {
    phase("load");
    check_device(config_.device);
    tokens_ = open_tokens(request_.tokens_path);
    if (!request_.validation_path.empty()) validation_ = open_tokens(request_.validation_path);
    now_.run_id = request_.run_id;
    now_.work = training_work(config_);
    now_.steps = config_.training.steps;
    now_.token_sha256 = tokens_.sha256;
    now_.start_sha256 = sha256_file(request_.adapter_dir / "adapter_model.safetensors");
    found_ = find_checkpoint();
    if (found_) {
      now_.weights = found_->state.weights;  // compared when the base is open
      check_same_work(*found_, now_);
    }
    SessionInput input;
    input.cell = training_cell(config_);
    input.model_dir = request_.model_dir;
    input.cache_dir = request_.cache_dir;
    input.adapter_dir = found_ ? found_->adapter_dir() : request_.adapter_dir;
    input.threads = request_.threads;
    open_session(
        input, [this](const char* name) { phase(name); }, session_);
    check_vocabulary(tokens_, session_.base->architecture(), request_.tokens_path);
    now_.weights = session_.base->weights();
    now_.plan_sha256 = plan_hash(session_.numerical);
    if (found_) go_on_from(*found_);
  }

  void go_on_from(const FoundCheckpoint& found) {
    check_same_work(found, now_);
    Executor& executor = *session_.executor;
    std::vector<float> memory;
    const FlatParameters host = host_parameters(executor, memory);
    read_moments(found, host);
    const auto bytes = static_cast<std::uint64_t>(executor.flat_elements()) * sizeof(float);
    if (host.exp_avg != executor.exp_avg()) {
      copy_bytes(executor.stream(), executor.exp_avg(), host.exp_avg, bytes);
      copy_bytes(executor.stream(), executor.exp_avg_sq(), host.exp_avg_sq, bytes);
      synchronise(executor.stream());
    }
    now_.step = step_ = found.state.step;
    now_.updates = found.state.updates;
    now_.tokens = found.state.tokens;
    saved_step_ = request_.resume == "auto" ? step_ : -1;
    log_line(fmt::format("goes on from {} (step {})", found.folder.string(), step_));
  }

  void set_up() {
    Json data = setup_facts(config_, session_, tokens_, validation_);
    data["output_dir"] = request_.output_dir.string();
    if (found_) {
      const CheckpointState& then = found_->state;
      data["resumed_from"] = {{"run_id", then.run_id},
                              {"step", then.step},
                              {"path", found_->folder.string()},
                              {"exact", then.plan_sha256 == now_.plan_sha256},
                              {"steps", then.steps}};
      if (then.plan_sha256 != now_.plan_sha256) {
        log_line(
            "goes on, but not to the same last bits: another device, library or number of "
            "threads computes in another order than before");
      }
      if (then.steps != now_.steps) {
        log_line(
            fmt::format("the run now has {} steps instead of {}: from here on the learning "
                        "rate follows the new length",
                        now_.steps, then.steps));
      }
    }
    log_.write("setup", step_, std::move(data));
  }

  int train_all(const std::function<bool()>& stop_requested) {
    const TrainingSpec& training = config_.training;
    std::optional<std::uint64_t> shuffle_seed;
    if (training.dataset.shuffle) shuffle_seed = static_cast<std::uint64_t>(training.seed);
    StepRows rows(std::move(tokens_), training.batch_size, training.gradient_accumulation_steps,
                  shuffle_seed);
    phase("train");
    if (step_ == 0) evaluate();
    begin_s_ = monotonic_s();
    first_step_ = step_;
    first_tokens_ = now_.tokens;
    TrainHooks hooks;
    hooks.should_stop = [&](std::int64_t) { return stop_requested(); };
    hooks.after_step = [&](const StepReport& report) { after_step(report); };
    const TrainSummary summary =
        train(*session_.executor, rows, training, std::nullopt, hooks, {now_.step, now_.updates});
    switch (summary.end) {
      case TrainEnd::stopped:
        save();
        tear_down("stopped", "signal",
                  fmt::format("stopped on request after step {} of {}", step_, now_.steps));
        return kStoppedEarly;
      case TrainEnd::diverged:
        return end_diverged(*summary.diverged);
      case TrainEnd::finished:
        break;
    }
    if (evaluated_step_ != step_) evaluate();
    save();
    phase("finish");
    write_final_adapter(request_.output_dir, session_.executor->adapter());
    tear_down("ok", "", "");
    return kDone;
  }

  int end_diverged(const StepReport& report) {
    save();
    const std::string message = fmt::format(
        "step {} of {}: loss {}, gradient norm {}: not finite; the update was not made, the "
        "checkpoint holds the state after step {}; a lower learning_rate or a lower max_grad_norm "
        "helps (then --resume none)",
        report.step, now_.steps, report.loss, report.grad_norm, step_);
    log_.write("error", report.step,
               {{"reason", "diverged"},
                {"message", message},
                {"loss", static_cast<double>(report.loss)},
                {"grad_norm", static_cast<double>(report.grad_norm)}});
    tear_down("error", "diverged", message);
    return kFailed;
  }

  void after_step(const StepReport& report) {
    step_ = now_.step = report.step;
    now_.updates = report.updates;
    now_.tokens += report.tokens;
    last_loss_ = report.loss;
    const StepMemory memory = step_memory(session_);
    peak_ = {std::max(peak_.allocated_mb, memory.allocated_mb),
             std::max(peak_.reserved_mb, memory.reserved_mb)};
    const ExecutorCounters counters = session_.executor->counters();
    log_.write("step", report.step,
               {{"loss", static_cast<double>(report.loss)},
                {"grad_norm", static_cast<double>(report.grad_norm)},
                {"lr", report.learning_rate},
                {"s_per_step", report.seconds},
                {"vram_allocated_mb", memory.allocated_mb},
                {"vram_reserved_mb", memory.reserved_mb},
                {"host_rss_mb", json_or_null(host_rss_mb())},
                {"tokens", now_.tokens},
                {"step_tokens", report.tokens},
                {"supervised_tokens", report.supervised_tokens},
                {"copied_bytes", counters.bytes_copied - copied_bytes_}});
    copied_bytes_ = counters.bytes_copied;
    if (tensorboard_) {
      tensorboard_->scalars(report.step, {{"train/loss", report.loss},
                                          {"train/grad_norm", report.grad_norm},
                                          {"train/learning_rate", report.learning_rate},
                                          {"time/s_per_step", report.seconds}});
    }
    pipe_.step({report.step, now_.steps, static_cast<double>(report.loss), report.seconds,
                host_rss_mb().value_or(0)});
    log_line(fmt::format("{} step {}/{} loss {:.4f} norm {:.4f} lr {:.3e} {:.3f} s", utc_now(),
                         report.step, now_.steps, report.loss, report.grad_norm,
                         report.learning_rate, report.seconds));
    if (config_.eval_every > 0 && step_ % config_.eval_every == 0) evaluate();
    if (config_.save_every > 0 && step_ % config_.save_every == 0 && step_ < now_.steps) save();
  }

  /// Mean loss over the validation rows, without dropout.
  void evaluate() {
    if (!validation_) return;
    const double begin = monotonic_s();
    std::int64_t rows = validation_->rows;
    if (config_.eval_rows > 0) rows = std::min(rows, config_.eval_rows);
    const auto elements = static_cast<std::size_t>(rows * validation_->seq_len);
    double sum = 0;
    std::int64_t tokens = 0;
    for (const RowLoss& row :
         session_.executor->evaluate(std::span(validation_->ids).first(elements),
                                     std::span(validation_->flags).first(elements))) {
      sum += row.sum;
      tokens += row.tokens;
    }
    if (tokens == 0) {
      fail(Fault::input, "{}: no token of the validation rows is supervised",
           request_.validation_path.string());
    }
    const double loss = sum / static_cast<double>(tokens), perplexity = std::exp(loss);
    evaluated_step_ = step_;
    if (!first_eval_) first_eval_ = loss;
    last_eval_ = loss;
    log_.write("eval", step_,
               {{"step", step_},
                {"eval_loss", loss},
                {"eval_perplexity", perplexity},
                {"eval_seconds", monotonic_s() - begin},
                {"eval_rows", rows},
                {"eval_tokens", tokens}});
    if (tensorboard_) {
      tensorboard_->scalars(step_, {{"eval/loss", loss}, {"eval/perplexity", perplexity}});
    }
    log_line(fmt::format("{} eval after step {}: loss {:.4f} perplexity {:.3f}", utc_now(), step_,
                         loss, perplexity));
  }

  void save() {
    if (saved_step_ == step_) return;
    const double begin = monotonic_s();
    std::vector<float> memory;
    const FlatParameters host = host_parameters(*session_.executor, memory);
    const fs::path folder = checkpoints_.write(now_, session_.executor->adapter(), host);
    saved_step_ = step_;
    log_.write("checkpoint", step_,
               {{"path", folder.string()}, {"seconds", monotonic_s() - begin}});
    log_line(fmt::format("{} checkpoint {}", utc_now(), folder.string()));
  }

  void tear_down(const std::string& status, const std::string& reason, const std::string& message) {
    if (status == "error" && reason != "diverged") {
      log_.write("error", step_, {{"reason", reason}, {"message", message}});
    }
    const double seconds = begin_s_ > 0 ? monotonic_s() - begin_s_ : 0;
    const auto steps = static_cast<double>(step_ - first_step_);
    const auto tokens = static_cast<double>(now_.tokens - first_tokens_);
    const bool timed = seconds > 0 && steps > 0;
    const auto optional = [](bool known, double value) { return known ? Json(value) : Json(); };
    const fs::path checkpoint = saved_step_ < 0 ? fs::path()
                                                : request_.output_dir / "checkpoints" /
                                                      fmt::format("step-{:08}", saved_step_);
    log_.write(
        "teardown", step_,
        {{"status", status},
         {"reason", reason.empty() ? Json() : Json(reason)},
         {"message", message.empty() ? Json() : Json(message)},
         {"device", config_.device},
         {"quantization", config_.precision},
         {"block_size", config_.poros.block_size},
         {"total_steps", now_.steps},
         {"steps_done", step_},
         {"final_loss", last_loss_ ? Json(static_cast<double>(*last_loss_)) : Json()},
         {"first_eval_loss", json_or_null(first_eval_)},
         {"final_eval_loss", json_or_null(last_eval_)},
         {"final_eval_perplexity",
          optional(last_eval_.has_value(), std::exp(last_eval_.value_or(0)))},
         {"total_time_s", seconds},
         {"avg_step_time_ms", optional(timed, 1e3 * seconds / std::max(steps, 1.0))},
         {"steps_per_sec", optional(timed, steps / std::max(seconds, 1e-9))},
         {"tokens_processed", now_.tokens},
         {"tokens_per_sec", optional(timed, tokens / std::max(seconds, 1e-9))},
         {"peak_vram_allocated_mb", optional(steps > 0, peak_.allocated_mb)},
         {"peak_vram_reserved_mb", optional(steps > 0, peak_.reserved_mb)},
         {"checkpoint", checkpoint.empty() ? Json() : Json(checkpoint.string())},
         {"adapter", status == "ok" ? Json((request_.output_dir / "adapter").string()) : Json()}});
  }

  const TrainRequest& request_;
  const TrainConfig& config_;
  EventLog& log_;
  EventPipe& pipe_;
  CheckpointFolder checkpoints_;
  std::optional<TensorboardWriter> tensorboard_;
  TokenFile tokens_;
  std::optional<TokenFile> validation_;
  std::optional<FoundCheckpoint> found_;
  Session session_;
  CheckpointState now_;
  std::int64_t step_ = 0, saved_step_ = -1, evaluated_step_ = -1, first_step_ = 0;
  std::int64_t first_tokens_ = 0;
  std::uint64_t copied_bytes_ = 0;
  double begin_s_ = 0;
  std::optional<float> last_loss_;
  std::optional<double> first_eval_, last_eval_;
  StepMemory peak_;
};

/// Exit code of the exception being handled.
int exit_code_of_failure() {
  try {
    throw;
  } catch (const Skipped&) {
    return kWrongInput;
  } catch (const Error& error) {
    return error.exit_code();
  } catch (...) {
    return kFailed;
  }
}

}  // namespace

int run_training(const TrainRequest& request, const std::function<bool()>& stop_requested) {
  const UniqueFd lock = lock_folder(request.output_dir);
  EventPipe pipe(EventPipe::fd_from_environment(kEventFdVariable));
  EventLog log(request.output_dir / "events.jsonl", request.run_id);
  TrainRun run(request, log, pipe);
  try {
    return run.run(stop_requested);
  } catch (...) {
    const int code = exit_code_of_failure();
    const Failure failure = describe_failure("");
    std::fprintf(stderr, "poros-cell: %s\n", failure.message.c_str());
    return run.fail_with(failure, code);
  }
}

}  // namespace poros
