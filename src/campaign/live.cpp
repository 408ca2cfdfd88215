// SPDX-License-Identifier: Apache-2.0
#include "campaign/live.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"

namespace poros {
namespace {

constexpr double kLinePeriod_s = 0.2, kFilePeriod_s = 2.0;

std::size_t terminal_width(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
  return size.ws_col;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// Replaces a file by rename, without waiting for the disk: losing it costs nothing, and a sync
/// every two seconds would disturb what is being measured.
void replace_file(const std::filesystem::path& path, const std::string& text) {
  const std::string temporary = path.string() + ".new";
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) return;
  const bool whole =
      ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!whole || ::rename(temporary.c_str(), path.c_str()) != 0) ::unlink(temporary.c_str());
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

LiveView::LiveView(std::filesystem::path live_file, std::FILE* out, bool terminal)
    : live_file_(std::move(live_file)), out_(out), terminal_(terminal) {}

LiveView::~LiveView() {
  clear_line();
  if (!live_file_.empty()) ::unlink(live_file_.c_str());
}

void LiveView::set_passes(std::int64_t total, std::int64_t left) {
  total_ = total;
  left_ = left;
}

void LiveView::clear_line() {
  if (line_shown_) std::fputs("\r\x1b[K", out_);
  line_shown_ = false;
  std::fflush(out_);
}

void LiveView::say(const std::string& line) {
  clear_line();
  std::fputs((line + "\n").c_str(), out_);
  std::fflush(out_);
}

void LiveView::begin(const RunningPass& pass) {
  running_ = pass;
  progress_ = CellProgress{};
  progress_.steps = pass.steps;
  activity_.clear();
  begun_s_ = monotonic_s();
  file_s_ = 0;
  tick();
}

void LiveView::event(const CellProgress& progress) {
  progress_ = progress;
}

std::optional<double> LiveView::pass_eta_s() const {
  if (!running_ || !progress_.s_per_step || progress_.steps <= progress_.step) return std::nullopt;
  return *progress_.s_per_step * static_cast<double>(progress_.steps - progress_.step);
}

std::optional<double> LiveView::eta_s() const {
  double sum = 0;
  int count = 0;
  for (const auto& [method, entry] : wall_by_method_) {
    sum += entry.first;
    count += entry.second;
  }
  if (count == 0 || left_ == 0) return std::nullopt;
  const double each_s = sum / count;
  const double passed_s = running_ ? std::min(monotonic_s() - begun_s_, each_s) : 0;
  return each_s * static_cast<double>(left_) / ranks_ - passed_s;
}

std::string LiveView::running_line() const {
  std::string line = fmt::format(
      "{} {} {} {}{}/{}", running_->method, running_->model, running_->precision,
      running_->purpose == "parity" ? "parity " : "pass ", running_->pass + 1, running_->n_passes);
  const std::string phase = progress_.phase.empty() ? "starting" : progress_.phase;
  line += progress_.step > 0 ? fmt::format(" | step {}/{}", progress_.step, progress_.steps)
                             : " | " + phase;
  if (progress_.loss) line += fmt::format(" | loss {:.3f}", *progress_.loss);
  if (progress_.s_per_step) line += fmt::format(" | {:.3g} s/step", *progress_.s_per_step);
  if (progress_.memory_mb) line += fmt::format(" | {:.0f} MiB", *progress_.memory_mb);
  if (const auto eta = pass_eta_s()) line += " | ETA " + duration_text(*eta);
  if (const auto eta = eta_s()) line += " (all " + duration_text(*eta) + ")";
  return line;
}

void LiveView::tick() {
  const double now_s = monotonic_s();
  if (terminal_ && (running_ || !activity_.empty()) && now_s - line_s_ >= kLinePeriod_s) {
    line_s_ = now_s;
    const std::string line = running_ ? running_line() : activity_;
    std::fputs(("\r" + line.substr(0, terminal_width(out_) - 1) + "\x1b[K").c_str(), out_);
    std::fflush(out_);
    line_shown_ = true;
  }
  if (now_s - file_s_ >= kFilePeriod_s) {
    file_s_ = now_s;
    write_file();
  }
}

void LiveView::write_file() {
  if (live_file_.empty()) return;
  Json running = nullptr;
  if (running_) {
    running = {{"key", running_->key},
               {"method", running_->method},
               {"model", running_->model},
               {"precision", running_->precision},
               {"purpose", running_->purpose},
               {"pass", running_->pass},
               {"n_passes", running_->n_passes},
               {"attempt", running_->attempt},
               {"phase", progress_.phase},
               {"step", progress_.step},
               {"steps", progress_.steps},
               {"loss", json_or_null(progress_.loss)},
               {"s_per_step", json_or_null(progress_.s_per_step)},
               {"memory_mb", json_or_null(progress_.memory_mb)},
               {"running_s", monotonic_s() - begun_s_},
               {"eta_s", json_or_null(pass_eta_s())}};
  }
  replace_file(live_file_, dump_json({{"v", 1},
                                      {"host", host_name()},
                                      {"pid", ::getpid()},
                                      {"updated_at", utc_now()},
                                      {"placement", placement_},
                                      {"activity", activity_},
                                      {"passes_total", total_},
                                      {"passes_left", left_},
                                      {"eta_s", json_or_null(eta_s())},
                                      {"running", running}}) +
                               "\n");
}

void LiveView::end(const std::string& result, double wall_s, bool counts) {
  if (counts) {
    auto& [sum, count] = wall_by_method_[running_->method];
    sum += wall_s;
    ++count;
  }
  running_.reset();
  say(fmt::format("[{}/{}] {}", total_ - left_, total_, result));
  file_s_ = 0;
}

void LiveView::set_activity(const std::string& text) {
  activity_ = text;
  line_s_ = 0;
  file_s_ = 0;
  tick();
}

}  // namespace poros
