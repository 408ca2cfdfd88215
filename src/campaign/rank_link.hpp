// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job speak with each other. MPI stands behind this interface alone
// (mpi_link.cpp), so that the rest can be tested without a launcher.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace poros {

struct RankMessage {
  int from = 0;
  std::string text;
};

/// Texts between ranks, in order between any two. To be used by one thread at a time.
class RankLink {
 public:
  virtual ~RankLink() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Number of this rank among those of its host, and how many these are. Measured, not read from
  /// the environment: SLURM_LOCALID is 0 in every rank below mpirun.
  [[nodiscard]] virtual int local_rank() const = 0;
  [[nodiscard]] virtual int local_size() const = 0;
  /// Takes the text and returns at once.
  virtual void send(int to, std::string text) = 0;
  /// A message that has arrived, or nothing; returns at once.
  [[nodiscard]] virtual std::optional<RankMessage> receive() = 0;
  /// Ends all ranks at once; does not return.
  [[noreturn]] virtual void abort(int exit_code) = 0;
};

/// True below mpirun, or in a Slurm job step that srun started with an MPI plugin.
[[nodiscard]] bool is_launched_rank();

/// Joins the other ranks (MPI_Init). Null without a launcher, and MPI is then never started.
/// Joining and, when the link is destroyed, parting wait for every rank: where one does not come
/// within the deadline, this process says so and exits, and the launcher ends the job.
/// @throws Error(Fault::environment) when MPI can't be started
[[nodiscard]] std::unique_ptr<RankLink> join_ranks(double deadline_s = 300);

}  // namespace poros
