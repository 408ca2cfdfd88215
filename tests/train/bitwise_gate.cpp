// SPDX-License-Identifier: Apache-2.0
#include "bitwise_gate.hpp"

#include <cmath>
#include <cstring>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json.hpp"
#include "model/token_file.hpp"
#include "train/optimizer.hpp"

namespace poros {
namespace {

constexpr std::int64_t kBlockSizes[] = {1, 2, 4, 8};
constexpr std::int64_t kSlots[] = {3, 4, 1000};
constexpr ResidencyKind kKinds[] = {ResidencyKind::streamed, ResidencyKind::partial,
                                    ResidencyKind::resident};

std::string config_of(const GateScale& scale) {
  return dump_json({{"model_type", "qwen2"},
                    {"architectures", {"Qwen2ForCausalLM"}},
                    {"hidden_size", scale.hidden},
                    {"intermediate_size", scale.intermediate},
                    {"num_hidden_layers", scale.layers},
                    {"num_attention_heads", scale.heads},
                    {"num_key_value_heads", scale.kv_heads},
                    {"vocab_size", scale.vocab},
                    {"max_position_embeddings", scale.long_seq_len},
                    {"rms_norm_eps", 1e-6},
                    {"rope_theta", 10000.0},
                    {"tie_word_embeddings", false},
                    {"hidden_act", "silu"},
                    {"torch_dtype", "bfloat16"}});
}

/// Packed: documents of any length end to end. Padded: one document a row, its end padding.
TokenRows make_rows(std::int64_t rows, std::int64_t seq_len, std::int64_t vocab, bool packed,
                    std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(limit));
  };
  TokenRows made;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t filled = packed ? seq_len : seq_len - below(seq_len / 2);
    std::int64_t next = 0;
    for (std::int64_t column = 0; column < seq_len; ++column) {
      made.ids.push_back(static_cast<std::uint32_t>(below(vocab)));
      std::uint8_t flag = TokenFile::kSupervised;
      if (column >= filled) {
        flag = TokenFile::kPadding;
      } else if (column == next) {
        flag = TokenFile::kDocumentStart;
        next = packed ? column + 2 + below(seq_len / 2) : seq_len;
      }
      made.flags.push_back(flag);
    }
  }
  return made;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// The first tensor of a flat buffer that differs.
std::string first_difference(const std::vector<float>& a, const std::vector<float>& b,
                             const std::vector<ParameterView>& views) {
  for (const ParameterView& view : views) {
    const auto bytes = static_cast<std::size_t>(view.rows * view.cols) * sizeof(float);
    if (std::memcmp(a.data() + view.offset, b.data() + view.offset, bytes) != 0) return view.name;
  }
  return "padding";
}

}  // namespace

std::string describe(const GateRun& run) {
  const bool all = kSlots[run[kGateSlots]] == 1000;
  return fmt::format(
      "dropout {}, accumulation {}, {} rows, {} sequence, {}, block_size {}, slots {}, prefetch "
      "{}, layer inputs on the {}",
      run[kGateDropout] == 0 ? "0" : "0.1", run[kGateAccumulation] == 0 ? 1 : 8,
      run[kGateRows] == 0 ? "padded" : "packed", run[kGateSeqLen] == 0 ? "short" : "long",
      name_of(kKinds[run[kGateResidency]]), kBlockSizes[run[kGateBlockSize]],
      all ? "all" : std::to_string(kSlots[run[kGateSlots]]), run[kGatePrefetch] == 0 ? "on" : "off",
      run[kGateInputs] == 0 ? "host" : "device");
}

BitwiseGate::BitwiseGate(const GateScale& scale)
    : scale_(scale),
      base_(random_base(config_of(scale), "nf4")),
      adapter_(lively_adapter(*base_, scale.rank)) {}

RunSettings BitwiseGate::settings(const GateRun& run) const {
  RunSettings settings;
  settings.cuda = scale_.cuda;
  settings.compute_dtype = scale_.compute_dtype;
  settings.dropout = run[kGateDropout] == 0 ? 0 : 0.1;
  settings.micro_batches = run[kGateAccumulation] == 0 ? 1 : 8;
  settings.seq_len = run[kGateSeqLen] == 0 ? scale_.short_seq_len : scale_.long_seq_len;
  return settings;
}

