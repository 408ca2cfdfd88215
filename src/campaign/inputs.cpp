// SPDX-License-Identifier: Apache-2.0
#include "campaign/inputs.hpp"

#include <system_error>

#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "campaign/hub.hpp"
#include "campaign/peer_checkpoint.hpp"
#include "campaign/tokeniser.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "model/open_base.hpp"
#include "receipts/lease.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

/// inputs/index.json: {"<sha256 of a request>": "<name of the file or folder>"}.
class InputIndex {
 public:
  explicit InputIndex(const fs::path& folder) : path_(folder / "index.json") {
    std::error_code error;
    if (!fs::exists(path_, error)) return;
    const Json found = parse_json(read_file(path_), path_.string());
    if (found.is_object()) entries_ = found;
  }
  [[nodiscard]] std::string find(const std::string& request) const {
    return json_find<std::string>(entries_, request.c_str(), path_.string()).value_or("");
  }
  void put(const std::string& request, const std::string& name) {
    entries_[request] = name;
    write_file_durably(path_, dump_json(entries_, 1) + "\n");
  }

 private:
  fs::path path_;
  Json entries_ = Json::object();
};

/// Ends work in progress when the run is to stop.
void check_stop(const InputContext& context) {
  if (context.stop_requested && context.stop_requested()) throw InputsStopped{};
}

/// A name that no other driver of the campaign uses, on this host or another.
std::string own_name(const char* what, const char* extension) {
  return fmt::format("{}-{}-{}{}", what, this_process({}, {}).host, ::getpid(), extension);
}

TokenisedData run_tokeniser(const InputContext& context, const Json& request) {
  try {
    return tokenise(context.paths, request);
  } catch (const Error& error) {
    check_stop(context);  // a batch job's warning reaches its helpers too, and ends them
    throw Error(error.fault(), context.redactor.redact(error.what()));
  }
}

/// The token file of a training. @returns its sha256; the file is there and is what its name says
std::string prepare_tokens(const InputContext& context, const TrainingSpec& training,
                           const fs::path& model_dir, InputIndex& index) {
  const Json request = token_request(training, model_dir, context.folder.inputs());
  const std::string id = token_request_id(request);
  const std::string known = index.find(id);
  std::string sha256;
  std::error_code error;
  if (!known.empty() && fs::exists(context.folder.inputs() / known, error)) {
    sha256 = known.substr(0, known.find('.'));
  } else {
    const double start_s = monotonic_s();
    const TokenisedData made = run_tokeniser(context, request);
    sha256 = made.sha256;
    index.put(id, sha256 + ".tokens");
    context.say(fmt::format("tokens: inputs/{:.8}....tokens made in {:.1f} s", sha256,
                            monotonic_s() - start_s));
    for (const std::string& line : split(made.text, '\n')) {
      if (!line.empty()) context.say("  " + line);
    }
  }
  const fs::path path = child_path(context.folder.inputs(), sha256 + ".tokens");
  const std::string found = sha256_file(path);
  if (found != sha256) {
    fail(Fault::input,
         "{}: its content has the sha256 {}: the file was changed; remove it and run "
         "the command again",
         path.string(), found);
  }
  return sha256;
}

/// What the libraries' arms train on with protocol native: one micro-batch of random ids, used
/// again in every micro-batch of every step.
TrainingSpec one_synthetic_batch(TrainingSpec training) {
  training.dataset = DatasetSpec{};
  training.steps = 1;
  training.gradient_accumulation_steps = 1;
  training.packing = false;
  return training;
}

