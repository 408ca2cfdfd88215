// SPDX-License-Identifier: Apache-2.0
// Which jobs a campaign needs: nodes and time from its plan, names from the cluster's profile.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.hpp"
#include "campaign/predict.hpp"
#include "campaign/slurm_queue.hpp"
#include "campaign/slurm_submit.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr double kStartUp_s = 600;    // start of ranks, inputs of the first groups
constexpr double kTimeReserve = 1.5;  // predictions are estimates

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

struct TypedWork {
  const ClusterGpu* gpu;
  TypeWork work;
};

/// The work of each of the cluster's types, names of one type joined.
std::vector<TypedWork> assign(const CampaignPlan& plan, const ClusterProfile& profile) {
  std::vector<TypedWork> assigned;
  for (const TypeWork& work : work_by_type(plan)) {
    const bool any = work.gpu_name == "unknown" && profile.gpus.size() == 1;
    const ClusterGpu* gpu = any ? &profile.gpus.front() : find_gpu(profile, work.gpu_name);
    if (gpu == nullptr) {
      std::vector<std::string> types;
      for (const ClusterGpu& known : profile.gpus) types.push_back(known.type);
      fail(Fault::input,
           "{}: {} cells are for the GPU \"{}\", which the profile {} does not have; it has: {}; "
           "name one in hardware.gpu_name or add the type to the profile",
           plan.spec.file, work.cells, printable(work.gpu_name), profile.file,
           fmt::join(types, ", "));
    }
    const auto known = std::ranges::find(assigned, gpu, &TypedWork::gpu);
    if (known == assigned.end()) {
      assigned.push_back({gpu, work});
      continue;
    }
    known->work.cells += work.cells;
    known->work.groups += work.groups;
    if (known->work.hours && work.hours) {
      *known->work.hours += *work.hours;
    } else {
      known->work.hours.reset();
    }
  }
  return assigned;
}

/// A comparison group stays on one GPU, so more GPUs than groups are of no use.
std::int64_t nodes_for(const ClusterGpu& gpu, std::size_t groups, std::int64_t gpus_per_node) {
  const auto wanted = (static_cast<std::int64_t>(groups) + gpus_per_node - 1) / gpus_per_node;
  return std::clamp<std::int64_t>(wanted, 1, gpu.max_nodes);
}

double time_for(const ClusterGpu& gpu, const TypeWork& work, std::int64_t ranks) {
  if (!work.hours) return gpu.time_s;
  // The longest first leaves at most one group's time of imbalance; the reserve covers it.
  const double busy_s = *work.hours * 3600 / static_cast<double>(ranks);
  return std::min(gpu.max_time_s, kStartUp_s + kTimeReserve * busy_s);
}

fs::path campaign_folder(const SubmitOptions& options, const CampaignPlan& plan,
                         const ClusterProfile& profile) {
  const fs::path named =
      options.output_dir ? *options.output_dir : fs::path(plan.spec.reporting.output_dir);
  if (named.is_absolute() || profile.results_dir.empty()) {
    return fs::absolute(named).lexically_normal();
  }
  return (fs::path(profile.results_dir) / named).lexically_normal();
}

void refuse_mixing(const ClusterProfile& profile, const std::vector<TypedWork>& types) {
  std::set<std::string> features;
  for (const TypedWork& type : types) {
    const std::string& feature = type.gpu->constraint;
    const bool single = !feature.empty() && feature.find_first_of("&|*()[]!") == feature.npos;
    if (!single || !features.insert(feature).second) {
      fail(Fault::input,
           "{}: gpus.{}.constraint is \"{}\"; --single-job needs one node feature there for each "
           "type, each another",
           profile.file, type.gpu->type, printable(feature));
    }
  }
}

}  // namespace

