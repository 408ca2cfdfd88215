// SPDX-License-Identifier: Apache-2.0
#include "campaign/slurm_submit.hpp"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <system_error>

#include <sys/stat.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "campaign/open_campaign.hpp"
#include "campaign/selection.hpp"
#include "campaign/signals.hpp"
#include "campaign/slurm_commands.hpp"
#include "campaign/slurm_queue.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

std::string printed_jobs(const Submission& submission) {
  std::string text;
  const auto add = [&](const SlurmJob& job) {
    text += fmt::format("# === {} ({} x {} GPUs{}, at most {})\n{}\n", job.file, job.nodes,
                        job.ranks_per_node, job.tasks > 0 ? ", an array" : "",
                        slurm_time(job.time_s), job.script);
  };
  for (const SlurmJob& job : submission.work) add(job);
  text += fmt::format("# === {}\n{}", submission.gather.file, submission.gather.script);
  return text;
}

Json submission_json(const Submission& submission) {
  Json jobs = Json::array();
  const auto add = [&](const SlurmJob& job) {
    jobs.push_back({{"role", job.role},
                    {"label", job.label},
                    {"name", job.name},
                    {"gpu_types", job.gpu_types},
                    {"nodes", job.nodes},
                    {"ranks_per_node", job.ranks_per_node},
                    {"array_tasks", job.tasks},
                    {"time_s", job.time_s},
                    {"cells", job.cells},
                    {"script_file", job.file},
                    {"script", job.script}});
  };
  for (const SlurmJob& job : submission.work) add(job);
  add(submission.gather);
  return {{"campaign", submission.campaign.string()},
          {"name_prefix", submission.name_prefix},
          {"jobs", jobs}};
}

void write_scripts(const Submission& submission) {
  fs::create_directories(submission.campaign / "slurm" / "logs");
  std::vector<const SlurmJob*> jobs{&submission.gather};
  for (const SlurmJob& job : submission.work) jobs.push_back(&job);
  for (const SlurmJob* job : jobs) {
    const fs::path path = submission.campaign / job->file;
    write_file_durably(path, job->script);
    fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec, fs::perm_options::add);
  }
  write_file_durably(submission.campaign / "slurm" / "submission.json",
                     dump_json({{"name_prefix", submission.name_prefix}}, 1) + "\n");
}

/// Jobs that were submitted and are held; cancels them unless they are let go.
class HeldJobs {
 public:
  explicit HeldJobs(fs::path campaign) : campaign_(std::move(campaign)) {}
  HeldJobs(const HeldJobs&) = delete;
  HeldJobs& operator=(const HeldJobs&) = delete;
  ~HeldJobs() {
    if (ids_.empty()) return;
    std::vector<std::string> command{"scancel"};
    command.insert(command.end(), ids_.begin(), ids_.end());
    const auto result = try_slurm_command(command);
    if (!result || result->exit_code != 0) {
      fmt::print(stderr, "poros: held jobs are left behind: {}; end them with scancel\n",
                 fmt::join(ids_, " "));
      return;
    }
    std::error_code error;
    for (const std::string& id : ids_) fs::remove(campaign_ / "slurm/jobs" / (id + ".json"), error);
  }

  void submit(const SlurmJob& job, const std::vector<std::string>& options) {
    std::vector<std::string> command{"sbatch", "--parsable", "--hold"};
    command.insert(command.end(), options.begin(), options.end());
    command.push_back((campaign_ / job.file).string());
    const ProcessResult result = slurm_command(command);
    // "<id>" or "<id>;<cluster>", perhaps after what a site's plugin prints.
    std::string line = result.out;
    while (!line.empty() && line.back() == '\n') line.pop_back();
    line = line.substr(line.rfind('\n') + 1);
    const std::string id = line.substr(0, line.find(';'));
    if (!is_job_id(id)) {
      fail(Fault::environment, "sbatch printed no job id but \"{}\"; look with squeue --me", line);
    }
    ids_.push_back(id);
    record_job(campaign_, {id, job.role, job.label, job.file, utc_now(), ""});
  }

  void release() {
    std::vector<std::string> command{"scontrol", "release"};
    command.insert(command.end(), ids_.begin(), ids_.end());
    slurm_command(command);
    ids_.clear();
  }

  [[nodiscard]] const std::vector<std::string>& ids() const { return ids_; }

 private:
  fs::path campaign_;
  std::vector<std::string> ids_;
};

/// Waits until none of the campaign's jobs is queued. A squeue that fails is asked again.
/// @returns false when a signal asked to stop waiting
bool wait_for_jobs(const Submission& submission) {
  const StopSignals signals;
  constexpr int kMostFailures = 30;
  for (int failures = 0;;) {
    try {
      if (campaign_jobs(queued_jobs(), submission.campaign, submission.name_prefix).empty()) {
        return true;
      }
      failures = 0;
    } catch (const Error& error) {
      if (++failures >= kMostFailures) throw;
      fmt::print(stderr, "poros: {}; asking again\n", error.what());
    }
    for (int tenth = 0; tenth < 50; ++tenth) {
      if (signals.requested()) return false;
      const timespec pause{0, 100'000'000};
      ::nanosleep(&pause, nullptr);
    }
  }
}

