// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "campaign/train_inputs.hpp"
#include "cell/cell_process.hpp"
#include "cli/cell_program.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/train_view.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr double kNever_s = 365 * 86400.0;  // a training has no deadlines of its own

struct TrainOptions {
  std::string config, output_dir, resume = "auto";
  bool json = false, plain = false;
};

/// The first signal asks for a checkpoint and the end, the second ends this process at once, and
/// with it (its supervisor sees it go) the trainer.
class TrainSignals {
 public:
  TrainSignals() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) fail_errno(Fault::environment, "pipe");
    read_.reset(ends[0]);
    write_.reset(ends[1]);
    stop_ = 0;
    wake_fd_ = write_.get();
    struct sigaction action {};
    action.sa_handler = &TrainSignals::handle;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &old_[i]);
      if (old_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
    }
  }
  ~TrainSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &old_[i], nullptr);
    wake_fd_ = -1;
  }
  TrainSignals(const TrainSignals&) = delete;
  TrainSignals& operator=(const TrainSignals&) = delete;

  [[nodiscard]] static bool requested() { return stop_ != 0; }
  [[nodiscard]] int fd() const { return read_.get(); }

 private:
  static constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
  static inline volatile std::sig_atomic_t stop_ = 0, wake_fd_ = -1;

  static void handle(int number) {
    if (stop_ != 0) ::_exit(128 + number);
    stop_ = 1;
    const int saved = errno;
    const char byte = 0;
    [[maybe_unused]] const ssize_t put = ::write(wake_fd_, &byte, 1);
    errno = saved;
  }

  UniqueFd read_, write_;
  std::array<struct sigaction, 4> old_{};
};

std::string new_run_id() {
  const std::string seed = fmt::format("{} {} {}", utc_now(), ::getpid(), monotonic_s());
  return sha256_hex(seed).substr(0, 16);
}

/// What the trainer is told, beside what a config says.
TrainRequest make_request(const TrainOptions& options) {
  TrainRequest request;
  request.config = read_train_config(options.config);
  TrainConfig& config = request.config;
  config.device = resolve_device(config.device);
  request.run_id = new_run_id();
  request.output_dir =
      fs::absolute(options.output_dir.empty() ? config.output_dir : options.output_dir)
          .lexically_normal();
  request.resume = options.resume;
  if (options.resume != "auto" && options.resume != "none") {
    std::error_code error;
    if (!fs::exists(fs::path(options.resume) / "checkpoint.json", error)) {
      fail(Fault::usage,
           "--resume {}: no checkpoint folder; expected auto, none or a folder such "
           "as OUTPUT/checkpoints/step-00000500",
           options.resume);
    }
    request.resume = fs::absolute(options.resume).lexically_normal().string();
  }
  request.threads = config.threads.value_or(
      std::max<std::int64_t>(1, static_cast<std::int64_t>(std::thread::hardware_concurrency())));
  return request;
}

CellOutcome run_trainer(const TrainRequest& request, const fs::path& program,
                        const TrainSignals& signals, TrainView& view) {
  const fs::path logs = request.output_dir / "logs";
  std::error_code error;
  fs::create_directories(logs, error);
  if (error) fail(Fault::io, "{}: {}", logs.string(), error.message());
  const fs::path path = logs / (request.run_id + ".request.json");
  write_file_durably(path, dump_json(to_json(request), 1) + "\n");
  CellCommand command;
  command.argv = {program.string(), "train", path.string()};
  command.environment = cell_environment(current_environment(), request.config.device);
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    command.environment[name] = std::to_string(request.threads);
  }
  command.tag = "train/" + request.run_id;
  command.log_path = logs / (request.run_id + ".log");
  command.timeouts = {kNever_s, kNever_s, kNever_s};
  command.grace_s = 86400;  // the step and the checkpoint may take their time
  CellHooks hooks;
  hooks.on_event = [&](CellEvent event, const CellProgress& progress) {
    if (event == CellEvent::phase) view.set_activity(progress.phase);
  };
  hooks.on_tick = [&] { view.update(); };
  hooks.stop_requested = [] { return TrainSignals::requested(); };
  hooks.wake_fd = signals.fd();
  become_subreaper();
  CellOutcome outcome = run_cell(command, hooks, Redactor(current_environment()), OomCounter());
  view.update();
  return outcome;
}

