// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "model/safetensors.hpp"
#include "spec/train_config.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr int kVersion = 1;
constexpr const char* kLatest = "latest";
constexpr std::string_view kPrefix = "step-";
constexpr std::array<const char*, 3> kFiles = {
    "adapter/adapter_config.json", "adapter/adapter_model.safetensors", "moments.safetensors"};

std::string name_of_step(std::int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

void add_moments(std::vector<TensorToWrite>& tensors, const char* kind, const float* buffer,
                 const std::vector<ParameterView>& views) {
  for (const ParameterView& view : views) {
    TensorToWrite tensor;
    tensor.name = fmt::format("{}.{}", kind, view.name);
    tensor.shape = {view.rows, view.cols};
    const float* values = buffer + view.offset;
    const auto bytes = static_cast<std::uint64_t>(view.rows * view.cols) * sizeof(float);
    tensor.write = [values, bytes](const TensorToWrite::Sink& put) { put(values, bytes); };
    tensors.push_back(std::move(tensor));
  }
}

Json to_json(const CheckpointState& state) {
  return {{"v", kVersion},
          {"step", state.step},
          {"updates", state.updates},
          {"tokens", state.tokens},
          {"steps", state.steps},
          {"run_id", state.run_id},
          {"work", state.work},
          {"weights", state.weights},
          {"token_sha256", state.token_sha256},
          {"start_sha256", state.start_sha256},
          {"plan_sha256", state.plan_sha256}};
}

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(Fault::io, "{}: rename: {}", to.string(), error.message());
}

/// Removes what can be removed; what is left is in nobody's way.
void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

/// What a run that was killed left: a half-made checkpoint, and one that made way for another.
void remove_leftovers(const fs::path& folder) {
  remove_quietly(folder / ".making");
  const fs::path old = folder / ".old", path = old / "checkpoint.json";
  std::error_code error;
  try {
    const auto step =
        json_get<std::int64_t>(parse_json(read_file(path), path.string()), "step", "");
    // Where the other one never came to stand there, it goes back to its place.
    if (!fs::exists(folder / name_of_step(step), error)) {
      fs::rename(old, folder / name_of_step(step), error);
    }
  } catch (const Error&) {
    // There is none, or none that could be used.
  }
  remove_quietly(old);
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path folder, std::int64_t keep)
    : folder_(std::move(folder)), keep_(std::max<std::int64_t>(1, keep)) {}

fs::path CheckpointFolder::write(const CheckpointState& state, const Adapter& adapter,
                                 const FlatParameters& parameters) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(Fault::io, "{}: {}", folder_.string(), error.message());
  remove_leftovers(folder_);
  const fs::path making = folder_ / ".making", old = folder_ / ".old";
  const std::string name = name_of_step(state.step);
  try {
    fs::create_directories(making);
    write_adapter(making / "adapter", adapter);
    std::vector<TensorToWrite> tensors;
    add_moments(tensors, "exp_avg", parameters.exp_avg, parameters.views);
    add_moments(tensors, "exp_avg_sq", parameters.exp_avg_sq, parameters.views);
    write_safetensors(making / "moments.safetensors", std::move(tensors));
    Json json = to_json(state);
    for (const char* file : kFiles) json["files"][file] = sha256_file(making / file);
    json["sha256"] = sha256_hex(dump_json(json));  // of all the rest
    write_file_durably(making / "checkpoint.json", dump_json(json, 1) + "\n");
    sync_folder(making);
    // A damaged one of the same step may stand in the way.
    if (fs::exists(folder_ / name)) rename_folder(folder_ / name, old);
    rename_folder(making, folder_ / name);
    sync_folder(folder_);
    write_file_durably(folder_ / kLatest, name + "\n");
    remove_quietly(old);
  } catch (const fs::filesystem_error& broken) {
    remove_leftovers(folder_);
    fail(Fault::io, "{}: the checkpoint of step {} could not be written: {}", folder_.string(),
         state.step, broken.code().message());
  } catch (const Error& broken) {
    remove_leftovers(folder_);
    fail(Fault::io, "the checkpoint of step {} could not be written: {}", state.step,
         broken.what());
  }
  const std::vector<std::string> all = names();
  for (std::size_t i = static_cast<std::size_t>(keep_); i < all.size(); ++i) {
    if (all[i] != name) remove_quietly(folder_ / all[i]);
  }
  return folder_ / name;
}

std::vector<std::string> CheckpointFolder::names() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && entry.is_directory(error)) names.push_back(name);
  }
  std::ranges::sort(names, std::greater<>());
  return names;
}

std::optional<FoundCheckpoint> CheckpointFolder::newest(
    const std::function<void(const std::string&)>& on_damage) const {
  std::vector<std::string> candidates = names();
  if (candidates.empty()) return std::nullopt;
  // The pointer is right wherever it can be read; it only differs after another run's leftovers.
  std::error_code error;
  if (fs::exists(folder_ / kLatest, error)) {
    std::string latest = read_file(folder_ / kLatest, 4096);
    while (!latest.empty() && latest.back() == '\n') latest.pop_back();
    const auto found = std::ranges::find(candidates, latest);
    if (found != candidates.end()) std::rotate(candidates.begin(), found, found + 1);
  }
  std::string last;
  for (const std::string& name : candidates) {
    try {
      return read_checkpoint(folder_ / name);
    } catch (const Error& damaged) {
      last = damaged.what();
      on_damage(last);
    }
  }
  fail(Fault::input, "{}: no checkpoint in it is whole ({}); begin anew with --resume none",
       folder_.string(), last);
}