/// What the jobs of this submission came to: the gathering job's exit code where it failed, else
/// the highest that a job ended with in the end; 1 for one that left no word.
int final_code(const Submission& submission, const std::vector<std::string>& ids) {
  const Json status = slurm_status(submission.campaign);
  if (!status.is_object()) return kFailed;
  int code = kDone;
  for (const Json& job : status.at("jobs")) {
    const std::string id = job.at("id").get<std::string>();
    const bool of_old = std::stoll(id) < std::stoll(ids.front());
    if (of_old || job.at("continued").get<bool>()) continue;
    if (job.at("exit_code").is_number_integer()) {
      code = std::max(code, job.at("exit_code").get<int>());
      continue;
    }
    fmt::print(stderr, "poros: job {} left no word; its log is in {}\n", id,
               (submission.campaign / "slurm/logs").string());
    code = std::max<int>(code, kFailed);
  }
  return code;
}

int wait_and_judge(const SubmitOptions& options, const Submission& submission,
                   const std::vector<std::string>& ids) {
  if (!options.wait) return kDone;
  if (!wait_for_jobs(submission)) return kStoppedEarly;
  const int code = final_code(submission, ids);
  if (!options.json) fmt::print("{}", slurm_status_text(slurm_status(submission.campaign)));
  return code;
}

/// The plan with the cells that are asked for alone.
CampaignPlan selected_cells(const CampaignPlan& plan, const std::vector<std::string>& only) {
  CampaignPlan selected = plan;
  const Selection selection(plan, {only, {}});
  selected.cells.clear();
  selected.groups.clear();  // they name cells by number; a submission counts them by key
  for (std::size_t i = 0; i < plan.cells.size(); ++i) {
    if (selection.has_cell(i)) selected.cells.push_back(plan.cells[i]);
  }
  return selected;
}

}  // namespace

int submit_campaign(const SubmitOptions& options) {
  const CampaignPlan plan = make_plan(read_spec(options.spec));
  const ClusterProfile profile = read_cluster_profile(find_cluster_profile(options.cluster));
  const Submission submission =
      plan_submission(options, selected_cells(plan, options.only), profile);
  if (options.dry_run) {
    fmt::print("{}", options.json ? dump_json(submission_json(submission), 2) + "\n"
                                  : printed_jobs(submission));
    return kDone;
  }
  check_folder(CampaignFolder(submission.campaign), plan, false);
  const auto queued = campaign_jobs(queued_jobs(), submission.campaign, submission.name_prefix);
  if (!queued.empty()) {
    if (!options.json) {
      fmt::print("already submitted, nothing new was queued; `poros bench cancel {}` ends it\n",
                 submission.campaign.string());
      fmt::print("{}", slurm_status_text(slurm_status(submission.campaign)));
    } else {
      fmt::print("{}\n", dump_json({{"submitted", Json::array()},
                                    {"slurm", slurm_status(submission.campaign)}}));
    }
    std::vector<std::string> ids;
    for (const QueuedJob& job : queued) ids.push_back(job.job_id());
    std::ranges::sort(ids, {}, [](const std::string& id) { return std::stoll(id); });
    return wait_and_judge(options, submission, ids);
  }
  write_scripts(submission);
  HeldJobs jobs(submission.campaign);
  for (const SlurmJob& job : submission.work) jobs.submit(job, {});
  std::vector<std::string> ids = jobs.ids();
  jobs.submit(submission.gather, {fmt::format("--dependency=afterany:{}", fmt::join(ids, ":"))});
  ids = jobs.ids();
  jobs.release();
  if (options.json) {
    fmt::print("{}\n", dump_json({{"submitted", ids}, {"campaign", submission.campaign.string()}}));
  } else {
    for (std::size_t i = 0; i < submission.work.size(); ++i) {
      const SlurmJob& job = submission.work[i];
      fmt::print("job {}: {} cells on {} x {} {}, at most {}\n", ids[i], job.cells, job.nodes,
                 job.ranks_per_node, fmt::join(job.gpu_types, "+"), slurm_time(job.time_s));
    }
    fmt::print("job {}: gathers and reports after them\n", ids.back());
    fmt::print("watch it with: poros bench status {}\n", submission.campaign.string());
  }
  std::fflush(stdout);
  return wait_and_judge(options, submission, ids);
}

int cancel_campaign(const fs::path& campaign, bool json) {
  if (recorded_jobs(campaign).empty()) {
    fail(Fault::input, "{}: no batch jobs were submitted for it", campaign.string());
  }
  const std::vector<std::string> ids = cancel_jobs(campaign);
  if (json) {
    fmt::print("{}\n", dump_json({{"cancelled", ids}}));
  } else if (ids.empty()) {
    fmt::print("{}: no job of it is queued or running\n", campaign.string());
  } else {
    fmt::print("cancelled: {}; finished passes are kept, submitting again goes on\n",
               fmt::join(ids, " "));
  }
  return kDone;
}

}  // namespace poros
