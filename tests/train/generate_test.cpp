// SPDX-License-Identifier: Apache-2.0
// Choosing tokens, and generation on its own; tests/peft/use_test.py compares whole texts with
// transformers.
#include "train/arm/generate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "tiny_cell.hpp"

namespace poros {
namespace {

TEST(ChooseToken, GreedyTakesTheFirstOfTheLargest) {
  std::mt19937_64 random(1);
  const std::vector<float> logits = {-1, 3, 2, 3};
  EXPECT_EQ(choose_token(logits, 0, 1, random), 1U);
  EXPECT_EQ(random, std::mt19937_64(1));  // nothing was drawn
}

TEST(ChooseToken, DrawsByTheSoftmax) {
  std::mt19937_64 random(7);
  const std::vector<float> logits = {std::log(1.0F), std::log(2.0F), std::log(5.0F),
                                     -std::numeric_limits<float>::infinity()};
  const double weights[] = {1, 2, 5, 0};
  for (const double temperature : {1.0, 0.5}) {
    double total = 0;
    for (const double weight : weights) total += std::pow(weight, 1 / temperature);
    std::vector<int> counts(4);
    constexpr int kDraws = 20000;
    for (int i = 0; i < kDraws; ++i) ++counts[choose_token(logits, temperature, 1, random)];
    for (std::size_t i = 0; i < 4; ++i) {  // five standard deviations
      const double p = std::pow(weights[i], 1 / temperature) / total;
      EXPECT_NEAR(counts[i], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << i;
    }
  }
}

TEST(ChooseToken, TopPKeepsTheFewestThatReachIt) {
  std::mt19937_64 random(3);
  const std::vector<float> logits = {std::log(0.1F), std::log(0.5F), std::log(0.15F),
                                     std::log(0.25F)};
  const auto drawn = [&](double top_p) {
    std::vector<bool> seen(4);
    for (int i = 0; i < 2000; ++i) seen[choose_token(logits, 1, top_p, random)] = true;
    return seen;
  };
  EXPECT_EQ(drawn(0.01), (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(drawn(0.7), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(drawn(0.8), (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(drawn(1.0), (std::vector<bool>{true, true, true, true}));
}

class Generate : public testing::Test {
 protected:
  Generate() {
    const CellRequest request = tiny_.request("resident", 2);
    options_.model_dir = request.model_dir;
    options_.adapter_dir = request.adapter_dir;
    options_.cache_dir = request.cache_dir;
    options_.precision = "fp32";
    options_.threads = 1;
    options_.prompt = {5, 9, 2};
    options_.max_new_tokens = 6;
  }
  void expect_refused(const std::string& part) {
    try {
      static_cast<void>(generate(options_));
      ADD_FAILURE() << "was not refused: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::input);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  TinyCell tiny_;
  GenerateOptions options_;
};

TEST_F(Generate, GoesOnTokenByToken) {
  const Generation whole = generate(options_);
  ASSERT_EQ(whole.ids.size(), 6U);
  EXPECT_EQ(whole.finish, "length");
  // From a longer prompt the same tokens follow.
  options_.prompt.insert(options_.prompt.end(), whole.ids.begin(), whole.ids.begin() + 2);
  options_.max_new_tokens = 4;
  const Generation rest = generate(options_);
  EXPECT_TRUE(std::equal(rest.ids.begin(), rest.ids.end(), whole.ids.begin() + 2));
}

TEST_F(Generate, StopsAtTheStopId) {
  const Generation whole = generate(options_);
  options_.stop_ids = {whole.ids[3], 127};
  const Generation stopped = generate(options_);
  EXPECT_EQ(stopped.finish, "stop");
  EXPECT_EQ(stopped.ids.back(), whole.ids[3]);
  EXPECT_LE(stopped.ids.size(), 4U);  // the same id may come earlier
}

TEST_F(Generate, SameSeedSameTokens) {
  options_.temperature = 1.5;
  options_.seed = 11;
  const Generation one = generate(options_);
  EXPECT_EQ(generate(options_).ids, one.ids);
  options_.seed = 12;
  EXPECT_NE(generate(options_).ids, one.ids);
}

TEST_F(Generate, EndsWhereThePositionsEnd) {
  options_.model_dir = POROS_SOURCE_DIR "/tests/goldens/llama_bf16";
  options_.adapter_dir.clear();
  options_.max_new_tokens = std::int64_t{1} << 20;
  options_.prompt.assign(254, 3);  // of 256 positions
  const Generation generation = generate(options_);
  EXPECT_EQ(generation.finish, "context");
  EXPECT_EQ(generation.ids.size(), 2U);
}

TEST_F(Generate, RefusesWhatItCannotDo) {
  options_.prompt = {};
  expect_refused("has no token");
  options_.prompt = {128};
  expect_refused("128 is not below the vocabulary's size 128");
  options_.model_dir = POROS_SOURCE_DIR "/tests/goldens/llama_bf16";
  options_.prompt.assign(256, 3);
  expect_refused("fill the model's 256 positions");
  options_.prompt = {1};
  options_.top_p = 0;
  expect_refused("top_p");
  options_.top_p = 1;
  options_.temperature = -1;
  expect_refused("temperature");
}

}  // namespace
}  // namespace poros
