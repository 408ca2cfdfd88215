// SPDX-License-Identifier: Apache-2.0
// What the reference figures leave out: dropout and mixtures of experts by finite differences,
// accumulation, normalisation, schedules, and bf16.
#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "executor_fixture.hpp"
#include "model/token_file.hpp"

namespace poros {
namespace {

std::string config(const std::string& extra) {
  return R"({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "bfloat16", )" +
         extra + "}";
}

std::string qwen2() {
  return config(R"("model_type": "qwen2")");
}

/// Every expert is chosen: a choice that changes with the weights would be a jump, not a slope.
std::string mixtral() {
  return config(R"("model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 3)");
}

/// d loss / d (step along `direction`) by central differences, against the gradient.
void expect_directional_derivative(Executor& executor, const TokenRows& rows,
                                   const std::vector<float>& direction) {
  const auto elements = direction.size();
  (void)executor.run_step(rows.batch(), 3);
  double slope = 0;
  for (std::size_t index = 0; index < elements; ++index) {
    slope +=
        static_cast<double>(executor.gradient()[index]) * static_cast<double>(direction[index]);
  }
  const std::vector<float> start(executor.master(), executor.master() + elements);
  const auto loss_at = [&](float distance) {
    for (std::size_t index = 0; index < elements; ++index) {
      executor.master()[index] = start[index] + distance * direction[index];
    }
    (void)executor.run_step(rows.batch(), 3);
    return static_cast<double>(executor.loss());
  };
  const double h = 2e-3;
  const double near = (loss_at(static_cast<float>(h)) - loss_at(static_cast<float>(-h))) / (2 * h);
  const double far =
      (loss_at(static_cast<float>(2 * h)) - loss_at(static_cast<float>(-2 * h))) / (4 * h);
  const double extrapolated = (4 * near - far) / 3;
  std::copy(start.begin(), start.end(), executor.master());
  EXPECT_NEAR(extrapolated, slope, 2e-3 * std::abs(slope) + 2e-4);
  EXPECT_GT(std::abs(slope), 1e-3) << "the direction says nothing";
}

struct GradientCase {
  const char* name;
  std::string config;
  std::vector<std::string> targets;
  double dropout;
};

class Gradients : public testing::TestWithParam<GradientCase> {};

TEST_P(Gradients, AgreeWithFiniteDifferences) {
  const GradientCase& test = GetParam();
  const auto base = random_base(test.config, "fp32");
  const Adapter adapter = lively_adapter(*base, 4, test.targets);
  RunSettings settings;
  settings.seq_len = 32;
  settings.batch_size = 2;
  settings.micro_batches = 2;
  settings.dropout = test.dropout;
  const auto executor = make_executor(*base, adapter, settings);
  const TokenRows rows = random_rows(4, settings.seq_len, 96, true, 23);
  // Along the gradient of each tensor by itself, where the slope is largest against rounding.
  (void)executor->run_step(rows.batch(), 3);
  const std::vector<float> gradient(executor->gradient(),
                                    executor->gradient() + executor->flat_elements());
  std::size_t checked = 0;
  for (const ParameterView& view : executor->views()) {
    SCOPED_TRACE(view.name);
    double norm = 0;
    for (std::int64_t index = 0; index < view.rows * view.cols; ++index) {
      const double value =
          static_cast<double>(gradient[static_cast<std::size_t>(view.offset + index)]);
      norm += value * value;
    }
    norm = std::sqrt(norm);
    if (norm < 5e-3) continue;  // rounding of the loss hides it
    std::vector<float> direction(gradient.size(), 0.0F);
    for (std::int64_t index = 0; index < view.rows * view.cols; ++index) {
      const auto at = static_cast<std::size_t>(view.offset + index);
      direction[at] = static_cast<float>(static_cast<double>(gradient[at]) / norm);
    }
    ++checked;
    expect_directional_derivative(*executor, rows, direction);
  }
  EXPECT_GE(2 * checked, executor->views().size());
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Gradients,
    testing::Values(GradientCase{"Qwen2", qwen2(), {}, 0},
                    GradientCase{"Qwen2Dropout", qwen2(), {}, 0.3},
                    GradientCase{"Qwen2SomeLinears", qwen2(), {"v_proj", "up_proj"}, 0.3},
                    GradientCase{"MixtralExperts", mixtral(), {}, 0},
                    GradientCase{"MixtralExpertsDropout", mixtral(), {}, 0.3},
                    GradientCase{"MixtralAttention", mixtral(), {"q_proj", "o_proj"}, 0.3}),
    [](const testing::TestParamInfo<GradientCase>& made) { return made.param.name; });

class Qwen2Step : public testing::Test {
 protected:
  std::unique_ptr<BaseStore> base_ = random_base(qwen2(), "nf4");
  Adapter adapter_ = lively_adapter(*base_, 4);

