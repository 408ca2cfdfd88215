// SPDX-License-Identifier: Apache-2.0
// The parts of an Executor. Internal to src/train.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "train/arena.hpp"
#include "train/attention_flash.hpp"
#include "train/executor.hpp"
#include "train/host_rows.hpp"
#include "train/layer.hpp"
#include "train/layer_inputs.hpp"
#include "train/loss_head.hpp"
#include "train/phase_clock.hpp"
#include "train/residency.hpp"
#include "train/sweep.hpp"
#include "train/sweep_upload.hpp"

namespace poros {

/// Members are made in this order: later ones hold references to earlier ones.
struct Executor::Impl {
  Impl(const BaseStore& base_store, const NumericalPlan& numerical_plan,
       const MemoryPlan& memory_plan, const Adapter& first_adapter, const Stream& on,
       const ExecutorDebug& debug_settings);

  void fill_rotary_tables();
  void fill_adapter(const Adapter& adapter);
  void make_views();
  /// Which B matrices lie turned in "adapter.compute".
  void list_turned();
  /// A layer's adapters in compute dtype, from the master weights.
  void load_adapter(std::int64_t layer);
  [[nodiscard]] bool thin_products() const {
    return stream.device == DeviceKind::cuda && plan.compute == ComputeType::bf16;
  }
  std::unique_ptr<GemmEngine> make_gemm() const;
  const HostRows& own_head();
  StepContext make_context();

  /// Copies a sweep's arrays into the arena and gathers its embeddings.
  void upload(const SweepLayout& sweep);
  /// All layers, from the embeddings to residual_output. `keep`: their inputs wait for a backward.
  void forward(bool keep);
  void begin_phase(Phase phase) const {
    if (phases != nullptr) phases->begin(phase);
  }
  /// All layers, from residual_gradient down.
  void backward();
  const BaseStore& base;
  const Architecture& architecture;
  NumericalPlan plan;
  MemoryPlan memory;
  ExecutorDebug debug;
  Stream stream;
  Json adapter_config;
  std::vector<LoraPlace> places;
  std::vector<ParameterView> views;

  Arena arena;
  Workspace work;
  std::unique_ptr<GemmEngine> gemm;
  std::unique_ptr<FlashAttention> flash;  // CUDA only
  StepContext context;
  HostRows embedding;
  std::optional<HostRows> head_rows;  // where the head is not the embedding
  std::vector<LayerWeights> layers;
  LayerInputs inputs;
  LossHead head;
  SweepTokens tokens;
  SweepUpload sweep_upload;
  LayerRunner runner;
  std::unique_ptr<Residency> residency;
  std::byte *residual_output, *residual_gradient;
  std::int32_t* ids;
  HeadTargets targets;

  struct Turned {
    std::int64_t first = 0, count = 0, most_out = 0;  // in the list "adapter.turned"
  };
  std::vector<Turned> turned;             // one a layer
  std::vector<std::int64_t> turned_list;  // {offset from the layer's begin, out, rank} each
  std::int64_t supervised = 0;            // of the last step
  PhaseClock* phases = nullptr;
  double load_s = 0;
};

}  // namespace poros
