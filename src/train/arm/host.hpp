// SPDX-License-Identifier: Apache-2.0
// Facts about this machine and process for a record made on the CPU.
#pragma once

#include <optional>
#include <string>

namespace poros {

/// The processor's name as /proc/cpuinfo has it; "cpu" where it does not tell.
[[nodiscard]] std::string cpu_model_name();

/// Memory of the machine [2^20 bytes].
[[nodiscard]] std::optional<double> host_memory_mb();

/// Seconds since this process was started by the kernel: begins before main, so that loading the
/// program and its libraries counts.
[[nodiscard]] std::optional<double> process_age_s();

}  // namespace poros
