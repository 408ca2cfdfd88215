// SPDX-License-Identifier: Apache-2.0
// What the journal says has been done: the state from which a campaign goes on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "receipts/receipt.hpp"

namespace poros {

/// One try at a pass, as its receipt tells.
struct AttemptEntry {
  std::string key, purpose;  // timed | parity
  std::int64_t pass = 0, attempt = 1;
  std::string status, reason;
  std::string cell_build;  // of the program that ran it
  std::int64_t seq = -1;
  std::string path, sha256;  // of its PassRecord
  std::string host, gpu_uuid;
  std::optional<double> wall_s;  // from its start to its end
  std::optional<double> s_per_step;
  bool superseded = false;  // its group goes on on another GPU, from its first pass

  /// False for attempts that say nothing of the cell: they are run again without being asked to.
  [[nodiscard]] bool counts() const {
    return !superseded && !(status == "error" && (reason == "lost" || reason == "drained"));
  }
  [[nodiscard]] bool failed() const { return status == "error" || status == "oom"; }
};

/// A cell or parity receipt.
struct ResultEntry {
  std::string status, reason;
  std::int64_t seq = -1;
  std::string path, sha256;
  std::string message;  // of a cell that did not end ok
};

class Ledger {
 public:
  Ledger() = default;
  /// @throws Error(Fault::input) when a receipt lacks a field that it must have
  explicit Ledger(const std::vector<Receipt>& receipts);
  /// @param earlier a receipt of another journal than this run's: its seq becomes -1
  void add(const Receipt& receipt, bool earlier = false);

  /// Marks the last attempts of a cell that ran on another GPU than `gpu_uuid`.
  /// @returns how many of them had counted
  std::int64_t supersede(const std::string& key, const std::string& gpu_uuid);

  /// The last attempt at a pass, or nullptr.
  [[nodiscard]] const AttemptEntry* last_attempt(const std::string& key, const std::string& purpose,
                                                 std::int64_t pass) const;
  /// The highest attempt number at a pass; 0 when there was none.
  [[nodiscard]] std::int64_t attempts(const std::string& key, const std::string& purpose,
                                      std::int64_t pass) const;
  /// The last attempts at all passes of a cell, by pass.
  [[nodiscard]] std::vector<AttemptEntry> passes(const std::string& key,
                                                 const std::string& purpose) const;
  [[nodiscard]] const ResultEntry* cell(const std::string& key) const;
  [[nodiscard]] const ResultEntry* parity(const std::string& group) const;

 private:
  std::map<std::tuple<std::string, std::string, std::int64_t>, AttemptEntry> attempts_;
  std::map<std::string, ResultEntry> cells_, parity_;
};

}  // namespace poros
