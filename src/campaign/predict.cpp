// SPDX-License-Identifier: Apache-2.0
#include "campaign/predict.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>

#include "base/error.hpp"
#include "campaign/arms.hpp"
#include "campaign/known_models.hpp"
#include "model/adapter.hpp"
#include "model/shape_store.hpp"
#include "plan/gpu_cards.hpp"
#include "plan/memory_plan.hpp"
#include "plan/numerical_plan.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

// Fitted to campaigns/h200-step-bench (0.5B, 7B, 32B within 3 %) and, for Unsloth, to
// campaigns/h200-peers (times within 12 %, memory within 16 %). PEFT's are from runs of PEFT 0.21
// on the same H200 that left no receipts (0.5B and 7B at both shapes: times within 20 %, memory
// within 10 %); accelerate_offload is taken for PEFT with copies, nothing of it was measured.
constexpr double kMatrixShare = 0.78;    // of the card's matrix rate, in the trainer's products
constexpr double kLayerWork_s = 1.0e-3;  // beside the products, 4096 tokens at 4800 GB/s
// Launches and Python, of a layer and micro-batch.
constexpr double kUnslothLayer_s = 9.0e-3;
constexpr double kPeftLayer_s = 12.3e-3, kPeftLayerKept_s = 7.0e-3;  // recomputed; all kept
constexpr double kPageable_gb_s = 6;  // accelerate's hooks copy from pageable memory
constexpr double kUnslothBuffers = 0.3e9;
constexpr double kOwnStart_s = 8, kPeerStart_s = 45;
constexpr double kOwnRead_gb_s = 2, kPeerRead_gb_s = 0.5;
constexpr std::int64_t kOwnProcessBytes = 1'500'000'000, kPeerProcessBytes = 4'000'000'000;
constexpr double kLibraryShardBytes = 5e9;  // what a library holds of a checkpoint while it loads

/// What of a model the estimates need.
struct Sizes {
  double linear_parameters = 0, active_parameters = 0;  // of the layers' linears; used by a token
  double base_bytes = 0, layer_bytes = 0;               // as stored, layers and all; layers alone
  double head_bytes = 0;
};

Sizes sizes_of(const BaseStore& base) {
  const Architecture& architecture = base.architecture();
  Sizes sizes;
  for (std::int64_t i = 0; i < architecture.layer_count(); ++i) {
    const LayerShape& layer = architecture.layers[static_cast<std::size_t>(i)];
    for (const LinearShape& linear : layer.linears) {
      const double parameters = static_cast<double>(linear.out) * static_cast<double>(linear.in);
      const bool expert = linear.name.find(".experts.") != std::string::npos;
      const double used = expert ? static_cast<double>(layer.mlp.experts_per_token) /
                                       static_cast<double>(layer.mlp.experts)
                                 : 1;
      sizes.linear_parameters += parameters;
      sizes.active_parameters += used * parameters;
    }
    sizes.layer_bytes += static_cast<double>(base.layout(i).bytes);
  }
  sizes.head_bytes =
      2.0 * static_cast<double>(architecture.vocab) * static_cast<double>(architecture.hidden);
  sizes.base_bytes =
      sizes.layer_bytes + sizes.head_bytes * (architecture.tied_embeddings ? 1.0 : 2.0);
  return sizes;
}

struct StepShape {
  double tokens = 0, micro_batches = 0, layers = 0;
};

StepShape step_shape(const CellSpec& cell, const Architecture& architecture) {
  const TrainingSpec& training = cell.training;
  double micro = static_cast<double>(training.gradient_accumulation_steps);
  const double tokens =
      micro * static_cast<double>(training.batch_size) * static_cast<double>(training.seq_len);
  if (cell.peer.best_shape) micro = 1;
  return {tokens, micro, static_cast<double>(architecture.layer_count())};
}

/// Whether the arm computes a layer again in the backward: the own arms always do.
bool recomputes(const CellSpec& cell) {
  return is_own_arm(cell.method) || cell.peer.gradient_checkpointing;
}

