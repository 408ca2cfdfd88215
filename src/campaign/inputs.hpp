// SPDX-License-Identifier: Apache-2.0
// What every arm of a comparison group reads: token file, initial adapter, quantised base. Made
// once, outside any cell's deadlines, and named by content.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "campaign/arms.hpp"
#include "campaign/folder.hpp"
#include "cell/redact.hpp"
#include "spec/cell_spec.hpp"

namespace poros {

struct GroupInputs {
  std::filesystem::path model_dir, tokens_path, adapter_dir, cache_dir;  // absolute
  std::filesystem::path peer_model_dir;    // that the libraries load; see peer_checkpoint.hpp
  std::filesystem::path peer_tokens_path;  // of the libraries' arms: another file with protocol
                                           // native, one synthetic batch
  std::string token_sha256, adapter_sha256;
};

struct InputContext {
  const CampaignFolder& folder;
  const InstallPaths& paths;
  const Redactor& redactor;
  std::function<void(const std::string&)> say;  // one line of progress
  std::function<bool()> stop_requested;
};

/// Thrown by prepare_inputs when stop_requested became true.
struct InputsStopped {};

/// The model's folder on this machine: the spec's path, or the hub cache's snapshot.
/// @throws Error(Fault::input) saying where it was looked for
[[nodiscard]] std::filesystem::path model_folder(const ModelSpec& model);

/// Checks what can be checked in no time: that model and dataset are there.
/// @throws Error(Fault::input)
void check_sources(const CellSpec& cell);

/// Makes or finds the inputs of a comparison group. What an earlier run made is used again without
/// Python: inputs/index.json maps each request to its file, whose content is checked.
/// @param cell any cell of the group
/// @param needs_base quantise the base into the cache where it is missing (own arms)
/// @param needs_checkpoint export synthetic weights for the libraries (peers that can run)
/// @throws Error; InputsStopped
[[nodiscard]] GroupInputs prepare_inputs(const InputContext& context, const CellSpec& cell,
                                         bool needs_base, bool needs_checkpoint = false);

/// What a cell's record says of its inputs, and the folder where they may still lie. A hash is
/// empty where the record has none (a cell that failed before it read them).
struct RecordedInputs {
  std::filesystem::path folder;
  std::string token_sha256, adapter_sha256;
};

/// The inputs of a recorded cell: the recorded files where they are there unaltered, else made anew
/// in context.folder. @throws Error(Fault::input) when what is made has another hash; InputsStopped
[[nodiscard]] GroupInputs recorded_inputs(const InputContext& context, const CellSpec& cell,
                                          const RecordedInputs& recorded);

}  // namespace poros
