// SPDX-License-Identifier: Apache-2.0
// Cluster profiles (slurm/clusters/*.yaml): what a site calls its partitions and GPUs, and what it
// allows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace poros {

/// One GPU type of a cluster.
struct ClusterGpu {
  std::string type;              // as matrices name it: part of the GPU's name, "A100"
  std::string partition;         // empty: the cluster's default partition
  std::string constraint;        // node features, also "a&b" or "[a*1&b*1]"
  std::string gres;              // the type's name in gres.conf; empty: GPUs are not typed there
  std::string account, qos;      // empty: those of the cluster
  std::string layout = "world";  // world: one job, one MPI world; array: a task a node
  std::int64_t max_nodes = 1;
  std::int64_t gpus_per_node = 1;
  std::int64_t cpus_per_gpu = 4;
  std::string mem_per_gpu;   // "64G"; empty: the site's default
  double time_s = 4 * 3600;  // asked for where the plan predicts no time
  double max_time_s = 24 * 3600;
  std::vector<std::string> exclude_nodes;  // besides those of the cluster
};

struct ClusterContainer {
  std::string image;  // empty: no container
  std::string runtime = "apptainer";
  std::vector<std::string> options = {"--nv"};
  std::vector<std::string> bind;
};

struct ClusterProfile {
  std::string file;
  std::string cluster;
  std::string launcher = "srun";  // srun | mpirun
  std::string mpi = "pmix";       // srun --mpi=
  std::string account, qos, reservation;
  double warn_s = 300;  // a job is warned that long before its time limit
  bool requeue = true;  // false: a job that is not done submits its own continuation
  std::int64_t max_restarts = 20;
  std::vector<std::string> exclude_nodes;
  std::vector<std::string> modules;   // module load, before the prologue
  std::vector<std::string> prologue;  // shell lines
  std::string program;                // poros on the nodes; empty: the one that submits
  std::string scratch_dir;            // node-local or shared folder for the quantised base
  std::string results_dir;            // campaign folders of relative name go below it
  std::string mixed_partition;        // holds nodes of several types, for --single-job
  std::string gather_partition;
  double gather_time_s = 1800;
  ClusterContainer container;
  std::vector<ClusterGpu> gpus;
};

/// Reads a profile file. "%u" in its paths becomes the user's name.
/// @throws Error(Fault::input) with all faults that were found, each with file:line:column
[[nodiscard]] ClusterProfile read_cluster_profile(const std::filesystem::path& file);

/// The same for text in memory; `origin` begins each message.
[[nodiscard]] ClusterProfile parse_cluster_profile(std::string_view text,
                                                   const std::string& origin);

/// The profile of that name: a path where `name` holds a '/' or ends in .yaml, else NAME.yaml in
/// $POROS_CLUSTERS, ~/.config/poros/clusters, or slurm/clusters of the checkout or installation.
/// @throws Error(Fault::input) naming the places and the profiles that are there
[[nodiscard]] std::filesystem::path find_cluster_profile(const std::string& name);

/// The cluster's GPU of a spec's gpu_name ("NVIDIA A100-SXM4-80GB" is "A100"), or nullptr.
[[nodiscard]] const ClusterGpu* find_gpu(const ClusterProfile& profile,
                                         const std::string& gpu_name);

/// Every key, its default and meaning, as Markdown; part of docs/slurm.md.
[[nodiscard]] std::string cluster_profile_markdown();

}  // namespace poros
