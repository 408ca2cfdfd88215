// SPDX-License-Identifier: Apache-2.0
#include "campaign/train_inputs.hpp"

#include <algorithm>
#include <cmath>
#include <system_error>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "campaign/inputs.hpp"
#include "campaign/tokeniser.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "model/open_base.hpp"
#include "model/token_file.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

void check_stop(const TrainInputContext& context) {
  if (context.stop_requested && context.stop_requested()) throw TrainingStopped{};
}

/// What the tokenising step answered, kept in inputs/tokens-<request>.json.
TokenisedData tokens_of(const TrainInputContext& context, const TrainRequest& request,
                        const fs::path& inputs) {
  const TrainingSpec& training = request.config.training;
  const bool all_rows = training.dataset.source != "synthetic";
  const Json ask = token_request(training, request.model_dir, inputs, all_rows);
  const fs::path kept = inputs / fmt::format("tokens-{:.16}.json", token_request_id(ask));
  std::error_code error;
  if (fs::exists(kept, error)) {
    const std::string origin = kept.string();
    const Json json = parse_json(read_file(kept), origin);
    TokenisedData data;
    data.path = inputs / json_get<std::string>(json, "tokens", origin);
    const auto validation = json_find<std::string>(json, "validation", origin);
    if (validation) data.validation_path = inputs / *validation;
    const bool whole =
        fs::exists(data.path, error) && (!validation || fs::exists(data.validation_path, error));
    if (whole) return data;
  }
  const double start_s = monotonic_s();
  const TokenisedData data = tokenise(context.paths, ask);
  Json json = {{"tokens", data.path.filename().string()}, {"validation", nullptr}};
  if (!data.validation_path.empty()) json["validation"] = data.validation_path.filename().string();
  write_file_durably(kept, dump_json(json, 1) + "\n");
  context.say(fmt::format("tokens made in {:.1f} s", monotonic_s() - start_s));
  for (const std::string& line : split(data.text, '\n')) {
    if (!line.empty()) context.say("  " + line);
  }
  return data;
}

/// Steps of so many times over the data.
std::int64_t steps_of(double epochs, std::int64_t rows, const TrainingSpec& training) {
  const auto rows_per_step =
      static_cast<double>(training.batch_size * training.gradient_accumulation_steps);
  const double steps = std::ceil(epochs * static_cast<double>(rows) / rows_per_step);
  if (steps > 1e8)
    fail(Fault::input, "epochs: {} of them are {:.0f} steps; expected fewer", epochs, steps);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
}

fs::path initial_adapter_of(const TrainRequest& request, const fs::path& inputs) {
  const TrainConfig& config = request.config;
  const std::string& base = config.model.path.empty() ? config.model.model_id : config.model.path;
  const fs::path model_config = request.model_dir / "config.json";
  const std::string id = sha256_hex(dump_json({{"lora", to_json(config).at("lora")},
                                               {"seed", config.training.seed},
                                               {"base", base},
                                               {"config", sha256_file(model_config)}}));
  const fs::path folder = inputs / fmt::format("{:.16}.adapter", id);
  std::error_code error;
  if (fs::exists(folder, error)) return folder;
  const Architecture architecture = read_architecture(read_model_config(model_config));
  const fs::path making = folder.string() + ".making";
  fs::remove_all(making, error);
  write_adapter(making, initial_adapter(architecture, config.lora, base,
                                        static_cast<std::uint64_t>(config.training.seed)));
  fs::rename(making, folder, error);
  if (error) fail(Fault::io, "{}: rename: {}", folder.string(), error.message());
  return folder;
}

void prepare_base(const TrainInputContext& context, const TrainRequest& request) {
  BaseRequest base;
  base.model = request.model_dir;
  base.precision = request.config.precision;
  base.synthetic = request.config.model.weights == "synthetic";
  base.seed = static_cast<std::uint64_t>(request.config.training.seed);
  base.cache = request.cache_dir;
  const double start_s = monotonic_s();
  double said_s = start_s;
  bool built = false;
  static_cast<void>(open_base(base, [&](std::int64_t done, std::int64_t total) {
    built = true;
    check_stop(context);
    if (monotonic_s() - said_s < 5) return;
    said_s = monotonic_s();
    context.say(fmt::format("preparing the base: part {} of {}", done, total));
  }));
  if (built) {
    context.say(
        fmt::format("base kept as {}, made in {:.1f} s", base.precision, monotonic_s() - start_s));
  }
}

}  // namespace

void prepare_training(const TrainInputContext& context, TrainRequest& request) {
  TrainConfig& config = request.config;
  CellSpec sources;
  sources.model = config.model;
  sources.training = config.training;
  check_sources(sources);
  request.model_dir = fs::absolute(model_folder(config.model));
  request.cache_dir = fs::absolute(default_cache_folder());
  const fs::path inputs = request.output_dir / "inputs";
  std::error_code error;
  fs::create_directories(inputs, error);
  if (error) fail(Fault::io, "{}: {}", inputs.string(), error.message());
  check_stop(context);
  const TokenisedData data = tokens_of(context, request, inputs);
  request.tokens_path = data.path;
  request.validation_path = data.validation_path;
  if (config.epochs) {
    config.training.steps =
        steps_of(*config.epochs, read_token_file(data.path).rows, config.training);
  }
  if (config.training.lr_warmup_steps > config.training.steps) {
    fail(Fault::input, "{}: training.lr_warmup_steps: {} is more than the {} steps of the run",
         config.file, config.training.lr_warmup_steps, config.training.steps);
  }
  check_stop(context);
  request.adapter_dir = initial_adapter_of(request, inputs);
  check_stop(context);
  prepare_base(context, request);
}

}  // namespace poros