/// What to say of a run that did not end well.
std::string failure_text(const CellOutcome& outcome, const TrainView& view) {
  // A trainer that was killed has no last words.
  std::string text = json_find<std::string>(view.teardown(), "message", "teardown").value_or("");
  if (view.oom().is_object()) {
    const auto mb = [&](const char* key) {
      const Json value = view.oom().value(key, Json());
      return value.is_number() ? fmt::format("{:.1f} MiB", value.get<double>()) : "--";
    };
    text +=
        fmt::format("\nasked {}, held {}, free {}", mb("asked_mb"), mb("held_mb"), mb("free_mb"));
    const auto hints = view.oom().value("hints", std::vector<std::string>());
    if (!hints.empty()) text += fmt::format("\nless memory take: {}", fmt::join(hints, "; "));
  }
  if (!text.empty()) return text;
  if (outcome.oom_killed) return "the kernel ended the trainer: the host's memory was full";
  const std::string tail = outcome.log_tail.empty() ? "" : "\n" + outcome.log_tail;
  if (!outcome.detail.empty()) return outcome.detail + tail;
  return fmt::format("the trainer ended by {} {}{}",
                     outcome.end == CellOutcome::End::signalled ? "signal" : "exit code",
                     outcome.code, tail);
}

int exit_code_of(const CellOutcome& outcome) {
  if (outcome.end != CellOutcome::End::exited) return kFailed;
  switch (outcome.code) {
    case kDone:
    case kWrongInput:
    case kStoppedEarly:
      return outcome.code;
    default:
      return kFailed;
  }
}

int train(const TrainOptions& options) {
  TrainRequest request = make_request(options);
  const fs::path program = cell_program(request.config.device);
  std::error_code error;
  if (!fs::exists(program, error)) {
    fail(Fault::environment, "{}: the trainer is missing; scripts/bootstrap.sh builds it",
         program.string());
  }
  const bool terminal = !options.plain && !options.json && ::isatty(STDERR_FILENO) != 0;
  TrainView view(request.output_dir / "events.jsonl", request.run_id, stderr, terminal,
                 options.json);
  const TrainSignals signals;
  const InstallPaths paths = find_install_paths({});
  try {
    prepare_training({paths, [&](const std::string& line) { view.say(line); },
                      [] { return TrainSignals::requested(); }},
                     request);
  } catch (const TrainingStopped&) {
    view.say("stopped before the training began; the same command goes on");
    return kStoppedEarly;
  }
  const CellOutcome outcome = run_trainer(request, program, signals, view);
  const int code = exit_code_of(outcome);
  if (code == kFailed || code == kWrongInput) {
    const Fault fault = code == kWrongInput ? Fault::input : Fault::run;
    throw Error(fault, failure_text(outcome, view));
  }
  if (options.json) {
    Json result = view.teardown();
    result["run_id"] = request.run_id;
    result["output_dir"] = request.output_dir.string();
    print_json(result);
  } else if (code == kStoppedEarly) {
    view.say("stopped; a checkpoint is written, the same command goes on");
  } else {
    view.say(fmt::format("adapter in {}", (request.output_dir / "adapter").string()));
  }
  return code;
}

}  // namespace

void add_train(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* command = parent.add_subcommand(
      "train", "Train an adapter as a config says, or go on where it stopped");
  command->add_option("CONFIG", options->config, "The YAML file (poros schema train)")->required();
  command->add_option("-o,--output-dir", options->output_dir, "Instead of the config's output_dir");
  command
      ->add_option(
          "--resume", options->resume,
          "auto: from the newest whole checkpoint; none: anew, older ones are moved aside; "
          "or a checkpoint's folder")
      ->capture_default_str();
  command->add_flag("--plain", options->plain, "Plain lines, also on a terminal");
  command->add_flag("--json", options->json, "Print one JSON object at the end");
  command->footer(R"(Examples:
  poros train configs/train/alice.yaml -o out
  poros train my.yaml --resume none

Ctrl-C, SIGTERM and SIGUSR1 write a checkpoint at the end of the step and exit with 75: the same
command goes on, to the same bits as without the stop. A second signal ends at once.

Exit codes: 0 done; 1 failed, out of memory or diverged; 2 wrong input; 75 stopped.
)");
  command->callback(
      [&invocation, options] { invocation.run = [options] { return train(*options); }; });
}

}  // namespace poros