  RunSettings settings(std::int64_t micro_batches) const {
    RunSettings made;
    made.seq_len = 64;
    made.micro_batches = micro_batches;
    return made;
  }
  static std::vector<float> gradient_of(Executor& executor) {
    return {executor.gradient(), executor.gradient() + executor.flat_elements()};
  }
};

TEST_F(Qwen2Step, AccumulationAndSchedulesMeanTheSame) {
  // The same ten rows as micro-batches of one or in one batch, in one sweep or in many: equal but
  // for the order in which fp32 sums are made. 640 tokens are two of the groups in which dA and dB
  // are summed.
  const TokenRows rows = random_rows(10, 64, 96, true, 5);
  std::vector<std::vector<float>> gradients;
  std::vector<float> losses;
  for (const auto& [batch, micro, sweep_rows, accumulation] :
       std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::string>>{
           {10, 1, 0, "block_major"},
           {1, 10, 0, "block_major"},
           {1, 10, 192, "block_major"},
           {2, 5, 0, "micro_major"}}) {
    RunSettings made = settings(micro);
    made.batch_size = batch;
    made.sweep_rows = sweep_rows;
    made.accumulation = accumulation;
    const auto executor = make_executor(*base_, adapter_, made);
    (void)executor->run_step(rows.batch(), 0);
    losses.push_back(executor->loss());
    gradients.push_back(gradient_of(*executor));
  }
  for (std::size_t index = 1; index < gradients.size(); ++index) {
    EXPECT_NEAR(losses[index], losses[0], 1e-6);
    EXPECT_LE(relative_difference(gradients[index], gradients[0]), 2e-6) << index;
  }
}

TEST_F(Qwen2Step, DropoutMasksDoNotDependOnTheSchedule) {
  const TokenRows rows = random_rows(4, 64, 96, true, 6);
  RunSettings made = settings(4);
  made.dropout = 0.2;
  const auto one_sweep = make_executor(*base_, adapter_, made);
  (void)one_sweep->run_step(rows.batch(), 9);
  made.accumulation = "micro_major";
  const auto four_sweeps = make_executor(*base_, adapter_, made);
  (void)four_sweeps->run_step(rows.batch(), 9);
  EXPECT_NEAR(one_sweep->loss(), four_sweeps->loss(), 1e-6);
  EXPECT_LE(relative_difference(gradient_of(*four_sweeps), gradient_of(*one_sweep)), 2e-6);
  // Another step has another mask.
  (void)four_sweeps->run_step(rows.batch(), 10);
  EXPECT_GT(relative_difference(gradient_of(*four_sweeps), gradient_of(*one_sweep)), 1e-3);
}

TEST_F(Qwen2Step, TheLossIsAMeanOverTheWholeStep) {
  // Micro-batch 0 has 3 targets, micro-batch 1 has 60: each token counts alike.
  TokenRows rows = random_rows(2, 64, 96, false, 7);
  for (std::size_t token = 4; token < 64; ++token) rows.flags[token] = 0;
  const auto executor = make_executor(*base_, adapter_, settings(2));
  const StepOutcome outcome = executor->run_step(rows.batch(), 0);
  EXPECT_EQ(outcome.supervised_tokens, 3 + 63);
  EXPECT_EQ(outcome.tokens, 128);
  const float loss = executor->loss();
  const std::vector<RowLoss> by_row = executor->evaluate(rows.ids, rows.flags);
  ASSERT_EQ(by_row.size(), 2U);
  EXPECT_EQ(by_row[0].tokens, 3);
  EXPECT_EQ(by_row[1].tokens, 63);
  EXPECT_NEAR(static_cast<double>(loss), (by_row[0].sum + by_row[1].sum) / 66, 1e-6);
}

TEST_F(Qwen2Step, AStepWithoutTargetsLeavesZeroGradients) {
  TokenRows rows = random_rows(1, 64, 96, false, 8);
  const auto executor = make_executor(*base_, adapter_, settings(1));
  (void)executor->run_step(rows.batch(), 0);
  for (std::uint8_t& flag : rows.flags) flag &= static_cast<std::uint8_t>(~TokenFile::kSupervised);
  EXPECT_EQ(executor->run_step(rows.batch(), 1).supervised_tokens, 0);
  EXPECT_EQ(executor->loss(), 0.0F);
  for (const float value : gradient_of(*executor)) EXPECT_EQ(value, 0.0F);
}

TEST_F(Qwen2Step, DocumentsAreIndependent) {
  // A row of two documents has the losses that each has by itself.
  const TokenRows rows = random_rows(1, 64, 96, true, 9);
  const auto executor = make_executor(*base_, adapter_, settings(1));
  const double together = executor->evaluate(rows.ids, rows.flags)[0].sum;
  double apart = 0;
  for (std::size_t begin = 0; begin < 64;) {
    std::size_t end = begin + 1;
    while (end < 64 && (rows.flags[end] & TokenFile::kDocumentStart) == 0) ++end;
    TokenRows alone;
    alone.ids.assign(rows.ids.begin() + static_cast<std::ptrdiff_t>(begin),
                     rows.ids.begin() + static_cast<std::ptrdiff_t>(end));
    alone.flags.assign(rows.flags.begin() + static_cast<std::ptrdiff_t>(begin),
                       rows.flags.begin() + static_cast<std::ptrdiff_t>(end));
    alone.ids.resize(64, 0);
    alone.flags.resize(64, TokenFile::kPadding);
    apart += executor->evaluate(alone.ids, alone.flags)[0].sum;
    begin = end;
  }
  EXPECT_NEAR(together, apart, 1e-4);
}

TEST_F(Qwen2Step, Bf16StaysCloseToFp32) {
  const TokenRows rows = random_rows(2, 64, 96, true, 10);
  RunSettings made = settings(2);
  const auto exact = make_executor(*base_, adapter_, made);
  (void)exact->run_step(rows.batch(), 0);
  made.compute_dtype = "bf16";
  const auto rounded = make_executor(*base_, adapter_, made);
  (void)rounded->run_step(rows.batch(), 0);
  // bf16 has 8 bits: single roundings of 0.4 %, tens of them one after the other.
  EXPECT_NEAR(rounded->loss(), exact->loss(), 0.01 * static_cast<double>(exact->loss()));
  for (const ParameterView& view : exact->views()) {
    EXPECT_LE(relative_difference(values_of(rounded->gradient(), view),
                                  values_of(exact->gradient(), view)),
              0.06)
        << view.name;
  }
}

TEST_F(Qwen2Step, TheAdapterComesBackAsItWent) {
  const auto executor = make_executor(*base_, adapter_, settings(1));
  const Adapter back = executor->adapter();
  ASSERT_EQ(back.weights.size(), adapter_.weights.size());
  for (std::size_t index = 0; index < back.weights.size(); ++index) {
    EXPECT_EQ(back.weights[index].a, adapter_.weights[index].a);
    EXPECT_EQ(back.weights[index].b, adapter_.weights[index].b);
  }
  std::int64_t parameters = 0;
  for (const ParameterView& view : executor->views()) parameters += view.rows * view.cols;
  EXPECT_EQ(parameters, executor->trainable_parameters());
  EXPECT_EQ(executor->views()[0].name,
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
}

TEST_F(Qwen2Step, RefusesABatchOfAnotherShape) {
  const auto executor = make_executor(*base_, adapter_, settings(2));
  const TokenRows rows = random_rows(1, 64, 96, false, 3);
  EXPECT_THROW((void)executor->run_step(rows.batch(), 0), Error);
  EXPECT_THROW(
      (void)executor->evaluate(std::span(rows.ids).first(63), std::span(rows.flags).first(63)),
      Error);
}

}  // namespace
}  // namespace poros
