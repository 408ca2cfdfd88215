// SPDX-License-Identifier: Apache-2.0
// Whole training runs on a tiny model: it learns, it repeats itself, and where the base waits
// changes no bit.
#include "train/trainer.hpp"

#include <bit>
#include <cmath>
#include <filesystem>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/sha256.hpp"
#include "model/token_file.hpp"
#include "receipts/parity.hpp"
#include "tiny_cell.hpp"
#include "train/arm/session.hpp"
#include "train/parity_hash.hpp"

namespace poros {
namespace {

TEST(Trainer, LossFallsAndTheRecordIsComplete) {
  TinyCell tiny;
  CellRequest request = tiny.request("resident", 20);
  const PassRecord record = tiny.run(request);
  ASSERT_EQ(record.status, "ok") << record.error_message;
  ASSERT_EQ(record.steps.loss.size(), 20U);
  const auto mean = [&](std::size_t begin, std::size_t end) {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += record.steps.loss[i];
    return sum / static_cast<double>(end - begin);
  };
  EXPECT_NEAR(record.steps.loss[0], std::log(128.0), 1.0) << "a random model knows nothing";
  EXPECT_TRUE(mean(15, 20) < mean(0, 5) - 0.3) << mean(0, 5) << " -> " << mean(15, 20);
  for (const StepColumn& column : step_columns()) {
    EXPECT_EQ((record.steps.*column.values).size(), 20U) << column.name;
  }
  // Rows 0 to 3: two documents each (2 unsupervised tokens), row 3 ends in 4 tokens of padding.
  EXPECT_EQ(record.steps.supervised_tokens[0], 4 * 30 - 4);
  EXPECT_NEAR(record.steps.learning_rate[10], 0.5e-2, 1e-15) << "cosine, half way";
  EXPECT_GT(record.s_per_step.value_or(0), 0.0);
  EXPECT_GT(record.load_s.value_or(0), 0.0);
  EXPECT_GT(record.host_rss_peak_mb.value_or(0), 1.0);
  EXPECT_GT(record.planned_peak_mb.value_or(0), 0.0);
  EXPECT_EQ(record.steps.allocated_mb[5], *record.planned_peak_mb) << "the plan is what is taken";
  EXPECT_FALSE(record.vram_peak_mb.has_value()) << "no GPU, no figure";
  EXPECT_FALSE(record.pinned_mb.has_value());
  EXPECT_EQ(record.token_sha256, sha256_file(request.tokens_path));
  EXPECT_EQ(record.adapter_sha256, sha256_file(request.adapter_dir / "adapter_model.safetensors"));
  EXPECT_EQ(record.weights.rfind("pretrained@", 0), 0U) << record.weights;
  EXPECT_GT(record.base_bytes.at("nf4"), 0.0);
  EXPECT_EQ(record.device.at("kind"), "cpu");
  EXPECT_TRUE(record.hashes.empty());
  // Rank 4 on q, k, v, o, gate, up, down of each layer: 4 * (in + out).
  EXPECT_EQ(record.trainable_params,
            7 * 4 * ((64 + 64) + 2 * (64 + 32) + (64 + 64) + 2 * (64 + 128) + (128 + 64)));
}

/// Accumulation, dropout, block_size: what must not change a bit between the residencies.
class Residency : public testing::TestWithParam<std::tuple<std::int64_t, double, std::int64_t>> {};

TEST_P(Residency, StreamedEqualsResidentBitForBitAtEveryStep) {
  const auto [accumulation, dropout, streamed_block_size] = GetParam();
  TinyCell tiny;
  const auto run = [&, accumulation = accumulation, dropout = dropout](const std::string& method,
                                                                       std::int64_t block_size) {
    CellRequest request = tiny.request(method, 6);
    request.purpose = "parity";
    request.cell.training.gradient_accumulation_steps = accumulation;
    request.cell.training.batch_size = 4 / accumulation;
    request.cell.lora.dropout = dropout;
    request.cell.poros.block_size = block_size;
    PassRecord record = tiny.run(request);
    EXPECT_EQ(record.status, "ok") << record.error_message;
    EXPECT_EQ(record.hashes.size(), 6U);
    EXPECT_FALSE(record.s_per_step.has_value()) << "a parity pass is not timed";
    return record;
  };
  const PassRecord resident = run("resident", 1), streamed = run("poros", streamed_block_size);
  const HashComparison comparison = compare_hashes(resident.hashes, streamed.hashes);
  EXPECT_TRUE(comparison.equal) << comparison.first->kind << " " << comparison.first->tensor
                                << " in step " << comparison.first->step;
  // Loss, norm, and four kinds of 7 layers x 7 linears x 2 tensors.
  EXPECT_EQ(comparison.hashes, 6 * (2 + 4 * 7 * 7 * 2));
  EXPECT_EQ(resident.arm.at("plan_hash"), streamed.arm.at("plan_hash"));
  EXPECT_EQ(resident.arm.at("residency"), "resident");
  EXPECT_EQ(streamed.arm.at("residency"), "streamed");
  EXPECT_GT(streamed.arm.at("block_copies").get<std::int64_t>(), 0);
  EXPECT_LT(*streamed.planned_peak_mb, *resident.planned_peak_mb) << "streaming must pay";
}

INSTANTIATE_TEST_SUITE_P(Variants, Residency,
                         testing::Combine(testing::Values(1, 4), testing::Values(0.0, 0.1),
                                          testing::Values(1, 2)));

TEST(Trainer, RepeatsItselfAndNoticesAnotherSeed) {
  TinyCell tiny;
  const auto run = [&](std::int64_t seed) {
    CellRequest request = tiny.request("resident", 4);
    request.purpose = "parity";
    request.cell.lora.dropout = 0.1;
    request.cell.training.seed = seed;
    return tiny.run(request).hashes;
  };
  const auto first = run(1), again = run(1), other = run(2);
  EXPECT_TRUE(compare_hashes(first, again).equal);
  const HashComparison comparison = compare_hashes(first, other);
  ASSERT_FALSE(comparison.equal) << "dropout must depend on the seed";
  EXPECT_EQ(comparison.first->step, 1);
}

TEST(Trainer, ADumpHoldsWhatTheHashesSay) {
  TinyCell tiny;
  CellRequest request = tiny.request("poros", 5);
  request.purpose = "parity";
  const auto full = tiny.run(request).hashes;
  CellRequest second = tiny.request("poros", 5);
  second.purpose = "parity";
  second.max_steps = 3;
  second.dump = CellRequest::Dump{3, tiny.folder() / "dump_a"};
  const PassRecord partial = tiny.run(second);
  ASSERT_EQ(partial.status, "ok") << partial.error_message;
  ASSERT_EQ(partial.hashes.size(), 3U);
  EXPECT_EQ(partial.hashes[2].tensors, full[2].tensors) << "max_steps leaves the schedule alone";
  CellRequest third = tiny.request("resident", 5);
  third.max_steps = 3;
  third.dump = CellRequest::Dump{3, tiny.folder() / "dump_b"};
  ASSERT_EQ(tiny.run(third).status, "ok");
  for (const auto& [kind, difference] :
       compare_dumps(tiny.folder() / "dump_a", tiny.folder() / "dump_b")) {
    EXPECT_EQ(difference.unequal, 0) << kind;
    EXPECT_GT(difference.elements, 0) << kind;
  }
}

TEST(Trainer, OneFlippedBitOfOneGradientIsFound) {
  TinyCell tiny;
  CellRequest request = tiny.request("poros", 4);
  tiny.finish(request);
  const auto hashes_with_flip = [&](std::int64_t flip_at) {
    SessionInput input;
    input.cell = request.cell;
    input.model_dir = request.model_dir;
    input.cache_dir = request.cache_dir;
    input.adapter_dir = request.adapter_dir;
    Session session;
    open_session(
        input, [](const char*) {}, session);
    StepRows rows(read_token_file(request.tokens_path), 1, 4);
    const FlatParameters flat = flat_parameters(*session.executor);
    std::vector<StepHashes> hashes;
    TrainHooks hooks;
    hooks.after_step = [&](const StepReport& report) {
      if (report.step == flip_at) {
        float& value = flat.gradient[flat.views[31].offset + 17];
        value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1U);
      }
      hashes.push_back({parity_hash({&report.loss, 1}), parity_hash({&report.grad_norm, 1}),
                        parity_hashes(flat)});
    };
    EXPECT_EQ(train(*session.executor, rows, request.cell.training, {}, hooks).end,
              TrainEnd::finished);
    return std::pair(hashes, flat.views[31].name);
  };
  const auto [clean, name] = hashes_with_flip(0);
  const HashComparison comparison = compare_hashes(clean, hashes_with_flip(3).first);
  ASSERT_FALSE(comparison.equal);
  EXPECT_EQ(comparison.first->step, 3);
  EXPECT_EQ(comparison.first->kind, "gradient");
  EXPECT_EQ(comparison.first->tensor, name);
}

TEST(Trainer, ADivergingRunEndsBeforeTheUpdate) {
  TinyCell tiny;
  CellRequest request = tiny.request("resident", 30);
  request.cell.training.learning_rate = 1e9;
  request.cell.training.lr_scheduler = "constant";
  const PassRecord record = tiny.run(request);
  EXPECT_EQ(record.status, "error");
  EXPECT_EQ(record.reason, "diverged");
  EXPECT_NE(record.error_message.find("step " + std::to_string(record.steps.loss.size() + 1)),
            std::string::npos)
      << record.error_message;
  for (const double loss : record.steps.loss) EXPECT_TRUE(std::isfinite(loss));
}

TEST(Trainer, WhatCannotRunHereIsSkipped) {
  TinyCell tiny;
  CellRequest request = tiny.request("resident", 5);
  request.cell.device = "cuda";
  const PassRecord record = tiny.run(request);
  EXPECT_EQ(record.status, "skipped");
  EXPECT_EQ(record.reason, "no_cuda");
}

}  // namespace
}  // namespace poros
