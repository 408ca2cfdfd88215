// SPDX-License-Identifier: Apache-2.0
#include "cli/train_view.hpp"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "campaign/live.hpp"

namespace poros {
namespace {

constexpr double kLinePeriod_s = 0.2;

std::size_t terminal_width(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
  return size.ws_col;
}

std::optional<double> number(const Json& data, const char* key) {
  const auto found = data.find(key);
  if (found == data.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::string shown(const Json& data, const char* key, const char* format) {
  const auto value = number(data, key);
  return value ? fmt::format(fmt::runtime(format), *value) : "--";
}

std::string text(const Json& data, const char* key) {
  const auto found = data.find(key);
  return found != data.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

TrainView::TrainView(std::filesystem::path events, std::string run_id, std::FILE* out,
                     bool terminal, bool quiet)
    : path_(std::move(events)),
      run_id_(std::move(run_id)),
      out_(out),
      terminal_(terminal),
      quiet_(quiet) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path_, error);
  if (!error) at_ = bytes;
}

TrainView::~TrainView() {
  clear_line();
}

void TrainView::clear_line() {
  if (line_shown_) std::fputs("\r\x1b[K", out_);
  line_shown_ = false;
}

void TrainView::say(const std::string& line) {
  if (quiet_) return;
  clear_line();
  std::fputs((line + "\n").c_str(), out_);
  std::fflush(out_);
}

void TrainView::show_line() {
  const std::string& line = line_.empty() ? activity_ : line_;
  if (!terminal_ || quiet_ || line.empty()) return;
  const double now_s = monotonic_s();
  if (now_s - line_s_ < kLinePeriod_s) return;
  line_s_ = now_s;
  std::fputs(("\r" + line.substr(0, terminal_width(out_) - 1) + "\x1b[K").c_str(), out_);
  std::fflush(out_);
  line_shown_ = true;
}

void TrainView::update() {
  read_new();
  show_line();
}

void TrainView::read_new() {
  if (!fd_) fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd_) return;  // the trainer has not made it yet
  std::array<char, 65536> buffer{};
  while (true) {
    const ssize_t got = ::pread(fd_.get(), buffer.data(), buffer.size(), static_cast<off_t>(at_));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    at_ += static_cast<std::uint64_t>(got);
    pending_.append(buffer.data(), static_cast<std::size_t>(got));
  }
  for (auto end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n')) {
    const std::string line = pending_.substr(0, end);
    pending_.erase(0, end + 1);
    try {
      take(parse_json(line, path_.string()));
    } catch (const Error&) {
      // The unfinished line of a killed run: the next one begins after it.
    }
  }
}

void TrainView::take(const Json& event) {
  if (text(event, "run_id") != run_id_ || !event.contains("data")) return;
  const std::string type = text(event, "event_type");
  const Json& data = event.at("data");
  const auto step = json_find<std::int64_t>(event, "step", "event").value_or(0);
  if (type == "step") {
    take_step(step, data);
  } else if (type == "setup") {
    steps_ = json_find<std::int64_t>(data, "steps", "setup").value_or(0);
    say(fmt::format("{} parameters are trained, base {} {}, plan {} MiB; {} rows, {} steps",
                    shown(data, "trainable_params", "{:.0f}"), text(data, "quantization"),
                    text(data, "residency"), shown(data, "planned_device_mb", "{:.1f}"),
                    shown(data, "rows", "{:.0f}"), steps_));
    if (data.contains("resumed_from")) {
      const Json& from = data.at("resumed_from");
      say("goes on from " + text(from, "path") +
          (from.value("exact", true) ? ""
                                     : "; its device or number of threads was another, so the last "
                                       "bits may differ"));
    }
  } else if (type == "eval") {
    say(fmt::format("eval after step {}: loss {}  perplexity {}", step,
                    shown(data, "eval_loss", "{:.4f}"), shown(data, "eval_perplexity", "{:.3f}")));
  } else if (type == "checkpoint") {
    say(fmt::format("checkpoint {}", text(data, "path")));
  } else if (type == "error") {
    error_ = data;
    if (text(data, "reason") == "damaged_checkpoint") {
      say("passed over a damaged checkpoint: " + text(data, "message"));
    }
  } else if (type == "oom") {
    oom_ = data;
  } else if (type == "teardown") {
    teardown_ = data;
  }
}

void TrainView::take_step(std::int64_t step, const Json& data) {
  const double seconds = number(data, "s_per_step").value_or(0);
  smooth_s_ = smooth_s_ == 0 ? seconds : 0.9 * smooth_s_ + 0.1 * seconds;
  line_ = fmt::format("step {}/{}  loss {}  norm {}  lr {}", step, steps_,
                      shown(data, "loss", "{:.4f}"), shown(data, "grad_norm", "{:.3f}"),
                      shown(data, "lr", "{:.2e}"));
  if (seconds > 0) {
    line_ += fmt::format("  {:.0f} tok/s", number(data, "step_tokens").value_or(0) / seconds);
  }
  line_ += fmt::format("  {} MiB", shown(data, "vram_allocated_mb", "{:.0f}"));
  const double copied = number(data, "copied_bytes").value_or(0);
  if (copied > 0 && seconds > 0)
    line_ += fmt::format("  PCIe {:.1f} GB/s", 1e-9 * copied / seconds);
  if (steps_ > step) {
    line_ += "  ETA " + duration_text(smooth_s_ * static_cast<double>(steps_ - step));
  }
  if (!terminal_) say(line_);
}

}  // namespace poros
