// SPDX-License-Identifier: Apache-2.0
#include "campaign/gpu_faults.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace poros {
namespace {

constexpr std::array<std::string_view, 3> kReasons{"lost", "start_failed", "no_cuda"};

// Texts of CUDA's own errors (cudaErrorECCUncorrectable, cudaErrorHardwareStackError,
// cudaErrorDevicesUnavailable, cudaErrorSystemNotReady, ...) as the libraries pass them on.
constexpr std::array<std::string_view, 5> kTexts{"uncorrectable ECC error", "hardware stack error",
                                                 "device(s) is/are busy or unavailable",
                                                 "system not yet initialized", "GPU is lost"};

std::string text_field(const Receipt& receipt, const char* name) {
  return json_find<std::string>(receipt.fields, name, "receipt").value_or("");
}

}  // namespace

bool is_machine_fault(const Receipt& receipt) {
  if (text_field(receipt, "status") != "error") return false;
  const std::string reason = text_field(receipt, "reason");
  if (std::ranges::find(kReasons, reason) != kReasons.end()) return true;
  const std::string message = text_field(receipt, "error_message");
  return std::ranges::any_of(
      kTexts, [&](std::string_view text) { return message.find(text) != std::string::npos; });
}

void GpuFaults::observe(const Receipt& receipt) {
  if (receipt.kind != "attempt") return;
  const std::string uuid = text_field(receipt, "gpu_uuid");
  if (uuid.empty()) return;
  if (is_machine_fault(receipt)) {
    ++in_a_row_[uuid];
  } else if (text_field(receipt, "status") == "ok") {
    in_a_row_.erase(uuid);
  }
}

bool GpuFaults::is_set_aside(const std::string& gpu_uuid) const {
  const auto found = in_a_row_.find(gpu_uuid);
  return found != in_a_row_.end() && found->second >= kFaultsInARow;
}

}  // namespace poros
