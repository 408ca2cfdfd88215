// SPDX-License-Identifier: Apache-2.0
#include "train/event_log.hpp"

#include <chrono>
#include <cmath>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.hpp"

namespace poros {
namespace {

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void nulls_for_non_finite(Json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) value = nullptr;
  if (value.is_structured()) {
    for (Json& below : value) nulls_for_non_finite(below);
  }
}

}  // namespace

EventLog::EventLog(std::filesystem::path path, std::string run_id)
    : path_(std::move(path)), run_id_(std::move(run_id)) {
  fd_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd_) fail_errno(Fault::io, path_.string());
  const off_t end = ::lseek(fd_.get(), 0, SEEK_END);
  char last = '\n';
  if (end > 0 && ::pread(fd_.get(), &last, 1, end - 1) == 1 && last != '\n') {
    write_all(fd_.get(), "\n", 1, path_);
  }
}

void EventLog::write(const char* type, std::int64_t step, Json data) {
  nulls_for_non_finite(data);
  const Json event{{"event_type", type},  {"timestamp", unix_time_s()}, {"step", step},
                   {"block_id", nullptr}, {"run_id", run_id_},          {"data", std::move(data)}};
  const std::string line = dump_json(event) + "\n";
  try {
    write_all(fd_.get(), line.data(), line.size(), path_);
  } catch (const Error& error) {
    if (!told_) std::fprintf(stderr, "poros-cell: events are lost: %s\n", error.what());
    told_ = true;
  }
}

}  // namespace poros