std::vector<TypeWork> work_by_type(const CampaignPlan& plan) {
  std::vector<TypeWork> types;
  std::vector<std::set<std::string>> groups;
  for (const PlannedCell& cell : plan.cells) {
    const std::string& name = cell.spec.hardware.gpu_name;
    const auto known = std::ranges::find(types, name, &TypeWork::gpu_name);
    const auto at = static_cast<std::size_t>(known - types.begin());
    if (known == types.end()) {
      types.push_back({name, 0, 0, {}});
      groups.emplace_back();
    }
    ++types[at].cells;
    groups[at].insert(cell.group);
  }
  for (std::size_t i = 0; i < types.size(); ++i) types[i].groups = groups[i].size();
  std::vector<CellSpec> specs;
  for (const PlannedCell& cell : plan.cells) specs.push_back(cell.spec);
  for (TypeWork& type : types)
    type.hours = predicted_hours(specs, plan.spec.training.n_passes, type.gpu_name);
  return types;
}

Submission plan_submission(const SubmitOptions& options, const CampaignPlan& plan,
                           const ClusterProfile& profile) {
  Submission submission;
  submission.campaign = campaign_folder(options, plan, profile);
  submission.name_prefix = job_name_prefix(submission.campaign, plan.spec.spec_id);
  const std::vector<TypedWork> types = assign(plan, profile);
  SlurmScriptContext context{profile,
                             fs::absolute(options.spec).lexically_normal(),
                             submission.campaign,
                             options.program,
                             submission.name_prefix,
                             true,
                             options.matrix_arguments};
  const auto begin_job = [&](const std::string& role, const std::string& label) {
    SlurmJob job;
    job.role = role;
    job.label = label;
    job.name = submission.name_prefix + "-" + label;
    job.file = "slurm/" + label + ".sh";
    return job;
  };
  if (options.single_job) {
    refuse_mixing(profile, types);
    SlurmJob job = begin_job("work", "mixed");
    job.nodes = 0;
    std::vector<const ClusterGpu*> gpus;
    std::vector<std::int64_t> nodes_of;
    job.ranks_per_node = types.front().gpu->gpus_per_node;
    for (const TypedWork& type : types) {
      job.ranks_per_node = std::min(job.ranks_per_node, type.gpu->gpus_per_node);
    }
    for (const TypedWork& type : types) {
      gpus.push_back(type.gpu);
      nodes_of.push_back(nodes_for(*type.gpu, type.work.groups, job.ranks_per_node));
      job.nodes += nodes_of.back();
      job.gpu_types.push_back(type.gpu->type);
      job.cells += type.work.cells;
      job.groups += type.work.groups;
      job.time_s = std::max(job.time_s,
                            time_for(*type.gpu, type.work, nodes_of.back() * job.ranks_per_node));
    }
    job.script = mixed_script(context, job, gpus, nodes_of);
    submission.work.push_back(std::move(job));
  } else {
    context.alone = types.size() == 1 && types.front().gpu->layout == "world";
    for (const TypedWork& type : types) {
      SlurmJob job = begin_job("work", lower(type.gpu->type));
      job.gpu_types = {type.gpu->type};
      job.cells = type.work.cells;
      job.groups = type.work.groups;
      job.nodes = nodes_for(*type.gpu, job.groups, type.gpu->gpus_per_node);
      job.ranks_per_node = std::min(type.gpu->gpus_per_node, static_cast<std::int64_t>(job.groups));
      job.tasks = type.gpu->layout == "array" ? job.nodes : 0;
      job.time_s = time_for(*type.gpu, type.work, job.nodes * job.ranks_per_node);
      job.script = work_script(context, job, *type.gpu);
      submission.work.push_back(std::move(job));
    }
  }
  for (const SlurmJob& job : submission.work) {
    if (job.time_s > profile.warn_s) continue;
    fail(Fault::input, "{}: the time limit of {} ({:g} s) must be longer than warn_s ({:g} s)",
         profile.file, job.label, job.time_s, profile.warn_s);
  }
  submission.gather = begin_job("gather", "gather");
  submission.gather.time_s = profile.gather_time_s;
  submission.gather.script = gather_script(context, submission.gather);
  return submission;
}

}  // namespace poros
