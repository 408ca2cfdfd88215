// SPDX-License-Identifier: Apache-2.0
// What a training reads, made before its trainer starts: token files, initial adapter, base.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "campaign/arms.hpp"
#include "cell/train_request.hpp"

namespace poros {

struct TrainInputContext {
  const InstallPaths& paths;
  std::function<void(const std::string&)> say;  // a line of progress
  std::function<bool()> stop_requested;
};

/// Thrown by prepare_training when stop_requested became true.
struct TrainingStopped {};

/// Makes what the request names, or finds it from an earlier run in {output_dir}/inputs, and fills
/// in the request's paths. All rows of the data are used; where the config counts epochs,
/// config.training.steps becomes the number of steps that they take.
/// @param request config (device resolved), output_dir
/// @throws Error; TrainingStopped
void prepare_training(const TrainInputContext& context, TrainRequest& request);

}  // namespace poros
