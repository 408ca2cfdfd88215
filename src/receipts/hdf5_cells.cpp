// SPDX-License-Identifier: Apache-2.0
#include "receipts/hdf5_cells.hpp"

#include <cmath>
#include <limits>
#include <optional>

namespace poros {
namespace {

template <typename Value, typename Get>
std::vector<Value> column(const Campaign& campaign, Get&& get) {
  std::vector<Value> values;
  values.reserve(campaign.cells.size());
  for (const CampaignCell& cell : campaign.cells) values.push_back(get(cell));
  return values;
}

std::string joined(const std::vector<std::string>& items) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ",") + item;
  return text;
}

}  // namespace

h5::Table cells_table(const Campaign& campaign) {
  h5::Table table;
  const auto text = [&](const char* name, auto&& get) {
    table.text(name, column<std::string>(campaign, get));
  };
  const auto number = [&](const char* name, const char* unit, auto member) {
    table.number(name, unit, column<double>(campaign, [&](const CampaignCell& cell) {
                   const auto& value = cell.artifact.*member;
                   return value ? static_cast<double>(*value)
                                : std::numeric_limits<double>::quiet_NaN();
                 }));
  };
  const auto integer = [&](const char* name, const char* unit, auto member) {
    table.integer(name, unit, column<std::int64_t>(campaign, [&](const CampaignCell& cell) {
                    return static_cast<std::int64_t>(cell.artifact.*member);
                  }));
  };
  const auto field = [](auto member) {
    return [member](const CampaignCell& cell) { return cell.artifact.*member; };
  };
  const auto optional_field = [](auto member) {
    return [member](const CampaignCell& cell) { return (cell.artifact.*member).value_or(""); };
  };
  using A = RunArtifact;
  text("key", field(&A::cell_key));
  text("group_key", field(&A::group_key));
  text("method", field(&A::method));
  text("model_id", field(&A::model_id));
  text("display_name", field(&A::display_name));
  text("arch", field(&A::arch));
  text("precision", field(&A::precision));
  text("hardware", field(&A::hardware));
  text("gpu_uuid", optional_field(&A::gpu_uuid));
  text("device", field(&A::device));
  text("protocol", field(&A::protocol));
  text("status", field(&A::status));
  text("reason", optional_field(&A::reason));
  text("flags", [](const CampaignCell& cell) { return joined(cell.artifact.flags); });
  number("s_per_step", "s", &A::s_per_step);
  number("s_per_step_min", "s", &A::s_per_step_min);
  number("s_per_step_max", "s", &A::s_per_step_max);
  number("s_per_step_stddev", "s", &A::s_per_step_stddev);
  number("tok_per_sec", "token/s", &A::tok_per_sec);
  number("load_s", "s", &A::load_s);
  number("vram_total_mb", "MiB", &A::vram_total_mb);
  number("vram_peak_mb", "MiB", &A::vram_peak_mb);
  number("vram_avg_mb", "MiB", &A::vram_avg_mb);
  number("planned_peak_mb", "MiB", &A::planned_peak_mb);
  number("host_rss_peak_mb", "MiB", &A::host_rss_peak_mb);
  number("pinned_mb", "MiB", &A::pinned_mb);
  number("first_step_loss", "nat", &A::first_step_loss);
  number("mean_loss_first10", "nat", &A::mean_loss_first10);
  number("mean_loss_last10", "nat", &A::mean_loss_last10);
  number("parity_loss_max_diff", "nat", &A::parity_loss_max_diff);
  number("parity_weight_max_diff", "1", &A::parity_weight_max_diff);
  table.integer("bitwise_exact", "1 yes, 0 no, -1 not measured",
                column<std::int64_t>(campaign, [](const CampaignCell& cell) -> std::int64_t {
                  const auto& exact = cell.artifact.bitwise_exact;
                  return exact ? (*exact ? 1 : 0) : -1;
                }));
  number("trainable_params", "1", &A::trainable_params);
  number("tokens_per_step", "token", &A::tokens_per_step);
  number("block_size", "layer", &A::block_size);
  integer("steps", "1", &A::steps);
  integer("seq_len", "token", &A::seq_len);
  integer("n_passes", "1", &A::n_passes);
  integer("n_passes_expected", "1", &A::n_passes_expected);
  table.integer("seq", "1",
                column<std::int64_t>(campaign, [](const CampaignCell& cell) { return cell.seq; }));
  text("path", [](const CampaignCell& cell) { return cell.path; });
  return table;
}

}  // namespace poros
