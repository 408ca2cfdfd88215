// SPDX-License-Identifier: Apache-2.0
#include "campaign/slurm_rank.hpp"

#include <charconv>
#include <chrono>
#include <cstdint>
#include <string_view>

#include <unistd.h>

#include "base/text.hpp"

namespace poros {
namespace {

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::string node_name() {
  if (std::string name = environment_variable("SLURMD_NODENAME"); !name.empty()) return name;
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) return {};
  const std::string name = host;
  return name.substr(0, name.find('.'));  // nodes are named without their domain
}

}  // namespace

std::string announced_gpu_type() {
  if (std::string type = environment_variable("POROS_GPU_TYPE"); !type.empty()) return type;
  const std::string wanted = node_name() + "=";
  for (const std::string& entry : split(environment_variable("POROS_NODE_TYPES"), ',')) {
    if (entry.starts_with(wanted)) return entry.substr(wanted.size());
  }
  return {};
}

BatchStart batch_start() {
  return {environment_variable("SLURM_JOB_ID"), environment_variable("SLURM_RESTART_COUNT"),
          environment_variable("SLURM_ARRAY_TASK_ID")};
}

bool is_earlier_start(const LeaseHolder& holder) {
  if (holder.job.empty()) return false;
  if (holder.job == environment_variable("POROS_CONTINUES")) return true;
  const auto then = number(holder.restart.empty() ? "0" : holder.restart);
  const std::string restart = environment_variable("SLURM_RESTART_COUNT");
  const auto now = number(restart.empty() ? "0" : restart);
  return holder.job == environment_variable("SLURM_JOB_ID") && then && now && *then < *now;
}

JournalOptions batch_journal_options(const std::filesystem::path& journal) {
  JournalOptions options;
  const LeaseView view = view_lease(journal);
  options.take_over = view.holder && is_earlier_start(*view.holder);
  return options;
}

std::optional<double> job_seconds_left() {
  const auto end_s = number(environment_variable("SLURM_JOB_END_TIME"));
  if (!end_s || *end_s <= 0) return std::nullopt;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double now_s = std::chrono::duration<double>(now).count();
  return static_cast<double>(*end_s - number(environment_variable("POROS_WARN_S")).value_or(0)) -
         now_s;
}

}  // namespace poros