/// Seconds of the matrix products: forward, recomputation and input gradients of every linear (2
/// FLOPs a parameter and token each), the head's logits and their gradient (4), attention.
double matrix_s(const CellSpec& cell, const Architecture& architecture, const Sizes& sizes,
                const GpuCard& card) {
  const StepShape step = step_shape(cell, architecture);
  const AttentionShape& attention = architecture.layers.front().attention;
  const double head = static_cast<double>(architecture.vocab * architecture.hidden);
  const double forwards = recomputes(cell) ? 2 : 1;
  // Causal products of rows x seq_len x head_dim: two a forward, five in the backward.
  const double attention_flops = (2 * forwards + 5) * step.layers *
                                 static_cast<double>(cell.training.seq_len) *
                                 static_cast<double>(attention.heads * attention.head_dim);
  const double flops =
      step.tokens * (2 * (forwards + 1) * sizes.active_parameters + 4 * head + attention_flops);
  return flops / (card.bf16_tflops * 1e12 * kMatrixShare);
}

double own_step_s(const CellSpec& cell, const Architecture& architecture, const Sizes& sizes,
                  const MemoryPlan& memory, double sweeps, const GpuCard& card) {
  const StepShape step = step_shape(cell, architecture);
  const double beside =
      kLayerWork_s * step.layers * (step.tokens / 4096) * (4800 / card.memory_gb_s);
  const double compute = matrix_s(cell, architecture, sizes, card) + beside;
  if (cell.method == "resident") return compute;
  double streamed = 0;
  for (const BlockPlan& block : memory.blocks) {
    if (!block.resident) streamed += static_cast<double>(block.bytes);
  }
  const double link = sweeps * (2 * streamed + sizes.head_bytes) / (card.host_gb_s * 1e9);
  return std::max(1.01 * compute, link);
}

double peer_step_s(const CellSpec& cell, const Architecture& architecture, const Sizes& sizes,
                   double offloaded_bytes, const GpuCard& card) {
  const StepShape step = step_shape(cell, architecture);
  const double layer_s = cell.method == "unsloth" ? kUnslothLayer_s
                         : recomputes(cell)       ? kPeftLayer_s
                                                  : kPeftLayerKept_s;
  const double launches = layer_s * step.layers * step.micro_batches;
  // Forward, recomputation and backward each bring the offloaded layers.
  const double copies = 3 * step.micro_batches * offloaded_bytes / (kPageable_gb_s * 1e9);
  return launches + matrix_s(cell, architecture, sizes, card) + copies;
}

/// A library keeps base, 16-bit ends and the adapters with their gradients and moments; of each
/// layer its input, or without checkpointing what its backward reads; one layer's activations or a
/// micro-batch's logits (16-bit, as float, and the gradients of both). Unsloth moves the inputs to
/// the host and makes the logits in pieces.
double peer_vram_bytes(const CellSpec& cell, const Architecture& architecture, const Sizes& sizes,
                       double adapter_parameters) {
  const StepShape step = step_shape(cell, architecture);
  const double rows = step.tokens / step.micro_batches;
  const double hidden = static_cast<double>(architecture.hidden);
  const MlpShape& mlp = architecture.layers.front().mlp;
  const double width = static_cast<double>(mlp.intermediate) *
                       static_cast<double>(std::max<std::int64_t>(1, mlp.experts_per_token));
  const double layer = 2 * rows * (5 * width + 12 * hidden);
  const double inputs = 2 * rows * hidden * step.layers;
  const double logits = 12 * rows * static_cast<double>(architecture.vocab);
  double activations = 0;
  if (cell.method == "unsloth") {
    activations = kUnslothBuffers + layer * (recomputes(cell) ? 1 : step.layers);
  } else if (recomputes(cell)) {
    activations = inputs + std::max(layer, logits);
  } else {
    activations = layer * step.layers + logits;
  }
  return sizes.base_bytes + 16 * adapter_parameters + activations;
}

