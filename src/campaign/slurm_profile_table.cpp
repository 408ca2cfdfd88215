// SPDX-License-Identifier: Apache-2.0
#include "campaign/slurm_profile_table.hpp"

namespace poros {
namespace {

constexpr double kDay_s = 86400;

}  // namespace

const std::vector<ProfileField<ClusterProfile>>& profile_fields() {
  using S = ClusterProfile;
  using F = SlurmForm;
  static const std::vector<ProfileField<S>> table = {
      {"cluster", &S::cluster, F::word, {.required = true}, "Name of the cluster."},
      {"launcher",
       &S::launcher,
       F::word,
       {.choices = {"srun", "mpirun"}},
       "What starts the ranks in a job."},
      {"mpi", &S::mpi, F::word, {}, "srun --mpi=; `srun --mpi=list` says what there is."},
      {"account", &S::account, F::word, {}, "sbatch --account."},
      {"qos", &S::qos, F::word, {}, "sbatch --qos."},
      {"reservation", &S::reservation, F::word, {}, "sbatch --reservation."},
      {"warn_s",
       &S::warn_s,
       F::word,
       {.min = 10, .max = 3600, .duration = true},
       "How long before its time limit a job is warned: longer than a step and a checkpoint."},
      {"requeue",
       &S::requeue,
       F::word,
       {},
       "Whether jobs may be requeued; where not, a job submits its own continuation."},
      {"max_restarts",
       &S::max_restarts,
       F::word,
       {.min = 0, .max = 1000},
       "Restarts of a job after which it is left stopped."},
      {"exclude_nodes", &S::exclude_nodes, F::word, {}, "Nodes to keep off."},
      {"modules", &S::modules, F::word, {}, "`module load`, in this order."},
      {"prologue", &S::prologue, F::shell_line, {}, "Shell lines before the ranks start."},
      {"program",
       &S::program,
       F::path,
       {},
       "poros on the nodes (in the container, where there is one); default: the one that submits."},
      {"scratch_dir", &S::scratch_dir, F::path, {}, "Where quantised bases are kept; %u: user."},
      {"results_dir",
       &S::results_dir,
       F::path,
       {},
       "Campaign folders of relative name go below it; %u: user."},
      {"mixed_partition",
       &S::mixed_partition,
       F::word,
       {},
       "Partition that holds nodes of several types, for --single-job."},
      {"gather_partition",
       &S::gather_partition,
       F::word,
       {},
       "Partition of the job that gathers and reports; it needs no GPU."},
      {"gather_time",
       &S::gather_time_s,
       F::word,
       {.min = 60, .max = kDay_s, .duration = true},
       "Time limit of that job."},
  };
  return table;
}

const std::vector<ProfileField<ClusterGpu>>& gpu_fields() {
  using S = ClusterGpu;
  using F = SlurmForm;
  static const std::vector<ProfileField<S>> table = {
      {"partition", &S::partition, F::word, {}, "sbatch --partition."},
      {"constraint",
       &S::constraint,
       F::constraint,
       {},
       "sbatch --constraint; --single-job needs a single node feature here."},
      {"gres", &S::gres, F::word, {}, "The type's name in gres.conf; none: GPUs have no types."},
      {"account", &S::account, F::word, {}, "Instead of the cluster's."},
      {"qos", &S::qos, F::word, {}, "Instead of the cluster's."},
      {"layout",
       &S::layout,
       F::word,
       {.choices = {"world", "array"}},
       "world: one job with one MPI world; array: a task a node, each on its own."},
      {"max_nodes", &S::max_nodes, F::word, {.min = 1, .max = 10000}, "Nodes to ask for at most."},
      {"gpus_per_node", &S::gpus_per_node, F::word, {.min = 1, .max = 64}, "GPUs of a node."},
      {"cpus_per_gpu", &S::cpus_per_gpu, F::word, {.min = 1, .max = 1024}, "Cores of a rank."},
      {"mem_per_gpu", &S::mem_per_gpu, F::memory, {}, "Host memory of a rank, 64G."},
      {"time",
       &S::time_s,
       F::word,
       {.min = 60, .max = 365 * kDay_s, .duration = true},
       "Time limit where the plan predicts none."},
      {"max_time",
       &S::max_time_s,
       F::word,
       {.min = 60, .max = 365 * kDay_s, .duration = true},
       "The site's longest time limit."},
      {"exclude_nodes", &S::exclude_nodes, F::word, {}, "Besides the cluster's."},
  };
  return table;
}

const std::vector<ProfileField<ClusterContainer>>& container_fields() {
  using S = ClusterContainer;
  using F = SlurmForm;
  static const std::vector<ProfileField<S>> table = {
      {"image", &S::image, F::path, {.required = true}, "The image file."},
      {"runtime",
       &S::runtime,
       F::word,
       {.choices = {"apptainer", "singularity"}},
       "The program that opens it."},
      {"options", &S::options, F::word, {}, "Options of `exec`."},
      {"bind", &S::bind, F::path, {}, "Folders that the container sees, from[:to[:ro]]."},
  };
  return table;
}

}  // namespace poros
