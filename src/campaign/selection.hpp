// SPDX-License-Identifier: Apache-2.0
// Which of a campaign's cells a run works on: --only, --shard.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "campaign/plan.hpp"

namespace poros {

/// Part `index` of `count`: every count-th comparison group of each GPU type.
struct ShardPart {
  std::int64_t index = 0, count = 1;
};

/// "0/4" to "3/4". @throws Error(Fault::usage)
[[nodiscard]] ShardPart parse_shard_part(const std::string& text);

struct SelectionOptions {
  /// "method=poros", "model=qwen2.5-7b", "precision=nf4", "gpu=A100", "variant=...", or the first
  /// characters of a cell key. A cell is taken when it has, for each name given, one of its values.
  std::vector<std::string> only;
  ShardPart part;
};

class Selection {
 public:
  Selection() = default;  // everything
  /// @throws Error(Fault::usage) for a condition that has no form, or that no cell meets
  Selection(const CampaignPlan& plan, const SelectionOptions& options);

  [[nodiscard]] bool has_cell(std::size_t cell) const { return cells_.empty() || cells_[cell]; }
  /// Whether any cell of the group is taken.
  [[nodiscard]] bool has_group(const ComparisonGroup& group) const;
  [[nodiscard]] bool is_whole() const { return cells_.empty(); }

 private:
  std::vector<bool> cells_;  // empty: all
};

}  // namespace poros
