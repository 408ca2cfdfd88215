// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/low_rank.hpp"
#include "kernels/philox.hpp"
#include "kernels/rotary.hpp"
#include "plan/step_buffers.hpp"
#include "train/executor_impl.hpp"

namespace poros {
namespace {

Stream with_threads(Stream stream, const NumericalPlan& plan) {
  stream.threads = plan.device.threads;
  return stream;
}

/// Room for the arrays of a sweep: six and one a rotary table, and document offsets, which can be
/// twice as many.
std::uint64_t sweep_array_bytes(const NumericalPlan& plan, const Architecture& architecture) {
  const auto arrays = static_cast<std::uint64_t>(9 + architecture.rope_tables.size());
  return arrays * (static_cast<std::uint64_t>(plan.row_capacity() + 1) * 4 + 256);
}

/// The dropout counter has room for so many.
void check_dropout_limits(const NumericalPlan& plan) {
  if (plan.dropout == 0) return;
  if (plan.micro_batches > kMaxMicroBatches || plan.layers > kMaxDropoutLayers) {
    fail(Fault::input,
         "lora.dropout: masks are keyed for at most {} micro-batches and {} layers; here are {} "
         "and {}",
         kMaxMicroBatches, kMaxDropoutLayers, plan.micro_batches, plan.layers);
  }
}

}  // namespace

Executor::Impl::Impl(const BaseStore& base_store, const NumericalPlan& numerical_plan,
                     const MemoryPlan& memory_plan, const Adapter& first_adapter, const Stream& on,
                     const ExecutorDebug& debug_settings)
    : base(base_store),
      architecture(base_store.architecture()),
      plan(numerical_plan),
      memory(memory_plan),
      debug(debug_settings),
      stream(with_threads(on, numerical_plan)),
      adapter_config(first_adapter.config),
      places(first_adapter.places),
      arena(memory, stream),
      work(arena, memory, architecture.rope_tables.size()),
      gemm(make_gemm()),
      flash(stream.device == DeviceKind::cuda ? cuda_device().make_flash() : nullptr),
      context(make_context()),
      embedding(base.embedding(), stream),
      layers(describe_layers(
          base, places, memory,
          {arena.find(plan.compute == ComputeType::bf16 ? "adapter.compute" : "adapter.master"),
           plan.compute == ComputeType::bf16, arena.find_as<float>("adapter.gradient"),
           thin_products()},
          context.dtype)),
      inputs(memory, arena, stream,
             static_cast<std::uint64_t>(plan.row_capacity() * architecture.hidden) *
                 bytes_of(context.dtype)),
      head(context, base, own_head(), arena),
      sweep_upload(sweep_array_bytes(plan, architecture), stream),
      runner(context, architecture, tokens),
      residual_output(arena.at("residual.output")),
      residual_gradient(arena.at("residual.gradient")),
      ids(arena.as<std::int32_t>("sweep.ids")),
      targets{arena.as<std::int32_t>("sweep.targets"), arena.as<std::int32_t>("sweep.target_ids")} {
  const double begin = monotonic_s();
  check_dropout_limits(plan);
  context.gradient_stride = static_cast<std::int64_t>(arena.bytes_of("residual.gradient")) /
                            (plan.row_capacity() * bytes_of(plan.compute));
  tokens.documents = arena.as<std::int32_t>("sweep.documents");
  tokens.micro_batch = arena.as<std::int32_t>("sweep.micro_batch");
  tokens.row_index = arena.as<std::int32_t>("sweep.row_index");
  for (std::size_t table = 0; table < architecture.rope_tables.size(); ++table) {
    tokens.positions.push_back(arena.as<std::int32_t>("sweep.positions." + std::to_string(table)));
  }
  if (arena.find("sweep.document_offsets") != nullptr) {
    tokens.document_offsets = arena.as<std::int32_t>("sweep.document_offsets");
  }
  fill_rotary_tables();
  fill_adapter(first_adapter);
  list_turned();
  make_views();
  residency = make_residency(base, memory, arena, stream, debug);
  synchronise(stream);
  load_s = monotonic_s() - begin;
}

const HostRows& Executor::Impl::own_head() {
  const EndTensor table = base.head();
  if (table.data == base.embedding().data) return embedding;
  return head_rows.emplace(table, stream);
}

std::unique_ptr<GemmEngine> Executor::Impl::make_gemm() const {
  std::byte* workspace = arena.find("gemm.workspace");
  const std::uint64_t bytes = workspace != nullptr ? arena.bytes_of("gemm.workspace") : 0;
  if (stream.device == DeviceKind::cuda) return cuda_device().make_gemm(stream, workspace, bytes);
  return make_cpu_gemm(stream, reinterpret_cast<float*>(workspace), bytes);
}

StepContext Executor::Impl::make_context() {
  StepContext made;
  made.stream = stream;
  made.gemm = gemm.get();
  made.flash = flash.get();
  made.plan = &plan;
  made.work = &work;
  made.dtype = dtype_of(plan.compute);
  return made;
}

void Executor::Impl::fill_rotary_tables() {
  for (std::size_t index = 0; index < architecture.rope_tables.size(); ++index) {
    const RopeTable& table = architecture.rope_tables[index];
    const std::int64_t rows = rotary_table_rows(plan, table);
    const std::size_t half = table.inv_freq.size();
    const std::size_t short_size = static_cast<std::size_t>(plan.seq_len) * half;
    std::vector<float> cosine(static_cast<std::size_t>(rows) * half), sine(cosine.size());
    build_rotary_table(table.inv_freq, table.attention_factor, plan.seq_len, cosine.data(),
                       sine.data());
    if (rows > plan.seq_len) {
      build_rotary_table(table.inv_freq_long, table.attention_factor, plan.seq_len,
                         cosine.data() + short_size, sine.data() + short_size);
    }
    const std::string suffix = std::to_string(index);
    copy_bytes(stream, arena.at("rotary.cos." + suffix), cosine.data(), cosine.size() * 4);
    copy_bytes(stream, arena.at("rotary.sin." + suffix), sine.data(), sine.size() * 4);
    work.rotary[index].rows = rows;
  }
}

void Executor::Impl::fill_adapter(const Adapter& adapter) {
  // A fresh mapping is zero: gradients, moments and the padding between tensors need no clearing.
  if (places.size() != memory.adapters.size() || places.size() != adapter.weights.size()) {
    fail(Fault::run, "the adapter has {} places and {} weights, the memory plan {}", places.size(),
         adapter.weights.size(), memory.adapters.size());
  }
  float* master = arena.find_as<float>("adapter.master");
  for (std::size_t index = 0; index < places.size(); ++index) {
    const LoraPlace& place = places[index];
    const LoraWeights& weights = adapter.weights[index];
    const AdapterSlice& slice = memory.adapters[index];
    if (weights.a.size() != static_cast<std::size_t>(place.rank * place.in) ||
        weights.b.size() != static_cast<std::size_t>(place.rank * place.out)) {
      fail(Fault::run, "{}: the adapter's weights have not the size of their place",
           place.peft_name);
    }
    copy_bytes(stream, master + slice.a_offset, weights.a.data(), weights.a.size() * sizeof(float));
    copy_bytes(stream, master + slice.b_offset, weights.b.data(), weights.b.size() * sizeof(float));
  }
}

void Executor::Impl::list_turned() {
  for (const LayerWeights& layer : layers) {
    Turned of_layer;
    of_layer.first = static_cast<std::int64_t>(turned_list.size()) / 3;
    const std::int64_t begin = memory.layer_adapters[static_cast<std::size_t>(layer.index)].begin;
    for (const LinearGroup* group :
         {&layer.attention_in, &layer.attention_out, &layer.mlp_in, &layer.mlp_down}) {
      for (const LoraBranch& branch : group->lora.branches) {
        if (!branch.turned) continue;
        turned_list.insert(turned_list.end(),
                           {branch.b_gradient - arena.find_as<float>("adapter.gradient") - begin,
                            branch.out, branch.rank});
        of_layer.most_out = std::max(of_layer.most_out, branch.out);
        ++of_layer.count;
      }
    }
    turned.push_back(of_layer);
  }
  if (turned_list.empty()) return;
  copy_bytes(stream, arena.at("adapter.turned"), turned_list.data(),
             turned_list.size() * sizeof(std::int64_t));
}

void Executor::Impl::load_adapter(std::int64_t layer) {
  const AdapterRange& range = memory.layer_adapters[static_cast<std::size_t>(layer)];
  if (plan.compute == ComputeType::fp32 || range.end == range.begin) return;
  const float* master = arena.as<float>("adapter.master") + range.begin;
  void* compute = arena.at("adapter.compute");
  cast(stream, master, DType::f32, compute, context.dtype, range.end - range.begin);
  const Turned& list = turned[static_cast<std::size_t>(layer)];
  low_rank_transpose(stream, {.x = master,
                              .y = compute,
                              .list = arena.as<std::int64_t>("adapter.turned") + 3 * list.first,
                              .count = list.count,
                              .most_out = list.most_out,
                              .dtype = context.dtype});
}

void Executor::Impl::make_views() {
  for (std::size_t index = 0; index < places.size(); ++index) {
    const LoraPlace& place = places[index];
    const AdapterSlice& slice = memory.adapters[index];
    views.push_back({place.peft_name + ".lora_A.weight", place.rank, place.in, slice.a_offset});
    views.push_back({place.peft_name + ".lora_B.weight", place.out, place.rank, slice.b_offset});
  }
}

}  // namespace poros
