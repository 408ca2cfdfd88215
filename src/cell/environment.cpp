// SPDX-License-Identifier: Apache-2.0
#include "cell/environment.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <thread>

#include <sys/utsname.h>
#include <unistd.h>

namespace poros {
namespace {

/// Value after "name<spaces>:" or "name=" in a text file of such lines; null when it isn't there.
Json value_of(const char* path, std::string_view name, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find(separator);
    if (at == std::string::npos) continue;
    const auto end_of_name = line.find_last_not_of(" \t", at == 0 ? 0 : at - 1);
    if (line.substr(0, end_of_name + 1) != name) continue;
    std::string value = line.substr(at + 1);
    value.erase(0, std::min(value.find_first_not_of(" \t\""), value.size()));
    value.erase(value.find_last_not_of(" \t\"\r") + 1);
    return value;
  }
  return nullptr;
}

/// "550.54" from "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54  Tue ...".
Json nvidia_driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  if (!std::getline(file, line)) return nullptr;
  const auto module = line.find("Module");
  const auto begin = line.find_first_of("0123456789", module == std::string::npos ? 0 : module);
  if (begin == std::string::npos) return nullptr;
  return line.substr(begin, line.find(' ', begin) - begin);
}

bool is_allowed(const std::string& name) {
  static constexpr std::array<std::string_view, 5> kPrefixes{"OMP_", "MKL_", "CUDA_", "NCCL_",
                                                             "SLURM_JOB_"};
  static constexpr std::array<std::string_view, 8> kNames{"LC_ALL",
                                                          "LANG",
                                                          "HF_HUB_OFFLINE",
                                                          "PYTORCH_CUDA_ALLOC_CONF",
                                                          "NVIDIA_TF32_OVERRIDE",
                                                          "CUBLAS_WORKSPACE_CONFIG",
                                                          "BNB_CUDA_VERSION",
                                                          "MALLOC_ARENA_MAX"};
  if (is_secret_name(name)) return false;
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) {
                       return name.compare(0, prefix.size(), prefix) == 0;
                     }) ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

}  // namespace

std::optional<double> meminfo_bytes(std::string_view name) {
  const Json text = value_of("/proc/meminfo", name, ':');
  if (!text.is_string()) return std::nullopt;
  return 1024.0 * static_cast<double>(std::strtoull(text.get<std::string>().c_str(), nullptr, 10));
}

std::string without_userinfo(std::string text) {
  for (auto at = text.find("://"); at != std::string::npos; at = text.find("://", at)) {
    at += 3;
    const auto end = std::min(text.find_first_of("/?# \t\"'", at), text.size());
    const auto sign = text.rfind('@', end);
    if (sign != std::string::npos && sign >= at && sign < end) text.erase(at, sign + 1 - at);
  }
  return text;
}

Json environment_snapshot(const std::map<std::string, std::string>& environment) {
  Json snapshot = Json::object();
  utsname names{};
  if (::uname(&names) == 0) {
    snapshot["hostname"] = std::string(names.nodename);
    snapshot["kernel"] = std::string(names.sysname) + " " + names.release + " " + names.machine;
  }
  snapshot["os"] = value_of("/etc/os-release", "PRETTY_NAME", '=');
  snapshot["cpu_model"] = value_of("/proc/cpuinfo", "model name", ':');
  snapshot["cpu_cores"] = std::thread::hardware_concurrency();
  const auto memory = meminfo_bytes("MemTotal");
  snapshot["memory_mb"] = memory ? Json(*memory / 1048576.0) : Json(nullptr);
  snapshot["nvidia_driver"] = nvidia_driver();
  Json variables = Json::object();
  for (const auto& [name, value] : environment) {
    if (is_allowed(name)) variables[name] = without_userinfo(value);
  }
  snapshot["variables"] = variables;
  const BuildInfo& build = build_info();
  snapshot["build"] = {
      {"version", build.version},
      {"git_commit", build.git_commit.empty() ? Json(nullptr) : Json(build.git_commit)},
      {"git_dirty", build.git_dirty},
      {"compiler", build.compiler},
      {"build_type", build.build_type}};
  return snapshot;
}

Json command_line(int argc, char** argv, const Redactor& redactor) {
  Json list = Json::array();
  for (int i = 0; i < argc; ++i) list.push_back(without_userinfo(redactor.redact(argv[i])));
  return list;
}

}  // namespace poros
