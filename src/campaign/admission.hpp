// SPDX-License-Identifier: Apache-2.0
// Which passes may run beside each other on one host: their memory must fit, and some want the host
// for themselves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace poros {

/// Bytes of host memory that this process and its children may use: the smaller of what is
/// installed and the limit of the memory cgroup (v2 or v1) it runs in.
[[nodiscard]] std::int64_t usable_host_bytes();

class Admission {
 public:
  struct Pass {
    std::string host;
    std::int64_t host_limit_bytes = 0;  // 0: not known, always enough
    std::int64_t bytes = 0;             // predicted; 0: not known
    bool exclusive = false;             // nothing else may run on its host
  };

  /// Asks for a rank's next pass. Where the answer is no, the rank asks again: one that wants its
  /// host alone keeps others from starting there until it has had its turn.
  /// A pass that is alone on its host is always admitted.
  [[nodiscard]] bool admit(int rank, const Pass& pass);

  /// The rank's pass has ended, or it asks no longer.
  void release(int rank);

 private:
  std::map<int, Pass> running_;  // by rank
  std::map<int, std::string> waiting_exclusive_;
};

}  // namespace poros
