// SPDX-License-Identifier: Apache-2.0
// What the executor's tests share: a base from a checkpoint folder, settings, an executor over
// them, and comparisons that fail on NaN.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/adapter.hpp"
#include "model/base_store.hpp"
#include "plan/memory_plan.hpp"
#include "plan/numerical_plan.hpp"
#include "train/executor.hpp"

namespace poros {

/// tests/goldens.
[[nodiscard]] std::filesystem::path goldens();

/// A folder that this process alone uses; removed at its end.
[[nodiscard]] const std::filesystem::path& scratch_folder();

/// A base of a checkpoint folder, its cache in the scratch folder.
[[nodiscard]] std::unique_ptr<BaseStore> golden_base(const std::filesystem::path& checkpoint,
                                                     const std::string& precision);

/// A base with random weights from the text of a config.json (no checkpoint needed).
[[nodiscard]] std::unique_ptr<BaseStore> random_base(const std::string& config_json,
                                                     const std::string& precision);

struct RunSettings {
  std::int64_t seq_len = 24, batch_size = 1, micro_batches = 1;
  std::string compute_dtype = "fp32";
  std::string accumulation = "block_major";
  std::int64_t sweep_rows = 0;  // 0: the default
  double dropout = 0;
  int threads = 1;
  bool cuda = false;  // on the first GPU
  ResidencySettings residency;
  ExecutorDebug debug;
};

[[nodiscard]] NumericalPlan plan_for(const BaseStore& base, const RunSettings& settings);

[[nodiscard]] std::unique_ptr<Executor> make_executor(const BaseStore& base, const Adapter& adapter,
                                                      const RunSettings& settings);

/// An adapter of all linears (or of those named) with A and B random and not zero.
[[nodiscard]] Adapter lively_adapter(const BaseStore& base, std::int64_t rank,
                                     const std::vector<std::string>& targets = {});

/// Rows of random tokens. With `documents`, every row begins with two short documents and the last
/// row ends in padding.
struct TokenRows {
  std::vector<std::uint32_t> ids;
  std::vector<std::uint8_t> flags;
  [[nodiscard]] StepBatch batch() const { return {ids, flags}; }
};
[[nodiscard]] TokenRows random_rows(std::int64_t rows, std::int64_t seq_len, std::int64_t vocab,
                                    bool documents, std::uint64_t seed);

/// f32 tensors of a safetensors file by name.
[[nodiscard]] std::map<std::string, std::vector<float>> read_f32(const std::filesystem::path& path);

/// max |got - wanted| / max |wanted|; infinite when sizes differ or either is not finite.
[[nodiscard]] double relative_difference(const std::vector<float>& got,
                                         const std::vector<float>& wanted);

/// A view's values out of a flat buffer.
[[nodiscard]] std::vector<float> values_of(const float* flat, const ParameterView& view);

}  // namespace poros
