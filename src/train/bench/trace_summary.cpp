// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "kernel_trace.hpp"

namespace poros::bench {
namespace {

constexpr std::size_t kKernelsShown = 20;

struct NamePart {
  const char* part;
  const char* kind;
};
/// The first that a name holds decides. Names are mangled, and those of our kernels hold the name
/// of their source file.
constexpr std::array kParts = {NamePart{"flash", "attention"},
                               NamePart{"softmax", "attention"},
                               NamePart{"nvjet", "matrix products"},
                               NamePart{"gemm", "matrix products"},
                               NamePart{"cutlass", "matrix products"},
                               NamePart{"xmma", "matrix products"},
                               NamePart{"dequantise", "dequantise"},
                               NamePart{"low_rank", "LoRA products"},
                               NamePart{"cross_entropy", "loss"},
                               NamePart{"rms_norm", "norms"},
                               NamePart{"rotary", "rotary"},
                               NamePart{"gated", "activation"},
                               NamePart{"adamw", "optimizer"},
                               NamePart{"elementwise", "elementwise"},
                               NamePart{"moe", "experts"}};

using Interval = std::pair<std::uint64_t, std::uint64_t>;

/// Length of the union.
std::uint64_t covered(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::uint64_t total = 0, reached = 0;
  for (const auto& [begin, end] : intervals) {
    const std::uint64_t from = std::max(begin, reached);
    if (end > from) {
      total += end - from;
      reached = end;
    }
  }
  return total;
}

std::vector<std::pair<std::string, TraceSummary::Kind>> by_time(
    const std::map<std::string, TraceSummary::Kind>& kinds) {
  std::vector<std::pair<std::string, TraceSummary::Kind>> list(kinds.begin(), kinds.end());
  std::sort(list.begin(), list.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  return list;
}

}  // namespace

std::string kind_of_kernel(const std::string& name) {
  for (const NamePart& known : kParts) {
    if (name.find(known.part) != std::string::npos) return known.kind;
  }
  return "other";
}

TraceSummary summarise(const std::vector<Activity>& activities) {
  TraceSummary trace;
  std::vector<Interval> kernels, all;
  for (const Activity& activity : activities) {
    const double seconds = 1e-9 * static_cast<double>(activity.end_ns - activity.begin_ns);
    all.emplace_back(activity.begin_ns, activity.end_ns);
    if (activity.copy) {
      if (activity.name == "copy host to device") {
        trace.copy_s += seconds;
        trace.copied_gb += 1e-9 * static_cast<double>(activity.bytes);
      }
    } else {
      kernels.emplace_back(activity.begin_ns, activity.end_ns);
    }
    const std::string kind = activity.copy ? activity.name : kind_of_kernel(activity.name);
    for (TraceSummary::Kind* sum : {&trace.kinds[kind], &trace.kernels[activity.name]}) {
      sum->seconds += seconds;
      ++sum->calls;
    }
  }
  if (all.empty()) return trace;
  std::uint64_t first = all.front().first, last = 0;
  for (const auto& [begin, end] : all) {
    first = std::min(first, begin);
    last = std::max(last, end);
  }
  const std::uint64_t busy = covered(std::move(all)), computing = covered(std::move(kernels));
  trace.span_s = 1e-9 * static_cast<double>(last - first);
  trace.compute_s = 1e-9 * static_cast<double>(computing);
  trace.exposed_copy_s = 1e-9 * static_cast<double>(busy - computing);
  trace.idle_s = trace.span_s - 1e-9 * static_cast<double>(busy);
  return trace;
}

std::string text_of(const TraceSummary& trace, std::int64_t steps) {
  const auto n = static_cast<double>(steps);
  const auto percent = [&](double seconds) {
    return trace.span_s > 0 ? 100 * seconds / trace.span_s : 0;
  };
  std::string text = fmt::format(
      "a step {:.4f} s: kernels run in {:.1f} %, only copies in {:.1f} %, nothing in {:.1f} %\n"
      "host to device {:.3f} GB a step at {:.1f} GB/s while it copies\n",
      trace.span_s / n, percent(trace.compute_s), percent(trace.exposed_copy_s),
      percent(trace.idle_s), trace.copied_gb / n,
      trace.copy_s > 0 ? trace.copied_gb / trace.copy_s : 0);
  for (const auto& [name, kind] : by_time(trace.kinds)) {
    text += fmt::format("  {:22} {:9.6f} s  {:5.1f} %  {:7.1f} calls\n", name, kind.seconds / n,
                        percent(kind.seconds), static_cast<double>(kind.calls) / n);
  }
  text += fmt::format("the {} longest by name:\n", kKernelsShown);
  std::size_t shown = 0;
  for (const auto& [name, kind] : by_time(trace.kernels)) {
    if (shown++ == kKernelsShown) break;
    text += fmt::format("  {:9.6f} s  {:7.1f} calls  {}\n", kind.seconds / n,
                        static_cast<double>(kind.calls) / n, name.substr(0, 110));
  }
  return text;
}

Json json_of(const TraceSummary& trace, std::int64_t steps) {
  const auto n = static_cast<double>(steps);
  const auto list = [&](const std::map<std::string, TraceSummary::Kind>& kinds) {
    Json made = Json::array();
    for (const auto& [name, kind] : by_time(kinds)) {
      made.push_back({{"name", name},
                      {"seconds", kind.seconds / n},
                      {"calls", static_cast<double>(kind.calls) / n}});
    }
    return made;
  };
  return {{"step_s", trace.span_s / n},
          {"compute_s", trace.compute_s / n},
          {"exposed_copy_s", trace.exposed_copy_s / n},
          {"idle_s", trace.idle_s / n},
          {"copy_s", trace.copy_s / n},
          {"copied_gb", trace.copied_gb / n},
          {"kinds", list(trace.kinds)},
          {"kernels", list(trace.kernels)}};
}

}  // namespace poros::bench
