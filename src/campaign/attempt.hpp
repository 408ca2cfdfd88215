// SPDX-License-Identifier: Apache-2.0
// One try at a pass: request, process, and what its end means.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "campaign/arms.hpp"
#include "campaign/folder.hpp"
#include "campaign/inputs.hpp"
#include "campaign/plan.hpp"
#include "cell/cell_process.hpp"
#include "cell/request.hpp"
#include "receipts/pass_record.hpp"
#include "spec/gpu_name.hpp"

namespace poros {

struct AttemptJob {
  const PlannedCell& cell;
  const GroupInputs& inputs;
  const ArmProgram& arm;
  std::string purpose = "timed";  // timed | parity
  std::int64_t pass = 0, attempt = 1;
  std::int64_t threads = 1;
  std::optional<CellRequest::Dump> dump;
  std::optional<std::int64_t> max_steps;
};

/// What all attempts of a run have in common.
struct AttemptContext {
  const CampaignFolder& folder;
  const Redactor& redactor;
  const OomCounter& oom;
  std::map<std::string, std::string> environment;  // of the driver
  std::string campaign_id;
  std::filesystem::path supervisor_program;
  TimeoutSpec timeouts;
  bool any_gpu = false;         // take another GPU than the cell's spec names
  std::string work_name = "0";  // one a rank: folder in live/ for request and result
  bool shared_host = false;     // other ranks measure on this host too
  Json driver_facts;            // host, argv, environment: goes into every record
};

/// Runs the attempt. The record is complete (driver facts included) and redacted, not yet written.
/// @throws Error(Fault::io) when request or log can't be written: nothing was started
[[nodiscard]] PassRecord run_attempt(const AttemptContext& context, const AttemptJob& job,
                                     const CellHooks& hooks);

/// What the end of a cell's process and its result file, if any, mean: status, reason, message.
/// A result counts when the process ended with 0 (or kCellSkipped and status skipped); a result
/// with another exit code, and an exit code of 0 without a result, are failures.
void judge_outcome(const CellOutcome& outcome, bool has_result, const TimeoutSpec& timeouts,
                   PassRecord& record);

}  // namespace poros
