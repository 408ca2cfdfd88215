// SPDX-License-Identifier: Apache-2.0
// All that stands between files and a training step: base, adapter, plans, executor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "model/adapter.hpp"
#include "model/base_store.hpp"
#include "model/token_file.hpp"
#include "plan/memory_plan.hpp"
#include "plan/numerical_plan.hpp"
#include "spec/cell_spec.hpp"
#include "train/executor.hpp"

namespace poros {

/// What a session is made from. Paths are those of a request (cell/request.hpp).
struct SessionInput {
  // Method (auto: by the memory that is free), precision, training shape, lora, poros settings.
  CellSpec cell;
  std::filesystem::path model_dir, cache_dir;
  std::filesystem::path adapter_dir;  // empty: no adapter, the base alone
  bool check_adapter = true;          // refuse an adapter that is not the one of cell.lora
  std::int64_t threads = 1;
};

/// Members are made from the first to the last and used in that order.
struct Session {
  std::unique_ptr<BaseStore> base;
  Adapter adapter;
  NumericalPlan numerical;
  MemoryPlan memory;
  std::unique_ptr<Executor> executor;

  /// "the plan asks for 12.0 MiB of device memory and 3.0 MiB of host memory"; empty before the
  /// plan is made.
  [[nodiscard]] std::string asked_for() const;
};

/// A token file whose name, where it is a sha256, is its content's.
/// @throws Error(Fault::input) where it isn't
[[nodiscard]] TokenFile open_tokens(const std::filesystem::path& path);

/// @throws Error(Fault::input) where a token file holds ids that the model has not
void check_vocabulary(const TokenFile& tokens, const Architecture& architecture,
                      const std::filesystem::path& path);

/// @throws Skipped where the device is cuda and this program or machine has none;
/// Error(Fault::input) for an unknown one
void check_device(const std::string& device);

/// Device memory at the end of a step [2^20 bytes]: what the arena (CPU) or the allocator holds.
struct StepMemory {
  double allocated_mb = 0, reserved_mb = 0;
};
[[nodiscard]] StepMemory step_memory(const Session& session);

/// A line for the log, flushed so that a killed process' log is complete.
void log_line(const std::string& text);

/// Opens the base (which quantises it where the cache has none), reads the adapter, plans and fills
/// the arena. Members stay as far as it got when it throws, so that asked_for() can tell.
/// @param on_phase called with "quantise" before the cache is built and "load" after it
void open_session(const SessionInput& input, const std::function<void(const char*)>& on_phase,
                  Session& session);

}  // namespace poros