void predict_own(const CellSpec& cell, const BaseStore& base, const Sizes& sizes,
                 const GpuCard* card, CellPrediction& prediction) {
  const Architecture& architecture = base.architecture();
  const bool cuda = cell.device == "cuda";
  const DeviceModel device =
      cuda ? cuda_device_like(card == nullptr ? 0 : card->multiprocessors) : cpu_device_model(1);
  const NumericalPlan plan =
      make_numerical_plan(architecture, cell.training, cell.lora, cell.poros, device);
  const MemoryPlan memory = make_memory_plan(base, plan, lora_places(architecture, cell.lora),
                                             residency_settings(cell.method, cell.poros));
  const auto on_host = static_cast<std::int64_t>(memory.pinned_bytes + memory.host_bytes);
  if (cuda) {
    prediction.vram_bytes = static_cast<std::int64_t>(memory.device_bytes());
    prediction.host_bytes = on_host + kOwnProcessBytes;
  } else {
    prediction.host_bytes = on_host + static_cast<std::int64_t>(memory.device_bytes());
  }
  if (card == nullptr) return;
  prediction.s_per_step =
      own_step_s(cell, architecture, sizes, memory, static_cast<double>(plan.sweeps), *card);
  prediction.s_per_pass = kOwnStart_s + sizes.base_bytes / (kOwnRead_gb_s * 1e9) +
                          *prediction.s_per_step * static_cast<double>(cell.training.steps);
}

void predict_peer(const CellSpec& cell, const BaseStore& base, const Sizes& sizes,
                  const GpuCard* card, CellPrediction& prediction) {
  if (cell.device != "cuda") return;
  const Architecture& architecture = base.architecture();
  double adapters = 0;
  for (const LoraPlace& place : lora_places(architecture, cell.lora)) {
    adapters += static_cast<double>(place.rank * (place.in + place.out));
  }
  const double all = peer_vram_bytes(cell, architecture, sizes, adapters);
  double offloaded = 0;
  if (cell.method == "accelerate_offload") {
    const double capacity =
        card == nullptr ? all : static_cast<double>(card->bytes() - kDriverBytes);
    const double fraction = cell.peer.offload_fraction.value_or(
        std::clamp((all - capacity) / sizes.layer_bytes, 0.0, 1.0));
    offloaded = fraction * sizes.layer_bytes;
  }
  prediction.vram_bytes = static_cast<std::int64_t>(all - offloaded);
  prediction.host_bytes =
      kPeerProcessBytes +
      static_cast<std::int64_t>(offloaded + std::min(kLibraryShardBytes, 4 * sizes.base_bytes));
  if (card == nullptr) return;
  prediction.s_per_step = peer_step_s(cell, architecture, sizes, offloaded, *card);
  prediction.s_per_pass = kPeerStart_s + sizes.base_bytes / (kPeerRead_gb_s * 1e9) +
                          *prediction.s_per_step * static_cast<double>(cell.training.steps);
}

void judge_fit(const CellSpec& cell, const GpuCard* card, CellPrediction& prediction) {
  if (!prediction.vram_bytes) return;
  std::int64_t room = 0;
  if (card != nullptr) {
    room = static_cast<std::int64_t>(card->bytes() - kDriverBytes);
  } else if (cell.hardware.vram_gb > 0) {
    room = static_cast<std::int64_t>(cell.hardware.vram_gb * 1e9) -
           static_cast<std::int64_t>(kDriverBytes);
  }
  if (cell.hardware.vram_cap_mb) {
    const std::int64_t cap = *cell.hardware.vram_cap_mb << 20;
    room = room == 0 ? cap : std::min(room, cap);
  }
  if (room == 0) return;
  prediction.fits = *prediction.vram_bytes <= room;
  if (!*prediction.fits) {
    prediction.why = fmt::format("needs {:.1f} GB, {:.1f} GB are there",
                                 static_cast<double>(*prediction.vram_bytes) / 1e9,
                                 static_cast<double>(room) / 1e9);
  }
}

