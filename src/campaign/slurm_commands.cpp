// SPDX-License-Identifier: Apache-2.0
#include "campaign/slurm_commands.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

constexpr double kPatience_s = 60;  // slurmctld answers in seconds, or is in trouble

/// The last lines of what a command said, on one line.
std::string last_words(const ProcessResult& result) {
  std::string text = result.err.empty() ? result.out : result.err;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  constexpr std::size_t kMost = 600;  // [bytes]
  if (text.size() > kMost) text = text.substr(text.size() - kMost);
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "; ";
    } else {
      line += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return line.empty() ? "it said nothing" : line;
}

}  // namespace

ProcessResult slurm_command(const std::vector<std::string>& argv) {
  ProcessResult result;
  try {
    result = run_process(argv, kPatience_s);
  } catch (const Error& error) {
    fail(Fault::environment, "{} can't be started ({}); is this a login node of the cluster?",
         argv[0], error.what());
  }
  if (result.timed_out) {
    fail(Fault::environment, "{} did not answer within {:g} s; try again when Slurm answers",
         argv[0], kPatience_s);
  }
  if (result.exit_code != 0) {
    fail(Fault::environment, "{} failed (exit code {}): {}", argv[0], result.exit_code,
         last_words(result));
  }
  return result;
}

std::optional<ProcessResult> try_slurm_command(const std::vector<std::string>& argv) {
  try {
    return run_process(argv, kPatience_s);
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool is_job_id(const std::string& text) {
  return !text.empty() && text.size() < 16 &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace poros
