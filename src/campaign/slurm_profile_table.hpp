// SPDX-License-Identifier: Apache-2.0
// The keys of a cluster profile, each with its rule and meaning; the reader and the documentation
// come from here.
#pragma once

#include <vector>

#include "campaign/slurm_profile.hpp"
#include "spec/fields.hpp"

namespace poros {

/// What a text of a profile must look like, since it goes into a batch script or a command.
enum class SlurmForm {
  word,        // name of a partition, node, module, ...: no white space, nothing a shell reads
  constraint,  // a word, also with & | * ( ) [ ]
  memory,      // 64G
  path,        // absolute, without control characters
  shell_line,  // runs as it stands
};

template <typename S>
struct ProfileField {
  const char* name;
  Member<S> member;
  SlurmForm form;
  KeyRule rule;
  const char* text;
};

[[nodiscard]] const std::vector<ProfileField<ClusterProfile>>& profile_fields();
[[nodiscard]] const std::vector<ProfileField<ClusterGpu>>& gpu_fields();
[[nodiscard]] const std::vector<ProfileField<ClusterContainer>>& container_fields();

}  // namespace poros
