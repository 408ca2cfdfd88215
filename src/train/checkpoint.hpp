// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a training. A checkpoint is a folder checkpoints/step-00000120:
//   adapter/                adapter in PEFT's format; its fp32 tensors are the master weights
//   moments.safetensors     exp_avg.<name> and exp_avg_sq.<name>, fp32
//   checkpoint.json         CheckpointState, and the sha256 of each file
// Data order, dropout and learning rate are functions of seed and step, so the step stands for
// them. `latest` in checkpoints/ holds the name of the newest whole one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/json.hpp"
#include "model/adapter.hpp"
#include "train/optimizer.hpp"

namespace poros {

/// What a run must agree on with the one it goes on from, and where that one stood.
struct CheckpointState {
  std::int64_t step = 0, updates = 0;  // done
  std::int64_t tokens = 0;             // trained on, without padding
  std::int64_t steps = 0;              // of the whole run: the horizon of the learning rate
  std::string run_id;
  Json work;                 // training_work of the config
  std::string weights;       // BaseStore::weights()
  std::string token_sha256;  // of the token file
  std::string start_sha256;  // of the initial adapter
  std::string plan_sha256;   // numerical plan: what can change the last bits
};

/// A checkpoint that was found and whose files are as they were written.
struct FoundCheckpoint {
  std::filesystem::path folder;
  CheckpointState state;
  [[nodiscard]] std::filesystem::path adapter_dir() const { return folder / "adapter"; }
};

class CheckpointFolder {
 public:
  /// @param folder {output_dir}/checkpoints; made when the first checkpoint is written
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep);

  /// Writes a checkpoint: under another name, synced, renamed; then `latest`; then the oldest are
  /// removed down to `keep`. Whatever goes wrong, the checkpoints before it stay.
  /// @param parameters in host memory
  /// @returns its folder
  /// @throws Error(Fault::io), e.g. for a full disk
  std::filesystem::path write(const CheckpointState& state, const Adapter& adapter,
                              const FlatParameters& parameters);

  /// The newest whole checkpoint; nullopt where there is none at all.
  /// @param on_damage told of each one that is passed over, and why
  /// @throws Error(Fault::input) when there are some, but none is whole
  [[nodiscard]] std::optional<FoundCheckpoint> newest(
      const std::function<void(const std::string&)>& on_damage) const;

  /// Names of the checkpoints, newest first.
  [[nodiscard]] std::vector<std::string> names() const;

  /// Moves the folder aside to the first free checkpoints.<n>. Nothing where there is none.
  void move_aside() const;

 private:
  std::filesystem::path folder_;
  std::int64_t keep_;
};

/// Reads a checkpoint and checks the hashes of its files.
/// @throws Error(Fault::input) naming the file and what is wrong
[[nodiscard]] FoundCheckpoint read_checkpoint(const std::filesystem::path& folder);

/// Reads the moments into host buffers of the views' layout.
/// @throws Error(Fault::input) where names or shapes are not those of the views
void read_moments(const FoundCheckpoint& checkpoint, const FlatParameters& parameters);

/// Refuses to go on with another work than the checkpoint's.
/// @throws Error(Fault::input) naming what differs
void check_same_work(const FoundCheckpoint& checkpoint, const CheckpointState& now);

}  // namespace poros
