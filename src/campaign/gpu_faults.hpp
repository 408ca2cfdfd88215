// SPDX-License-Identifier: Apache-2.0
// GPUs that fail again and again. What is known of them is in the receipts, so a run that goes on
// after a requeue knows it too.
#pragma once

#include <map>
#include <string>

#include "receipts/receipt.hpp"

namespace poros {

/// So many attempts in a row that failed for the machine's sake, whatever the cell, and a GPU gets
/// no more work.
inline constexpr int kFaultsInARow = 3;

class GpuFaults {
 public:
  void observe(const Receipt& receipt);
  /// False for an empty uuid.
  [[nodiscard]] bool is_set_aside(const std::string& gpu_uuid) const;

 private:
  std::map<std::string, int> in_a_row_;
};

/// Whether an attempt failed for its machine's sake: the process was lost or could not start, there
/// was no usable GPU, or the driver reported a fault of the device.
[[nodiscard]] bool is_machine_fault(const Receipt& receipt);

}  // namespace poros