void prepare_adapter(const InputContext& context, const CellSpec& cell, InputIndex& index,
                     GroupInputs& inputs) {
  const Json work = to_json(cell);
  const fs::path config = inputs.model_dir / "config.json";
  const std::string id = sha256_hex(dump_json({{"lora", work.at("lora")},
                                               {"seed", cell.training.seed},
                                               {"model_id", cell.model.model_id},
                                               {"config", sha256_file(config)}}));
  const std::string known = index.find(id);
  std::error_code error;
  if (!known.empty() && fs::exists(context.folder.inputs() / known, error)) {
    inputs.adapter_sha256 = known.substr(0, known.find('.'));
  } else {
    const Architecture architecture = read_architecture(read_model_config(config));
    const Adapter adapter = initial_adapter(architecture, cell.lora, cell.model.model_id,
                                            static_cast<std::uint64_t>(cell.training.seed));
    // Made under another name and renamed when it is whole.
    const fs::path making = context.folder.inputs() / own_name("making", "");
    fs::remove_all(making);
    fs::create_directories(making);
    inputs.adapter_sha256 = write_adapter(making, adapter);
    const fs::path name = context.folder.inputs() / (inputs.adapter_sha256 + ".adapter");
    // Named by its content: what another shard has made meanwhile is the same, and may be in use.
    fs::rename(making, name, error);
    if (error) {
      std::error_code ignored;
      fs::remove_all(making, ignored);
      if (!fs::exists(name, ignored)) {
        fail(Fault::io, "{}: rename: {}", name.string(), error.message());
      }
    }
    sync_folder(context.folder.inputs());
    index.put(id, inputs.adapter_sha256 + ".adapter");
  }
  inputs.adapter_dir = child_path(context.folder.inputs(), inputs.adapter_sha256 + ".adapter");
  const std::string found = sha256_file(inputs.adapter_dir / "adapter_model.safetensors");
  if (found != inputs.adapter_sha256) {
    fail(Fault::input,
         "{}: its content has the sha256 {}: the file was changed; remove the folder "
         "and run the command again",
         inputs.adapter_dir.string(), found);
  }
}

void prepare_base(const InputContext& context, const CellSpec& cell, const GroupInputs& inputs) {
  BaseRequest request;
  request.model = inputs.model_dir;
  request.precision = cell.precision;
  request.synthetic = cell.model.weights == "synthetic";
  request.seed = static_cast<std::uint64_t>(cell.training.seed);
  request.cache = inputs.cache_dir;
  const double start_s = monotonic_s();
  double said_s = start_s;
  bool built = false;
  static_cast<void>(open_base(request, [&](std::int64_t done, std::int64_t total) {
    built = true;
    check_stop(context);
    if (monotonic_s() - said_s < 5) return;
    said_s = monotonic_s();
    context.say(fmt::format("quantising {}: part {} of {}", model_slug(cell.model), done, total));
  }));
  if (built) {
    context.say(fmt::format("quantised {} to {} in {:.1f} s", model_slug(cell.model),
                            cell.precision, monotonic_s() - start_s));
  }
}

}  // namespace

fs::path model_folder(const ModelSpec& model) {
  if (!model.path.empty()) {
    std::error_code error;
    if (!fs::exists(model.path, error)) {
      fail(Fault::input, "{}: the model's folder is not there (models[].model_id: {})", model.path,
           model.model_id);
    }
    return model.path;
  }
  return hub_snapshot(model.model_id, model.revision);
}

void check_sources(const CellSpec& cell) {
  const fs::path folder = model_folder(cell.model);
  std::error_code error;
  if (!fs::exists(folder / "config.json", error)) {
    fail(Fault::input,
         "{}: no config.json in it; a checkpoint folder as save_pretrained leaves it "
         "is expected",
         folder.string());
  }
  const DatasetSpec& dataset = cell.training.dataset;
  if (!dataset.path.empty() && !fs::exists(dataset.path, error)) {
    fail(Fault::input, "{}: the dataset is not there (training.dataset: {})", dataset.path,
         dataset.source);
  }
  for (const auto& [key, path] : {std::pair{"validation", dataset.validation_path},
                                  std::pair{"chat_template", dataset.chat_template_path}}) {
    if (!path.empty() && !fs::exists(path, error)) {
      fail(Fault::input, "{}: not there (training.dataset.{})", path, key);
    }
  }
}

