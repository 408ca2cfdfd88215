// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe.hpp"

#include <algorithm>
#include <numeric>

#include "operand.hpp"

namespace poros {
namespace {

using test::Operand;
using test::random_operand;

class Moe : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Moe, testing::Values(DType::f32, DType::bf16), test::dtype_name);

constexpr std::int64_t kTokens = 7, kExperts = 6, kChoices = 3, kCols = 35;
constexpr std::size_t kSlots = kTokens * kChoices;

std::vector<double> softmax(const std::vector<double>& logits) {
  double sum = 0;
  std::vector<double> p;
  for (const double v : logits) sum += std::exp(v);
  for (const double v : logits) p.push_back(std::exp(v) / sum);
  return p;
}

/// Experts by descending probability, ties by index.
std::vector<std::size_t> best(const std::vector<double>& p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  return order;
}

TEST_P(Moe, RouteAndItsGradient) {
  const DType dtype = GetParam();
  for (const bool normalise : {false, true}) {
    const Operand logits = random_operand(dtype, kTokens * kExperts, 81, 2.0);
    Operand p(DType::f32, kTokens * kExperts);
    Operand weights(DType::f32, kSlots);
    std::vector<std::int32_t> expert(kSlots);
    moe_route({}, {.logits = logits.data(),
                   .probabilities = p.floats(),
                   .expert = expert.data(),
                   .weights = weights.floats(),
                   .tokens = kTokens,
                   .experts = kExperts,
                   .k = kChoices,
                   .dtype = dtype,
                   .normalise = normalise});
    Operand dweights = random_operand(DType::f32, kSlots, 82);
    Operand dlogits(dtype, kTokens * kExperts);
    moe_route_backward({}, {.probabilities = p.floats(),
                            .expert = expert.data(),
                            .dweights = dweights.floats(),
                            .dlogits = dlogits.data(),
                            .tokens = kTokens,
                            .experts = kExperts,
                            .k = kChoices,
                            .dtype = dtype,
                            .normalise = normalise});
    std::vector<double> expected, gradient;
    for (std::size_t token = 0; token < kTokens; ++token) {
      std::vector<double> row;
      for (std::size_t e = 0; e < kExperts; ++e) row.push_back(logits[token * kExperts + e]);
      const auto chosen = best(softmax(row));
      const auto weights_of = [&](const std::vector<double>& moved) {
        const auto q = softmax(moved);
        double sum = 0;
        for (std::size_t j = 0; j < kChoices; ++j) sum += q[chosen[j]];
        std::vector<double> w;
        for (std::size_t j = 0; j < kChoices; ++j) {
          w.push_back(q[chosen[j]] / (normalise ? sum : 1));
        }
        return w;
      };
      const auto w = weights_of(row);
      for (std::size_t j = 0; j < kChoices; ++j) {
        EXPECT_EQ(expert[token * kChoices + j], static_cast<std::int32_t>(chosen[j]));
        expected.push_back(w[j]);
      }
      for (std::size_t e = 0; e < kExperts; ++e) {
        gradient.push_back(test::slope(
            [&](double v) {
              auto moved = row;
              moved[e] = v;
              const auto at = weights_of(moved);
              double total = 0;
              for (std::size_t j = 0; j < kChoices; ++j) {
                total += at[j] * dweights[token * kChoices + j];
              }
              return total;
            },
            row[e]));
      }
    }
    test::expect_close(weights, expected, "weights");
    test::expect_close(dlogits, gradient, "dlogits", 2.0);
  }
}

TEST(Moe, TiesGoToTheLowerExpertAndWeightsAreRounded) {
  const std::vector<float> logits{1, 3, 3, 1, 3, 0};
  float p[6];
  std::int32_t expert[4];
  float weights[4];
  moe_route({}, {.logits = logits.data(),
                 .probabilities = p,
                 .expert = expert,
                 .weights = weights,
                 .tokens = 1,
                 .experts = 6,
                 .k = 4,
                 .weights_dtype = DType::bf16});
  EXPECT_EQ(std::vector<std::int32_t>(expert, expert + 4), (std::vector<std::int32_t>{1, 2, 4, 0}));
  for (std::size_t j = 0; j < 4; ++j) {
    EXPECT_EQ(weights[j], to_float(to_bf16(p[expert[j]])));
  }
}

TEST(Moe, SortIsStableAndLeavesPaddingOut) {
  const std::vector<std::int32_t> expert{3, 0, 0, 3, -1, -1, 5, 3, 0, 5};  // 5 tokens, k = 2
  std::vector<std::int32_t> offsets(7, 99), slot(10, 99), token(10, 99), position(10, 99);
  moe_sort({}, {.expert = expert.data(),
                .offsets = offsets.data(),
                .slot = slot.data(),
                .token = token.data(),
                .position = position.data(),
                .tokens = 5,
                .experts = 6,
                .k = 2});
  using List = std::vector<std::int32_t>;
  EXPECT_EQ(offsets, (List{0, 3, 3, 3, 6, 6, 8}));
  EXPECT_EQ(slot, (List{1, 2, 8, 0, 3, 7, 6, 9, -1, -1}));
  EXPECT_EQ(token, (List{0, 1, 4, 0, 1, 3, 3, 4, -1, -1}));
  EXPECT_EQ(position, (List{3, 0, 1, 4, -1, -1, 6, 5, 2, 7}));
  moe_sort({}, {.offsets = offsets.data(), .tokens = 0, .experts = 6, .k = 2});
  EXPECT_EQ(offsets, List(7, 0));
}

TEST(Moe, SortPadsEachExpertToWholeGranules) {
  const std::vector<std::int32_t> expert{3, 0, 0, 3, -1, -1, 5, 3, 0, 5};  // 5 tokens, k = 2
  constexpr std::int64_t kMost = moe_sorted_rows(10, 6, 2);
  static_assert(kMost == 16);
  static_assert(moe_sorted_rows(3, 6, 4) == 12 && moe_sorted_rows(10, 6, 1) == 10);
  std::vector<std::int32_t> offsets(7, 99), slot(kMost, 99), token(kMost, 99), position(10, 99);
  moe_sort({}, {.expert = expert.data(),
                .offsets = offsets.data(),
                .slot = slot.data(),
                .token = token.data(),
                .position = position.data(),
                .tokens = 5,
                .experts = 6,
                .k = 2,
                .granule = 2});
  using List = std::vector<std::int32_t>;
  EXPECT_EQ(offsets, (List{0, 4, 4, 4, 8, 8, 10}));
  EXPECT_EQ(slot, (List{1, 2, 8, -1, 0, 3, 7, -1, 6, 9, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(token, (List{0, 1, 4, -1, 0, 1, 3, -1, 3, 4, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(position, (List{4, 0, 1, 5, -1, -1, 8, 6, 2, 9}));

  const std::vector<std::int32_t> of_batch{7, 7, 8, 8, 9}, of_row{10, 11, 12, 13, 14};
  List batch(10, 99), row(10, 99);
  moe_row_keys({}, {.slot = slot.data(),
                    .token_micro_batch = of_batch.data(),
                    .token_row_index = of_row.data(),
                    .micro_batch = batch.data(),
                    .row_index = row.data(),
                    .rows = 10,
                    .k = 2});
  EXPECT_EQ(batch, (List{7, 7, 9, 0, 7, 7, 8, 0, 8, 9}));
  EXPECT_EQ(row, (List{21, 22, 28, 0, 20, 23, 27, 0, 26, 29}));
}

TEST_P(Moe, CombineAndItsGradient) {
  const DType dtype = GetParam();
  // Slot -> sorted row: a permutation with one slot left out.
  std::vector<std::int32_t> position(kSlots);
  for (std::size_t s = 0; s < kSlots; ++s) {
    position[s] = static_cast<std::int32_t>(s * 8 % kSlots);
  }
  for (auto& p : position) p = p == 20 ? -1 : p;
  Operand x = random_operand(dtype, static_cast<std::int64_t>(kSlots) * kCols, 83);
  const Operand x_before = x;
  const Operand dy = random_operand(dtype, kTokens * kCols, 84);
  Operand weights = random_operand(DType::f32, kSlots, 85);
  for (const bool weighted : {true, false}) {
    Operand y(dtype, kTokens * kCols);
    moe_combine({}, {.x = x.data(),
                     .position = position.data(),
                     .weights = weighted ? weights.floats() : nullptr,
                     .y = y.data(),
                     .tokens = kTokens,
                     .cols = kCols,
                     .k = kChoices,
                     .dtype = dtype});
    std::vector<double> expected;
    for (std::size_t token = 0; token < kTokens; ++token) {
      for (std::size_t c = 0; c < kCols; ++c) {
        double sum = 0;
        for (std::size_t s = token * kChoices; s < (token + 1) * kChoices; ++s) {
          if (position[s] < 0) continue;
          sum += (weighted ? weights[s] : 1.0) * x[std::size_t(position[s]) * kCols + c];
        }
        expected.push_back(sum);
      }
    }
    test::expect_close(y, expected, "y");
  }
  Operand dweights(DType::f32, kSlots);
  moe_combine_backward({}, {.dy = dy.data(),
                            .x = x.data(),
                            .position = position.data(),
                            .weights = weights.floats(),
                            .dx = x.data(),
                            .dweights = dweights.floats(),
                            .tokens = kTokens,
                            .cols = kCols,
                            .k = kChoices,
                            .dtype = dtype});
  std::vector<double> expected_dx, expected_dw;
  for (std::size_t i = 0; i < x.size(); ++i) expected_dx.push_back(x_before[i]);
  for (std::size_t s = 0; s < kSlots; ++s) {
    double dot = 0;
    for (std::size_t c = 0; c < kCols && position[s] >= 0; ++c) {
      const std::size_t at = std::size_t(position[s]) * kCols + c;
      dot += dy[s / kChoices * kCols + c] * x_before[at];
      expected_dx[at] = weights[s] * dy[s / kChoices * kCols + c];
    }
    expected_dw.push_back(dot);
  }
  test::expect_close(x, expected_dx, "dx");
  test::expect_close(dweights, expected_dw, "dweights", 4.0);
}

}  // namespace
}  // namespace poros