struct KnownBase {
  std::unique_ptr<BaseStore> base;
  Sizes sizes;
  std::string why;  // there is none
};

/// The shapes of a model in a precision, read once.
const KnownBase& known_base(const CellSpec& cell) {
  static std::map<std::string, KnownBase> known;
  const std::string id = fmt::format("{}\n{}\n{}\n{}", cell.model.path, cell.model.model_id,
                                     cell.model.revision, cell.precision);
  if (const auto found = known.find(id); found != known.end()) return found->second;
  KnownBase entry;
  try {
    entry.base = shape_store(known_architecture(cell.model), parse_precision(cell.precision));
    entry.sizes = sizes_of(*entry.base);
  } catch (const Error& error) {
    entry.why = error.what();
  }
  return known.emplace(id, std::move(entry)).first->second;
}

CellPrediction predict_anew(const CellSpec& cell) {
  CellPrediction prediction;
  const KnownBase& model = known_base(cell);
  if (model.base == nullptr) {
    prediction.why = model.why;
    return prediction;
  }
  const GpuCard* card = cell.device == "cuda"
                            ? find_gpu_card(cell.hardware.gpu_name, cell.hardware.vram_gb)
                            : nullptr;
  try {
    const auto arm = is_own_arm(cell.method) ? predict_own : predict_peer;
    arm(cell, *model.base, model.sizes, card, prediction);
  } catch (const Error& error) {  // a setting that does not fit the model, a budget too small
    prediction.fits = false;
    prediction.why = error.what();
    return prediction;
  }
  judge_fit(cell, card, prediction);
  if (!prediction.s_per_step && prediction.why.empty()) {
    prediction.why = cell.device == "cuda"
                         ? fmt::format("nothing is known of the GPU \"{}\"", cell.hardware.gpu_name)
                         : "times on a CPU are not predicted";
  }
  return prediction;
}

/// The cell with one step and none of the settings that cost neither memory nor time, so that a
/// sweep of seeds or learning rates is planned once.
CellSpec shape_of(CellSpec cell) {
  const TrainingSpec& from = cell.training;
  TrainingSpec shape;
  shape.steps = 1;
  shape.seq_len = from.seq_len;
  shape.batch_size = from.batch_size;
  shape.gradient_accumulation_steps = from.gradient_accumulation_steps;
  shape.compute_dtype = from.compute_dtype;
  shape.packing = from.packing;
  cell.training = shape;
  return cell;
}

}  // namespace

CellPrediction predict(const CellSpec& cell) {
  static std::mutex mutex;
  static std::map<std::string, CellPrediction> known;
  const std::scoped_lock lock(mutex);
  const CellSpec shape = shape_of(cell);
  const std::string id = fmt::format("{}\n{}\n{}", dump_json(canonical_work(shape)),
                                     cell.hardware.vram_gb, cell.model.path);
  auto found = known.find(id);
  if (found == known.end()) found = known.emplace(id, predict_anew(shape)).first;
  CellPrediction prediction = found->second;
  if (prediction.s_per_step) {  // what is known is a pass of one step
    *prediction.s_per_pass += *prediction.s_per_step * static_cast<double>(cell.training.steps - 1);
  }
  return prediction;
}

std::optional<double> predicted_hours(const std::vector<CellSpec>& cells, std::int64_t n_passes,
                                      const std::string& gpu_name) {
  double seconds = 0;
  for (const CellSpec& cell : cells) {
    if (cell.hardware.gpu_name != gpu_name) continue;
    const auto pass_s = predict(cell).s_per_pass;
    if (!pass_s) return std::nullopt;
    seconds += *pass_s * static_cast<double>(n_passes);
  }
  return seconds / 3600;
}

}  // namespace poros