void CheckpointFolder::move_aside() const {
  std::error_code error;
  if (names().empty()) return;
  for (int number = 1;; ++number) {
    const fs::path aside = fmt::format("{}.{}", folder_.string(), number);
    if (fs::exists(aside, error)) continue;
    rename_folder(folder_, aside);
    return;
  }
}

FoundCheckpoint read_checkpoint(const fs::path& folder) {
  FoundCheckpoint found;
  found.folder = folder;
  const fs::path path = folder / "checkpoint.json";
  const std::string origin = path.string();
  Json json = parse_json(read_file(path), origin);
  const auto own_hash = json_get<std::string>(json, "sha256", origin);
  json.erase("sha256");
  if (sha256_hex(dump_json(json)) != own_hash) {
    fail(Fault::input, "{}: damaged: its content is not what was written", origin);
  }
  if (json_get<int>(json, "v", origin) != kVersion) {
    fail(Fault::input, "{}: written by another version of the trainer", origin);
  }
  CheckpointState& state = found.state;
  state.step = json_get<std::int64_t>(json, "step", origin);
  state.updates = json_get<std::int64_t>(json, "updates", origin);
  state.tokens = json_get<std::int64_t>(json, "tokens", origin);
  state.steps = json_get<std::int64_t>(json, "steps", origin);
  state.run_id = json_get<std::string>(json, "run_id", origin);
  state.work = json_get<Json>(json, "work", origin);
  state.weights = json_get<std::string>(json, "weights", origin);
  state.token_sha256 = json_get<std::string>(json, "token_sha256", origin);
  state.start_sha256 = json_get<std::string>(json, "start_sha256", origin);
  state.plan_sha256 = json_get<std::string>(json, "plan_sha256", origin);
  if (state.step < 0 || state.updates < 0 || state.updates > state.step) {
    fail(Fault::input, "{}: step {} with {} updates", origin, state.step, state.updates);
  }
  const Json files = json_get<Json>(json, "files", origin);
  for (const char* file : kFiles) {
    const auto wanted = json_get<std::string>(files, file, origin);
    std::error_code error;
    if (!fs::exists(folder / file, error)) {
      fail(Fault::input, "{}: missing", (folder / file).string());
    }
    if (sha256_file(folder / file) != wanted) {
      fail(Fault::input, "{}: damaged: its content is not what was written",
           (folder / file).string());
    }
  }
  return found;
}

void read_moments(const FoundCheckpoint& checkpoint, const FlatParameters& parameters) {
  const SafetensorsFile file(checkpoint.folder / "moments.safetensors");
  if (file.tensors().size() != 2 * parameters.views.size()) {
    fail(Fault::input, "{}: {} tensors; expected {}", file.path().string(), file.tensors().size(),
         2 * parameters.views.size());
  }
  const auto read = [&](const char* kind, float* buffer) {
    for (const ParameterView& view : parameters.views) {
      const std::string name = fmt::format("{}.{}", kind, view.name);
      const auto found = file.tensors().find(name);
      if (found == file.tensors().end() || found->second.type != TensorType::f32 ||
          found->second.shape != std::vector<std::int64_t>{view.rows, view.cols}) {
        fail(Fault::input, "{}: no fp32 tensor \"{}\" of shape [{}, {}]", file.path().string(),
             name, view.rows, view.cols);
      }
      file.read(found->second, 0, found->second.bytes, buffer + view.offset);
    }
  };
  read("exp_avg", parameters.exp_avg);
  read("exp_avg_sq", parameters.exp_avg_sq);
}

void check_same_work(const FoundCheckpoint& checkpoint, const CheckpointState& now) {
  const CheckpointState& then = checkpoint.state;
  std::vector<std::string> differ = work_differences(then.work, now.work);
  const auto hash = [&](const char* what, const std::string& before, const std::string& after) {
    if (before != after) differ.push_back(fmt::format("{}: {:.12} -> {:.12}", what, before, after));
  };
  hash("model (content)", then.weights, now.weights);
  hash("training.dataset (content)", then.token_sha256, now.token_sha256);
  hash("initial adapter", then.start_sha256, now.start_sha256);
  if (differ.empty() && now.steps < then.step) {
    differ.push_back(
        fmt::format("training.steps: {} -> {}, but {} are done", then.steps, now.steps, then.step));
  }
  if (differ.empty()) return;
  fail(Fault::input,
       "{}: made with another config; differing: {}\nset the config back to go on, or begin anew "
       "with --resume none (older checkpoints are moved aside)",
       checkpoint.folder.string(), fmt::join(differ, "; "));
}

}  // namespace poros