GroupInputs prepare_inputs(const InputContext& context, const CellSpec& cell, bool needs_base,
                           bool needs_checkpoint) {
  GroupInputs inputs;
  inputs.model_dir = fs::absolute(model_folder(cell.model));
  inputs.cache_dir = fs::absolute(default_cache_folder());
  fs::create_directories(context.folder.inputs());
  InputIndex index(context.folder.inputs());
  check_stop(context);
  const auto tokens = [&](const TrainingSpec& training) {
    return prepare_tokens(context, training, inputs.model_dir, index);
  };
  inputs.token_sha256 = tokens(cell.training);
  inputs.tokens_path = child_path(context.folder.inputs(), inputs.token_sha256 + ".tokens");
  inputs.peer_tokens_path = inputs.tokens_path;
  if (cell.protocol == "native") {
    inputs.peer_tokens_path =
        child_path(context.folder.inputs(), tokens(one_synthetic_batch(cell.training)) + ".tokens");
  }
  check_stop(context);
  prepare_adapter(context, cell, index, inputs);
  check_stop(context);
  if (needs_base) prepare_base(context, cell, inputs);
  inputs.peer_model_dir = inputs.model_dir;
  if (needs_checkpoint) {
    check_stop(context);
    inputs.peer_model_dir = peer_checkpoint(cell, inputs.model_dir, inputs.cache_dir, [&] {
      context.say(
          fmt::format("writing {} as a checkpoint for the libraries", model_slug(cell.model)));
    });
  }
  return inputs;
}

GroupInputs recorded_inputs(const InputContext& context, const CellSpec& cell,
                            const RecordedInputs& recorded) {
  const bool own = is_own_arm(cell.method);
  GroupInputs inputs;
  inputs.model_dir = fs::absolute(model_folder(cell.model));
  inputs.cache_dir = fs::absolute(default_cache_folder());
  fs::create_directories(context.folder.inputs());
  InputIndex index(context.folder.inputs());
  const auto is_there = [](const fs::path& file, const std::string& sha256) {
    std::error_code error;
    return !sha256.empty() && fs::exists(file, error) && sha256_file(file) == sha256;
  };
  const auto check = [](const char* what, const std::string& wanted, const std::string& made) {
    if (wanted.empty() || wanted == made) return;
    fail(
        Fault::input,
        "the recorded {} {:.12} is gone, and made again it is {:.12}: model, data set or tokenizer "
        "have changed",
        what, wanted, made);
  };
  const std::string token_name = recorded.token_sha256 + ".tokens";
  if (is_there(recorded.folder / token_name, recorded.token_sha256)) {
    inputs.token_sha256 = recorded.token_sha256;
    inputs.tokens_path = fs::absolute(recorded.folder / token_name);
  } else {
    const bool one_batch = cell.protocol == "native" && !own;
    inputs.token_sha256 =
        prepare_tokens(context, one_batch ? one_synthetic_batch(cell.training) : cell.training,
                       inputs.model_dir, index);
    check("token file", recorded.token_sha256, inputs.token_sha256);
    inputs.tokens_path = child_path(context.folder.inputs(), inputs.token_sha256 + ".tokens");
  }
  inputs.peer_tokens_path = inputs.tokens_path;
  const fs::path adapter = recorded.folder / (recorded.adapter_sha256 + ".adapter");
  if (is_there(adapter / "adapter_model.safetensors", recorded.adapter_sha256)) {
    inputs.adapter_sha256 = recorded.adapter_sha256;
    inputs.adapter_dir = fs::absolute(adapter);
  } else {
    prepare_adapter(context, cell, index, inputs);
    check("initial adapter", recorded.adapter_sha256, inputs.adapter_sha256);
  }
  check_stop(context);
  inputs.peer_model_dir = inputs.model_dir;
  if (own) {
    prepare_base(context, cell, inputs);
  } else {
    inputs.peer_model_dir = peer_checkpoint(cell, inputs.model_dir, inputs.cache_dir);
  }
  return inputs;
}

}  // namespace poros
