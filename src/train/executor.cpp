// SPDX-License-Identifier: Apache-2.0
#include "train/executor.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "model/token_file.hpp"
#include "train/executor_impl.hpp"

namespace poros {
namespace {

/// Tokens of the step that the loss is a mean over.
std::int64_t count_supervised(std::span<const std::uint8_t> flags) {
  return std::count_if(flags.begin(), flags.end(), [](std::uint8_t flag) {
    return (flag & TokenFile::kSupervised) != 0 && (flag & TokenFile::kPadding) == 0;
  });
}

/// Blocks in the order of `sweeps` sweeps.
std::vector<std::int64_t> visits_of(std::int64_t blocks, std::int64_t sweeps, bool backward) {
  std::vector<std::int64_t> visits;
  for (std::int64_t sweep = 0; sweep < sweeps; ++sweep) {
    for (std::int64_t block = 0; block < blocks; ++block) visits.push_back(block);
    if (!backward) continue;
    for (std::int64_t block = blocks - 1; block >= 0; --block) visits.push_back(block);
  }
  return visits;
}

}  // namespace

void Executor::Impl::upload(const SweepLayout& sweep) {
  const auto put = [&](const std::int32_t* to, const std::vector<std::int32_t>& from) {
    sweep_upload.put(const_cast<std::int32_t*>(to), from);
  };
  sweep_upload.begin();
  put(ids, sweep.ids);
  put(tokens.documents, sweep.documents);
  put(tokens.micro_batch, sweep.micro_batch);
  put(tokens.row_index, sweep.row_index);
  put(targets.targets, sweep.targets);
  put(targets.target_ids, sweep.target_ids);
  for (std::size_t table = 0; table < tokens.positions.size(); ++table) {
    put(tokens.positions[table], sweep.positions[table]);
  }
  if (tokens.document_offsets != nullptr) put(tokens.document_offsets, sweep.document_offsets);
  sweep_upload.end();
  tokens.tokens = sweep.tokens;
  tokens.rows = sweep.rows;
  tokens.host_document_begin = sweep.document_begin;
  tokens.document_slots = static_cast<std::int64_t>(sweep.document_offsets.size()) - 1;
  targets.host_target_ids = sweep.target_ids.data();
  embedding.gather(stream, {.index = ids,
                            .host_index = sweep.ids.data(),
                            .rows = sweep.rows,
                            .y = inputs.write(0),
                            .y_dtype = context.dtype,
                            .factor = architecture.embed_scale});
  head.prefetch();
}

void Executor::Impl::forward(bool keep) {
  for (const BlockPlan& block : memory.blocks) {
    const std::byte* bytes = residency->acquire();
    for (std::int64_t index = 0; index < block.layers; ++index) {
      delay(stream, debug.delay_compute_s);
      const std::int64_t layer = block.first_layer + index;
      if (keep) inputs.keep(layer);
      load_adapter(layer);
      void* output = layer + 1 < plan.layers ? inputs.write(layer + 1) : residual_output;
      runner.forward(layers[static_cast<std::size_t>(layer)],
                     bytes + block.layer_offsets[static_cast<std::size_t>(index)],
                     inputs.write(layer), output);
    }
    residency->release();
  }
}

void Executor::Impl::backward() {
  for (auto block = memory.blocks.rbegin(); block != memory.blocks.rend(); ++block) {
    const std::byte* bytes = residency->acquire();
    for (std::int64_t index = block->layers - 1; index >= 0; --index) {
      delay(stream, debug.delay_compute_s);
      const std::int64_t layer = block->first_layer + index;
      load_adapter(layer);
      runner.backward(layers[static_cast<std::size_t>(layer)],
                      bytes + block->layer_offsets[static_cast<std::size_t>(index)],
                      inputs.read(layer), residual_gradient, layer > 0);
    }
    residency->release();
  }
}

Executor::Executor(const BaseStore& base, const NumericalPlan& numerical, const MemoryPlan& memory,
                   const Adapter& adapter, Stream stream, const ExecutorDebug& debug) {
  if (!numerical.device.cuda) prepare_cpu_math(numerical.device);
  impl_ = std::make_unique<Impl>(base, numerical, memory, adapter, stream, debug);
}

Executor::~Executor() {
  if (impl_ == nullptr) return;
  try {
    synchronise(impl_->stream);  // host buffers and slots must outlast the work on them
  } catch (const Error&) {       // the device is lost; the process is about to say so
  }
}

StepOutcome Executor::run_step(const StepBatch& batch, std::int64_t step) {
  Impl& self = *impl_;
  const NumericalPlan& plan = self.plan;
  const std::int64_t rows = plan.micro_batches * plan.batch_size;
  const auto expected = static_cast<std::size_t>(rows * plan.seq_len);
  if (batch.ids.size() != expected || batch.flags.size() != expected) {
    fail(Fault::input, "a step takes {} rows of {} tokens; it was given {} ids and {} flags", rows,
         plan.seq_len, batch.ids.size(), batch.flags.size());
  }
  // All sweeps are laid out before the first block is touched: a bad token must not end a step in
  // its middle.
  std::vector<SweepLayout> sweeps;
  const std::int64_t sweep_rows = plan.micro_batches_per_sweep * plan.batch_size;
  StepOutcome outcome;
  for (std::int64_t row = 0; row < rows; row += sweep_rows) {
    const auto offset = static_cast<std::size_t>(row * plan.seq_len);
    const auto count = static_cast<std::size_t>(std::min(sweep_rows, rows - row) * plan.seq_len);
    sweeps.push_back(lay_out_sweep(self.architecture, plan, batch.ids.subspan(offset, count),
                                   batch.flags.subspan(offset, count), row / plan.batch_size));
    outcome.tokens += sweeps.back().tokens;
  }
  outcome.supervised_tokens = count_supervised(batch.flags);
  self.supervised = outcome.supervised_tokens;
  if (self.memory.flat_elements > 0) {
    fill_bytes(self.stream, gradient(), 0,
               static_cast<std::uint64_t>(self.memory.flat_elements) * sizeof(float));
  }
  if (outcome.supervised_tokens == 0) return outcome;

  self.context.dropout = plan.dropout;
  self.context.step = step;
  self.residency->begin(visits_of(static_cast<std::int64_t>(self.memory.blocks.size()),
                                  static_cast<std::int64_t>(sweeps.size()), true));
  const auto inv_supervised =
      static_cast<float>(1.0 / static_cast<double>(outcome.supervised_tokens));
  for (std::size_t index = 0; index < sweeps.size(); ++index) {
    self.begin_phase(Phase::upload);
    self.upload(sweeps[index]);
    self.begin_phase(Phase::forward);
    self.forward(true);
    self.begin_phase(Phase::head);
    self.head.loss(self.tokens.rows, self.targets, self.residual_output, self.residual_gradient,
                   inv_supervised, index == 0);
    self.begin_phase(Phase::backward);
    self.backward();
  }
  self.begin_phase(Phase::between);
  return outcome;
}

float Executor::loss() {
  if (impl_->supervised == 0) return 0;
  double total = 0;
  read_back(impl_->stream, &total, impl_->head.total(), sizeof(total));
  return static_cast<float>(total / static_cast<double>(impl_->supervised));
}

std::vector<RowLoss> Executor::evaluate(std::span<const std::uint32_t> ids,
                                        std::span<const std::uint8_t> flags) {
  Impl& self = *impl_;
  const auto seq_len = static_cast<std::size_t>(self.plan.seq_len);
  if (ids.size() != flags.size() || ids.size() % seq_len != 0) {
    fail(Fault::input, "evaluate takes whole rows of {} tokens; it was given {} ids and {} flags",
         seq_len, ids.size(), flags.size());
  }
  self.context.dropout = 0;
  std::vector<RowLoss> losses(ids.size() / seq_len);
  const auto sweep_rows =
      static_cast<std::size_t>(self.plan.micro_batches_per_sweep * self.plan.batch_size);
  std::vector<float> row_loss;
  for (std::size_t row = 0; row < losses.size(); row += sweep_rows) {
    const std::size_t count = std::min(sweep_rows, losses.size() - row) * seq_len;
    const SweepLayout sweep =
        lay_out_sweep(self.architecture, self.plan, ids.subspan(row * seq_len, count),
                      flags.subspan(row * seq_len, count), 0);
    self.residency->begin(
        visits_of(static_cast<std::int64_t>(self.memory.blocks.size()), 1, false));
    self.upload(sweep);
    self.forward(false);
    self.head.loss(sweep.rows, self.targets, self.residual_output, nullptr, 0, true);
    row_loss.resize(static_cast<std::size_t>(sweep.rows));
    read_back(self.stream, row_loss.data(), self.head.row_loss(), row_loss.size() * sizeof(float));
    for (std::size_t token = 0; token < static_cast<std::size_t>(sweep.tokens); ++token) {
      if (sweep.targets[token] < 0) continue;
      RowLoss& loss = losses[row + static_cast<std::size_t>(sweep.source_row[token])];
      loss.sum += static_cast<double>(row_loss[token]);
      ++loss.tokens;
    }
  }
  self.supervised = 0;
  return losses;
}

std::vector<float> Executor::logits(std::span<const std::uint32_t> ids, bool last_only) {
  Impl& self = *impl_;
  const auto seq_len = static_cast<std::size_t>(self.plan.seq_len);
  if (ids.empty() || ids.size() > seq_len) {
    fail(Fault::input, "logits takes 1 to {} tokens; it was given {}", seq_len, ids.size());
  }
  std::vector<std::uint32_t> padded(ids.begin(), ids.end());
  std::vector<std::uint8_t> flags(ids.size(), 0);
  flags[0] = TokenFile::kDocumentStart;
  padded.resize(seq_len, 0);
  flags.resize(seq_len, TokenFile::kPadding);
  self.context.dropout = 0;
  const SweepLayout sweep = lay_out_sweep(self.architecture, self.plan, padded, flags, 0);
  self.residency->begin(visits_of(static_cast<std::int64_t>(self.memory.blocks.size()), 1, false));
  self.upload(sweep);
  self.forward(false);
  self.supervised = 0;
  const std::int64_t begin = last_only ? sweep.tokens - 1 : 0;
  return self.head.logits(sweep.rows, begin, sweep.tokens, self.residual_output);
}

std::int64_t Executor::flat_elements() const {
  return impl_->memory.flat_elements;
}
std::int64_t Executor::trainable_parameters() const {
  return impl_->memory.parameters;
}
float* Executor::master() {
  return impl_->arena.find_as<float>("adapter.master");
}
float* Executor::gradient() {
  return impl_->arena.find_as<float>("adapter.gradient");
}
float* Executor::exp_avg() {
  return impl_->arena.find_as<float>("adapter.exp_avg");
}
float* Executor::exp_avg_sq() {
  return impl_->arena.find_as<float>("adapter.exp_avg_sq");
}
const std::vector<ParameterView>& Executor::views() const {
  return impl_->views;
}
void Executor::time_phases(PhaseClock* clock) {
  impl_->phases = clock;
}
Stream Executor::stream() const {
  return impl_->stream;
}

Adapter Executor::adapter() const {
  const Impl& self = *impl_;
  Adapter adapter;
  adapter.config = self.adapter_config;
  adapter.places = self.places;
  const float* master = self.arena.find_as<float>("adapter.master");
  for (std::size_t index = 0; index < self.places.size(); ++index) {
    const LoraPlace& place = self.places[index];
    const AdapterSlice& slice = self.memory.adapters[index];
    LoraWeights weights;
    weights.a.resize(static_cast<std::size_t>(place.rank * place.in));
    weights.b.resize(static_cast<std::size_t>(place.rank * place.out));
    copy_bytes(self.stream, weights.a.data(), master + slice.a_offset,
               weights.a.size() * sizeof(float));
    copy_bytes(self.stream, weights.b.data(), master + slice.b_offset,
               weights.b.size() * sizeof(float));
    synchronise(self.stream);
    adapter.weights.push_back(std::move(weights));
  }
  return adapter;
}

ExecutorCounters Executor::counters() const {
  ExecutorCounters counters;
  impl_->residency->count(counters);
  counters.load_s = impl_->load_s;
  counters.arena_bytes = impl_->arena.bytes();
  counters.pinned_bytes = impl_->memory.pinned_bytes;
  counters.host_bytes = impl_->memory.host_bytes;
  return counters;
}

}  // namespace poros
