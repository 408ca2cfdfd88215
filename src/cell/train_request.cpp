// SPDX-License-Identifier: Apache-2.0
#include "cell/train_request.hpp"

#include "base/files.hpp"

namespace poros {
namespace {

constexpr int kTrainRequestVersion = 1;

}  // namespace

Json to_json(const TrainRequest& request) {
  const DatasetSpec& dataset = request.config.training.dataset;
  return {{"v", kTrainRequestVersion},
          {"config", to_json(request.config)},
          {"config_file", request.config.file},
          {"dataset_path", dataset.path},
          {"run_id", request.run_id},
          {"model_dir", request.model_dir.string()},
          {"tokens_path", request.tokens_path.string()},
          {"validation_path", request.validation_path.string()},
          {"adapter_dir", request.adapter_dir.string()},
          {"cache_dir", request.cache_dir.string()},
          {"output_dir", request.output_dir.string()},
          {"resume", request.resume},
          {"threads", request.threads}};
}

TrainRequest read_train_request(const std::filesystem::path& path) {
  const std::string origin = path.string();
  const Json json = parse_json(read_file(path), origin);
  if (json_get<int>(json, "v", origin) != kTrainRequestVersion) {
    fail(Fault::input, "{}: made for another version of the trainer", origin);
  }
  TrainRequest request;
  request.config = train_config_from_json(json_get<Json>(json, "config", origin), origin);
  request.config.file = json_get<std::string>(json, "config_file", origin);
  request.config.training.dataset.path = json_get<std::string>(json, "dataset_path", origin);
  request.run_id = json_get<std::string>(json, "run_id", origin);
  request.model_dir = json_get<std::string>(json, "model_dir", origin);
  request.tokens_path = json_get<std::string>(json, "tokens_path", origin);
  request.validation_path = json_get<std::string>(json, "validation_path", origin);
  request.adapter_dir = json_get<std::string>(json, "adapter_dir", origin);
  request.cache_dir = json_get<std::string>(json, "cache_dir", origin);
  request.output_dir = json_get<std::string>(json, "output_dir", origin);
  request.resume = json_get<std::string>(json, "resume", origin);
  request.threads = json_get<std::int64_t>(json, "threads", origin);
  return request;
}

}  // namespace poros
