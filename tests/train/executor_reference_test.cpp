// SPDX-License-Identifier: Apache-2.0
// The executor against transformers + PEFT (fp32, eager attention, CPU): logits, loss and every
// LoRA gradient of each architecture, on plain and packed rows. tests/goldens/reference/README.md
// says how the figures were made.
#include <algorithm>
#include <map>
#include <memory>

#include <gtest/gtest.h>

#include "executor_fixture.hpp"
#include "model/token_file.hpp"
#include "train/optimizer.hpp"

namespace poros {
namespace {

constexpr double kTolerance = 1e-5;  // fp32, of the largest value of a tensor
constexpr std::int64_t kVocab = 128;

struct Case {
  std::string name, checkpoint, base, tokens;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* name :
       {"arch_gemma2",    "arch_gemma3_text", "arch_llama",         "arch_mistral",
        "arch_mixtral",   "arch_phi3",        "arch_qwen2",         "arch_qwen3",
        "arch_qwen3_moe", "gemma2_window",    "gemma3_window",      "llama_rope3",
        "mistral_window", "mixtral_lively",   "phi3_longrope_long", "phi3_longrope_short",
        "qwen2_window",   "qwen3_lively",     "qwen3_moe_experts",  "qwen3_moe_lively"}) {
    const std::string checkpoint =
        std::string(name) == "qwen3_moe_experts" ? "qwen3_moe_lively" : name;
    for (const char* base : {"fp32", "nf4"}) cases.push_back({name, checkpoint, base, "plain"});
  }
  for (const char* name :
       {"arch_llama", "mistral_window", "gemma2_window", "gemma3_window", "qwen2_window"}) {
    cases.push_back({name, name, "fp32", "packed"});
  }
  return cases;
}

class ExecutorReference : public testing::TestWithParam<Case> {};

TEST_P(ExecutorReference, LogitsLossAndGradients) {
  const Case& test = GetParam();
  const auto folder = goldens() / "reference" / test.name;
  const auto reference = read_f32(folder / "reference.safetensors");
  const std::string stem = test.base + "." + test.tokens + ".";
  const TokenFile tokens = read_token_file(goldens() / "reference" / (test.tokens + ".tokens"));
  const auto base = golden_base(goldens() / "checkpoints" / test.checkpoint, test.base);
  const Adapter adapter = read_adapter(folder / "adapter", base->architecture());
  RunSettings settings;
  settings.seq_len = tokens.seq_len;
  settings.batch_size = tokens.rows;
  const auto executor = make_executor(*base, adapter, settings);

  const StepOutcome outcome = executor->run_step({tokens.ids, tokens.flags}, 0);
  EXPECT_GT(outcome.supervised_tokens, 0);
  const std::vector<float> loss = {executor->loss()};
  EXPECT_LE(relative_difference(loss, reference.at(stem + "loss")), kTolerance);
  ASSERT_FALSE(executor->views().empty());
  for (const ParameterView& view : executor->views()) {
    const auto& wanted = reference.at(stem + "gradient." + view.name);
    EXPECT_LE(relative_difference(values_of(executor->gradient(), view), wanted), kTolerance)
        << view.name;
  }

  // evaluate() gives the same loss, by row.
  double sum = 0;
  std::int64_t count = 0;
  for (const RowLoss& row : executor->evaluate(tokens.ids, tokens.flags)) {
    sum += row.sum;
    count += row.tokens;
  }
  EXPECT_EQ(count, outcome.supervised_tokens);
  EXPECT_NEAR(sum / static_cast<double>(count), static_cast<double>(loss[0]), 1e-6);

  if (test.tokens != "plain") return;
  // Logits of each row without its padding.
  const auto& wanted = reference.at(stem + "logits");
  for (std::int64_t row = 0; row < tokens.rows; ++row) {
    const auto begin = static_cast<std::size_t>(row * tokens.seq_len);
    const auto flags =
        std::span(tokens.flags).subspan(begin, static_cast<std::size_t>(tokens.seq_len));
    const auto length = static_cast<std::size_t>(std::count_if(
        flags.begin(), flags.end(), [](std::uint8_t f) { return (f & TokenFile::kPadding) == 0; }));
    const std::vector<float> got = executor->logits(std::span(tokens.ids).subspan(begin, length));
    const auto first = wanted.begin() + static_cast<std::ptrdiff_t>(begin * kVocab);
    const std::vector<float> part(first, first + static_cast<std::ptrdiff_t>(length * kVocab));
    EXPECT_LE(relative_difference(got, part), kTolerance) << "row " << row;
  }
}

constexpr double kRate =
    1e-3;  // the reference's, constant; decay and clipping are AdamW's defaults
constexpr int kUpdates = 5;

/// A case's model with its adapter, its rows and its figures of five updates on the same rows.
struct Training {
  explicit Training(const Case& test) {
    const auto folder = goldens() / "reference" / test.name;
    reference = read_f32(folder / "reference.safetensors");
    tokens = read_token_file(goldens() / "reference" / "plain.tokens");
    base = golden_base(goldens() / "checkpoints" / test.checkpoint, "fp32");
    RunSettings settings;
    settings.seq_len = tokens.seq_len;
    settings.batch_size = tokens.rows;
    executor =
        make_executor(*base, read_adapter(folder / "adapter", base->architecture()), settings);
    optimizer =
        std::make_unique<AdamW>(flat_parameters(*executor), AdamWSettings{}, executor->stream());
  }
  [[nodiscard]] const std::vector<float>& figure(int step, const std::string& name) const {
    return reference.at("fp32.plain.step" + std::to_string(step) + "." + name);
  }
  std::map<std::string, std::vector<float>> reference;
  TokenFile tokens;
  std::unique_ptr<BaseStore> base;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<AdamW> optimizer;
};

class FiveUpdates : public testing::TestWithParam<Case> {};

TEST_P(FiveUpdates, EndAtTheReferencesAdapter) {
  Training run(GetParam());
  for (int step = 1; step <= kUpdates; ++step) {
    (void)run.executor->run_step({run.tokens.ids, run.tokens.flags}, step - 1);
    EXPECT_LE(relative_difference({run.executor->loss()}, run.figure(step, "loss")), 1e-4) << step;
    const auto norm = static_cast<float>(run.optimizer->measure_norm().norm);
    EXPECT_LE(relative_difference({norm}, run.figure(step, "grad_norm")), 1e-4) << step;
    run.optimizer->update(kRate);
  }
  // Where a gradient is near 0 the first updates are its sign times the rate: the wider limit.
  for (const ParameterView& view : run.executor->views()) {
    EXPECT_LE(relative_difference(values_of(run.executor->master(), view),
                                  run.figure(kUpdates, "weight." + view.name)),
              5e-4)
        << view.name;
  }
}

TEST(AdamWReference, FedItsGradientsEndsAtItsWeightsAndMoments) {
  const std::string name = "arch_llama";
  Training run({name, name, "fp32", "plain"});
  constexpr double kExact = 1e-6;  // fp32
  for (int step = 1; step <= kUpdates; ++step) {
    for (const ParameterView& view : run.executor->views()) {
      const auto& gradient = run.figure(step, "gradient." + view.name);
      std::copy(gradient.begin(), gradient.end(), run.executor->gradient() + view.offset);
    }
    (void)run.optimizer->measure_norm();
    run.optimizer->update(kRate);
    for (const ParameterView& view : run.executor->views()) {
      EXPECT_LE(relative_difference(values_of(run.executor->master(), view),
                                    run.figure(step, "weight." + view.name)),
                kExact)
          << view.name << " after update " << step;
    }
  }
  for (const ParameterView& view : run.executor->views()) {
    EXPECT_LE(relative_difference(values_of(run.executor->exp_avg(), view),
                                  run.figure(kUpdates, "exp_avg." + view.name)),
              kExact)
        << view.name;
    EXPECT_LE(relative_difference(values_of(run.executor->exp_avg_sq(), view),
                                  run.figure(kUpdates, "exp_avg_sq." + view.name)),
              kExact)
        << view.name;
  }
}

std::vector<Case> training_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases,
                [](const Case& test) { return test.base != "fp32" || test.tokens != "plain"; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Goldens, FiveUpdates, testing::ValuesIn(training_cases()),
                         [](const testing::TestParamInfo<Case>& made) { return made.param.name; });

INSTANTIATE_TEST_SUITE_P(Goldens, ExecutorReference, testing::ValuesIn(all_cases()),
                         [](const testing::TestParamInfo<Case>& made) {
                           return made.param.name + "_" + made.param.base + "_" + made.param.tokens;
                         });

}  // namespace
}  // namespace poros
