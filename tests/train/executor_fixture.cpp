// SPDX-License-Identifier: Apache-2.0
#include "executor_fixture.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include <unistd.h>

#include "base/error.hpp"
#include "model/open_base.hpp"
#include "model/safetensors.hpp"
#include "model/token_file.hpp"
#include "train/device.hpp"

namespace poros {
namespace {

struct ScratchFolder {
  std::filesystem::path path;
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "poros-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_errno(Fault::io, name);
    path = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
};

}  // namespace

std::filesystem::path goldens() {
  return std::filesystem::path(POROS_SOURCE_DIR) / "tests" / "goldens";
}

const std::filesystem::path& scratch_folder() {
  static const ScratchFolder folder;
  return folder.path;
}

std::unique_ptr<BaseStore> golden_base(const std::filesystem::path& checkpoint,
                                       const std::string& precision) {
  return open_base(checkpoint, precision, scratch_folder() / "cache");
}

std::unique_ptr<BaseStore> random_base(const std::string& config_json,
                                       const std::string& precision) {
  const auto folder =
      scratch_folder() / ("model-" + std::to_string(std::hash<std::string>{}(config_json)));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config_json;
  BaseRequest request;
  request.model = folder;
  request.precision = precision;
  request.synthetic = true;
  request.seed = 5;
  request.cache = scratch_folder() / "cache";
  return open_base(request);
}

NumericalPlan plan_for(const BaseStore& base, const RunSettings& settings) {
  TrainingSpec training;
  training.seq_len = settings.seq_len;
  training.batch_size = settings.batch_size;
  training.gradient_accumulation_steps = settings.micro_batches;
  training.compute_dtype = settings.compute_dtype;
  LoraSpec lora;
  lora.dropout = settings.dropout;
  PorosSpec poros;
  poros.accumulation = settings.accumulation;
  if (settings.sweep_rows > 0) poros.sweep_rows = settings.sweep_rows;
  return make_numerical_plan(
      base.architecture(), training, lora, poros,
      settings.cuda ? cuda_device_model() : cpu_device_model(settings.threads));
}

std::unique_ptr<Executor> make_executor(const BaseStore& base, const Adapter& adapter,
                                        const RunSettings& settings) {
  const NumericalPlan plan = plan_for(base, settings);
  const MemoryPlan memory = make_memory_plan(base, plan, adapter.places, settings.residency);
  const Stream stream =
      settings.cuda ? Stream{DeviceKind::cuda, cuda_device().open(), 1} : Stream{};
  return std::make_unique<Executor>(base, plan, memory, adapter, stream, settings.debug);
}

Adapter lively_adapter(const BaseStore& base, std::int64_t rank,
                       const std::vector<std::string>& targets) {
  LoraSpec lora;
  lora.rank = rank;
  lora.alpha = 2.0 * static_cast<double>(rank);
  lora.dropout = 0;  // the adapter's own; a plan says what a run does
  lora.target_modules = targets;
  Adapter adapter = initial_adapter(base.architecture(), lora, "test", 11);
  std::mt19937 generator(17);
  std::normal_distribution<float> normal(0.0F, 0.05F);
  for (LoraWeights& weights : adapter.weights) {
    for (float& value : weights.b) value = normal(generator);
  }
  return adapter;
}

TokenRows random_rows(std::int64_t rows, std::int64_t seq_len, std::int64_t vocab, bool documents,
                      std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  TokenRows made;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < seq_len; ++column) {
      made.ids.push_back(
          static_cast<std::uint32_t>(generator() % static_cast<std::uint64_t>(vocab)));
      const bool starts =
          column == 0 || (documents && (column == seq_len / 5 || column == seq_len / 2));
      const bool padded = documents && row + 1 == rows && column >= seq_len - seq_len / 4;
      made.flags.push_back(padded   ? TokenFile::kPadding
                           : starts ? TokenFile::kDocumentStart
                                    : TokenFile::kSupervised);
    }
  }
  return made;
}

std::map<std::string, std::vector<float>> read_f32(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& [name, tensor] : file.tensors()) {
    if (tensor.type != TensorType::f32)
      fail(Fault::input, "{}: {} is not f32", path.string(), name);
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    file.read(tensor, 0, tensor.bytes, values.data());
    tensors.emplace(name, std::move(values));
  }
  return tensors;
}

double relative_difference(const std::vector<float>& got, const std::vector<float>& wanted) {
  if (got.size() != wanted.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, largest = 0;
  for (std::size_t index = 0; index < got.size(); ++index) {
    const double a = static_cast<double>(got[index]), b = static_cast<double>(wanted[index]);
    if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::abs(a - b));
    largest = std::max(largest, std::abs(b));
  }
  return largest > 0 ? difference / largest : difference;
}

std::vector<float> values_of(const float* flat, const ParameterView& view) {
  const float* begin = flat + view.offset;
  return {begin, begin + view.rows * view.cols};
}

}  // namespace poros
