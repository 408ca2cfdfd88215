// SPDX-License-Identifier: Apache-2.0
#include "bench_table.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace poros::bench {
namespace {

std::string phases_of(const Result& result) {
  std::string text;
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    text += fmt::format("{}{} {:.4f}", phase == 0 ? "" : ", ", name_of(static_cast<Phase>(phase)),
                        result.phase_s[phase]);
  }
  return text;
}

std::string ratio(double value, double to, const char* format) {
  return to > 0 ? fmt::format(fmt::runtime(format), value / to) : "--";
}

}  // namespace

double Row::roofline_s() const {
  if (ceilings.matrix_tflops <= 0) return 0;
  const double link =
      ceilings.host_link_gb_per_s > 0 ? result.copied_gb / ceilings.host_link_gb_per_s : 0;
  return std::max(operations * 1e-12 / ceilings.matrix_tflops, link);
}

std::string line_of(const Row& row, const Options& options) {
  const Result& r = row.result;
  std::string text = fmt::format(
      "{} {:9} {:.4f} s/step ({:.4f}..{:.4f}, queued in {:.4f})  {:.0f} tokens/s  {:.0f} TFLOP/s, "
      "{} % of the roofline\n"
      "          planned {:.0f} MiB, allocator peak {:.0f} MiB, reserved {:.0f} MiB, pinned {:.0f} "
      "MiB\n"
      "          base opened in {:.1f} s, loaded in {:.1f} s, first step {:.1f} s\n"
      "          copied {:.2f} GB a step, stalled {:.4f} s; {} device allocations in the timed "
      "steps; loss {:.5f}, norm {:.5f}, bits {}\n",
      r.model, r.arm, r.seconds, r.least, r.most, r.queue_s,
      static_cast<double>(options.tokens()) / r.seconds, row.tflops(),
      ratio(100 * row.roofline_s(), row.roofline_s() > 0 ? r.seconds : 0, "{:.1f}"), r.planned_mb,
      r.peak_mb, r.reserved_mb, r.pinned_mb, r.open_s, r.load_s, r.first_step_s, r.copied_gb,
      r.stall_s, r.device_allocations, r.loss, r.norm, r.bits);
  if (options.phases) text += "          phases: " + phases_of(r) + " s a step\n";
  return text;
}

std::string markdown_of(const std::vector<Row>& rows, const CudaFacts& facts,
                        const Options& options) {
  std::string text = fmt::format(
      "{}, driver {}, cublasLt {}; {} base, {} x {} rows of {} tokens, rank {}, dropout {}, "
      "block_size {}, {} steps (median)\n\n"
      "| model | arm | s/step | / resident | TFLOP/s | % of roofline | planned GB | peak GB | "
      "peak / planned | pinned GB | stall s | start s | same bits |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
      facts.name, facts.driver_version, facts.cublaslt_version, options.precision,
      options.accumulation, options.batch, options.seq_len, options.rank, options.dropout,
      options.block_size, options.steps);
  for (const Row& row : rows) {
    const Result& r = row.result;
    const auto gb = [](double mb) { return mb * kMiB * 1e-9; };
    text += fmt::format(
        "| {} | {} | {:.4f} | {} | {:.0f} | {} | {:.2f} | {:.2f} | {} | {:.2f} | {:.4f} | {:.1f} | "
        "{} |\n",
        r.model, r.arm, r.seconds, ratio(r.seconds, row.resident_s, "{:.3f}"), row.tflops(),
        ratio(100 * row.roofline_s(), row.roofline_s() > 0 ? r.seconds : 0, "{:.1f}"),
        gb(r.planned_mb), gb(r.peak_mb), ratio(r.peak_mb, r.planned_mb, "{:.3f}"), gb(r.pinned_mb),
        r.stall_s, r.start_s(), row.same_bits ? "yes" : "NO");
  }
  for (std::size_t at = 0; at < rows.size(); ++at) {
    const Row& row = rows[at];
    if (row.ceilings.matrix_tflops <= 0) continue;
    if (at > 0 && rows[at - 1].result.model == row.result.model) continue;
    text += fmt::format(
        "\n{}: products of its layers {:.0f} TFLOP/s over {} s, device copy {:.0f} GB/s, host link "
        "{:.1f} GB/s\n",
        row.result.model, row.ceilings.matrix_tflops, options.ceiling_s,
        row.ceilings.device_gb_per_s, row.ceilings.host_link_gb_per_s);
  }
  if (!options.phases) return text;
  text += "\nSeconds a step by phase:\n";
  for (const Row& row : rows) {
    text += fmt::format("- {} {}: {}\n", row.result.model, row.result.arm, phases_of(row.result));
  }
  return text;
}

Json json_of(const std::vector<Row>& rows, const CudaFacts& facts, const Options& options) {
  Json list = Json::array();
  for (const Row& row : rows) {
    const Result& r = row.result;
    Json one = {{"model", r.model},
                {"arm", r.arm},
                {"step_s", r.seconds},
                {"step_least_s", r.least},
                {"step_most_s", r.most},
                {"queue_s", r.queue_s},
                {"tflops", row.tflops()},
                {"operations", row.operations},
                {"planned_mb", r.planned_mb},
                {"allocated_peak_mb", r.peak_mb},
                {"reserved_peak_mb", r.reserved_mb},
                {"pinned_mb", r.pinned_mb},
                {"open_s", r.open_s},
                {"load_s", r.load_s},
                {"first_step_s", r.first_step_s},
                {"copied_gb", r.copied_gb},
                {"stall_s", r.stall_s},
                {"device_allocations", r.device_allocations},
                {"loss", r.loss},
                {"norm", r.norm},
                {"bits", r.bits},
                {"same_bits", row.same_bits}};
    if (row.resident_s > 0) one["to_resident"] = r.seconds / row.resident_s;
    if (row.roofline_s() > 0) {
      one["roofline_s"] = row.roofline_s();
      one["ceilings"] = {{"matrix_tflops", row.ceilings.matrix_tflops},
                         {"device_gb_per_s", row.ceilings.device_gb_per_s},
                         {"host_link_gb_per_s", row.ceilings.host_link_gb_per_s}};
    }
    if (options.phases) {
      for (std::size_t phase = 0; phase < kPhases; ++phase) {
        one["phases_s"][name_of(static_cast<Phase>(phase))] = r.phase_s[phase];
      }
    }
    if (options.profile) one["profile"] = json_of(r.trace, options.steps);
    list.push_back(std::move(one));
  }
  return {{"gpu", facts.name},
          {"gpu_uuid", facts.uuid},
          {"driver_version", facts.driver_version},
          {"runtime_version", facts.runtime_version},
          {"cublaslt_version", facts.cublaslt_version},
          {"precision", options.precision},
          {"seq_len", options.seq_len},
          {"batch_size", options.batch},
          {"gradient_accumulation_steps", options.accumulation},
          {"accumulation", options.accumulate},
          {"rank", options.rank},
          {"dropout", options.dropout},
          {"block_size", options.block_size},
          {"slots", options.slots},
          {"prefetch", !options.no_prefetch},
          {"layer_inputs", options.layer_inputs},
          {"steps", options.steps},
          {"results", list}};
}

}  // namespace poros::bench