ResidencySettings BitwiseGate::residency(const GateRun& run, const RunSettings& settings) const {
  ResidencySettings residency{.kind = kKinds[run[kGateResidency]],
                              .block_size = kBlockSizes[run[kGateBlockSize]],
                              .slots = kSlots[run[kGateSlots]],
                              .prefetch = run[kGatePrefetch] == 0,
                              .inputs_on_device = run[kGateInputs] == 1};
  if (residency.kind != ResidencyKind::partial) return residency;
  // Half way between all streamed and all resident.
  const auto bytes = [&](ResidencyKind kind) {
    ResidencySettings end = residency;
    end.kind = kind;
    return make_memory_plan(*base_, plan_for(*base_, settings), adapter_.places, end)
        .device_bytes();
  };
  const std::uint64_t middle =
      (bytes(ResidencyKind::streamed) + bytes(ResidencyKind::resident)) / 2;
  residency.budget_mb = static_cast<std::int64_t>((middle + (1U << 20) - 1) >> 20);
  return residency;
}

GateTrace BitwiseGate::train(const GateRun& run, const RunSettings& settings) const {
  const auto executor = make_executor(*base_, adapter_, settings);
  AdamW optimizer(flat_parameters(*executor), {0.01, 1.0}, executor->stream());
  const auto elements = static_cast<std::size_t>(executor->flat_elements());
  const auto copy = [&](const float* from) { return std::vector<float>(from, from + elements); };
  GateTrace trace;
  trace.views = executor->views();
  std::vector<float> memory;
  for (std::int64_t step = 0; step < scale_.steps; ++step) {
    const TokenRows rows = make_rows(settings.micro_batches, settings.seq_len, scale_.vocab,
                                     run[kGateRows] == 1, 100 + static_cast<std::uint64_t>(step));
    (void)executor->run_step(rows.batch(), step);
    GateStep& left = trace.steps.emplace_back();
    left.loss = executor->loss();
    left.norm = optimizer.measure_norm().norm;
    optimizer.update(1e-3);
    const FlatParameters host = host_parameters(*executor, memory);
    left.gradient = copy(host.gradient);
    left.exp_avg = copy(host.exp_avg);
    left.exp_avg_sq = copy(host.exp_avg_sq);
    left.master = copy(host.master);
  }
  trace.counters = executor->counters();
  return trace;
}

GateTrace BitwiseGate::reference(const GateRun& plan) const {
  GateTrace trace = train(plan, settings(plan));
  EXPECT_EQ(trace.counters.block_copies, 0U);
  for (std::size_t step = 0; step < trace.steps.size(); ++step) {
    EXPECT_TRUE(std::isfinite(trace.steps[step].loss)) << "loss of step " << step;
    EXPECT_TRUE(std::isfinite(trace.steps[step].norm)) << "norm of step " << step;
    EXPECT_GT(trace.steps[step].norm, 0) << "norm of step " << step;
  }
  EXPECT_FALSE(same_bits(trace.steps.front().master, trace.steps.back().master))
      << "nothing was learned";
  return trace;
}

void BitwiseGate::compare(const GateTrace& got, const GateTrace& wanted) const {
  ASSERT_EQ(got.steps.size(), wanted.steps.size());
  for (std::size_t step = 0; step < wanted.steps.size(); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const GateStep &a = got.steps[step], &b = wanted.steps[step];
    ASSERT_EQ(std::memcmp(&a.loss, &b.loss, sizeof a.loss), 0)
        << "loss " << a.loss << ", wanted " << b.loss;
    const auto expect = [&](const char* what, const std::vector<float>& x,
                            const std::vector<float>& y) {
      EXPECT_TRUE(same_bits(x, y)) << what << ": " << first_difference(x, y, wanted.views);
    };
    expect("gradient", a.gradient, b.gradient);
    EXPECT_EQ(std::memcmp(&a.norm, &b.norm, sizeof a.norm), 0)
        << "norm " << a.norm << ", wanted " << b.norm;
    expect("first moment", a.exp_avg, b.exp_avg);
    expect("second moment", a.exp_avg_sq, b.exp_avg_sq);
    expect("weight", a.master, b.master);
    if (testing::Test::HasFailure()) return;  // later steps only repeat it
  }
}

void BitwiseGate::expect_same(const GateRun& run, const GateTrace& wanted) const {
  SCOPED_TRACE(describe(run));
  RunSettings changed = settings(run);
  changed.residency = residency(run, changed);
  changed.debug.poison_freed_slots = true;
  int sum = 0;
  for (const int level : run) sum += level;
  if (sum % 3 == 1) changed.debug.delay_copies_s = scale_.delay_s;
  if (sum % 3 == 2) changed.debug.delay_compute_s = scale_.delay_s;
  const GateTrace got = train(run, changed);
  if (changed.residency.kind == ResidencyKind::streamed) {
    EXPECT_GT(got.counters.block_copies, 0U);
  }
  compare(got, wanted);
}

void BitwiseGate::expect_sweeps_agree(const GateRun& plan) const {
  RunSettings one = settings(plan);
  one.sweep_rows = one.batch_size * one.seq_len;
  const GateTrace block_major = train(plan, one);
  one.accumulation = "micro_major";
  compare(train(plan, one), block_major);
}

}  // namespace poros
