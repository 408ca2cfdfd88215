// SPDX-License-Identifier: Apache-2.0
// Campaigns beside each other, cell by cell: medians over passes, a bootstrap interval of the ratio
// and a verdict. Same input, same result: the bootstrap has a fixed seed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/report_model.hpp"
#include "base/json.hpp"

namespace poros {

enum class Verdict {
  faster,
  slower,
  same,         // the interval of the ratio contains 1
  undecided,    // fewer than two passes on a side: no interval
  lost,         // ok in the baseline, not so here
  gained,       // the other way round
  not_compared  // flagged, or ok on neither side
};
/// "faster", "slower", "same within noise", "undecided", "lost", "gained", "not compared"
[[nodiscard]] const char* word(Verdict verdict);

struct ComparedCell {
  std::string model, model_id, precision, hardware, method, variant;
  std::string outcome_a, outcome_b;                        // in words; "absent" where there is none
  std::string record_a, record_b;                          // paths of the records
  std::optional<double> s_a, s_b;                          // median over passes [s]
  std::optional<double> low_a, high_a, low_b, high_b;      // least and most over passes [s]
  std::optional<double> time_ratio, time_low, time_high;   // b / a, 95 % bootstrap interval
  std::optional<double> memory_a, memory_b, memory_ratio;  // peak [2^20 bytes]; b / a
  Verdict verdict = Verdict::not_compared;
  bool regression = false;
};

struct Comparison {
  std::string name_a, name_b;
  std::vector<ComparedCell> cells;
  std::size_t compared = 0, regressions = 0;
  std::vector<std::string> problems;  // of either campaign's records
};

struct CompareOptions {
  bool other_hardware = false, other_protocol = false;  // compare across them
  /// A cell is a regression when its time is slower beyond noise and by more than this share, its
  /// peak memory is larger by more than this share, or it was ok and is not any more.
  std::optional<double> fail_share;
};

/// @throws Error(Fault::input) when hardware or protocol differ and that was not asked for, or when
/// no cell is in both
[[nodiscard]] Comparison compare_campaigns(const ReportModel& a, const std::string& name_a,
                                           const ReportModel& b, const std::string& name_b,
                                           const CompareOptions& options);

[[nodiscard]] Json to_json(const Comparison& comparison);
[[nodiscard]] std::string compare_markdown(const Comparison& comparison);
/// JUnit XML, one test case a cell; failures are regressions.
[[nodiscard]] std::string compare_junit(const std::vector<Comparison>& comparisons);

}  // namespace poros
