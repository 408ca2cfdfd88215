// SPDX-License-Identifier: Apache-2.0
// Masked softmax against the rule of the header, written out in double.
#include "kernels/attention_softmax.hpp"

#include <optional>

#include "operand.hpp"

namespace poros {
namespace {

using test::Operand;
using test::random_operand;

struct Shape {
  std::int64_t batch, queries, keys, first_query, first_key, window;
  bool documents;
  float softcap;
};

// Documents of one token, of many, and padding at the end (-1) and in the middle.
const std::vector<std::int32_t> kDocuments{0, 1, 1, 1, 1, 1, -1, 2, 2, 2, 2, 2, 2, 2,  2,  2, 2,
                                           2, 2, 2, 2, 2, 2, 2,  2, 2, 2, 2, 2, 2, 2,  2,  2, 2,
                                           2, 2, 2, 2, 2, 2, 2,  2, 2, 2, 2, 3, 3, -1, -1, -1};

bool sees(const Shape& shape, std::int64_t query, std::int64_t key) {
  const std::int64_t i = shape.first_query + query;
  const std::int64_t j = shape.first_key + key;
  if (j > i || (shape.window > 0 && i - j >= shape.window)) return false;
  if (!shape.documents) return true;
  const auto mine = kDocuments[static_cast<std::size_t>(i)];
  return mine >= 0 && mine == kDocuments[static_cast<std::size_t>(j)];
}

double capped(double score, double scale, double softcap) {
  return softcap > 0 ? softcap * std::tanh(score * scale / softcap) : score * scale;
}

std::vector<double> probabilities(const Shape& shape, std::int64_t query,
                                  const std::vector<double>& scores, double scale,
                                  double* logsumexp = nullptr) {
  double sum = 0;
  std::vector<double> p(scores.size());
  for (std::size_t key = 0; key < scores.size(); ++key) {
    if (!sees(shape, query, static_cast<std::int64_t>(key))) continue;
    p[key] = std::exp(capped(scores[key], scale, shape.softcap));
    sum += p[key];
  }
  for (double& v : p) v = sum > 0 ? v / sum : 0;
  if (logsumexp != nullptr) *logsumexp = std::log(sum);
  return p;
}

const std::vector<Shape> kShapes{
    {1, 1, 1, 0, 0, 0, false, 0},     {2, 5, 5, 0, 0, 0, false, 0},
    {3, 4, 50, 46, 0, 0, false, 0},   {1, 50, 50, 0, 0, 0, true, 0},
    {2, 9, 41, 35, 3, 7, false, 0},   {1, 50, 50, 0, 0, 5, true, 0},
    {2, 6, 40, 34, 0, 0, false, 3.0}, {1, 50, 50, 0, 0, 6, true, 30.0},
    {1, 3, 10, 2, 20, 0, false, 0},  // keys after every query: nothing is seen
};

TEST(AttentionSoftmax, ForwardAndBackward) {
  constexpr double kScale = 0.3;
  for (std::size_t s = 0; s < kShapes.size(); ++s) {
    const Shape& shape = kShapes[s];
    SCOPED_TRACE("shape " + std::to_string(s));
    const std::int64_t row_stride = shape.keys + 3;
    const std::int64_t matrix_stride = shape.queries * row_stride + 5;
    const auto count = static_cast<std::size_t>(shape.batch * matrix_stride);
    const Operand raw =
        random_operand(DType::f32, static_cast<std::int64_t>(count), 31U + unsigned(s), 4.0);
    const Operand dp = random_operand(DType::f32, static_cast<std::int64_t>(count), 77);
    Operand scores = raw;
    Operand rounded(DType::bf16, count);
    Operand logsumexp(DType::f32, static_cast<std::size_t>(shape.batch * shape.queries));
    const AttentionMask mask{.first_query = shape.first_query,
                             .first_key = shape.first_key,
                             .window = shape.window,
                             .documents = shape.documents ? kDocuments.data() : nullptr};
    attention_softmax_forward({}, {.scores = scores.floats(),
                                   .rounded = rounded.data(),
                                   .logsumexp = logsumexp.floats(),
                                   .batch = shape.batch,
                                   .queries = shape.queries,
                                   .keys = shape.keys,
                                   .row_stride = row_stride,
                                   .matrix_stride = matrix_stride,
                                   .mask = mask,
                                   .scale = static_cast<float>(kScale),
                                   .softcap = shape.softcap});
    Operand gradient = dp;
    attention_softmax_backward({}, {.probabilities = scores.floats(),
                                    .gradient = gradient.floats(),
                                    .logsumexp = logsumexp.floats(),
                                    .batch = shape.batch,
                                    .queries = shape.queries,
                                    .keys = shape.keys,
                                    .row_stride = row_stride,
                                    .matrix_stride = matrix_stride,
                                    .scale = static_cast<float>(kScale),
                                    .softcap = shape.softcap});
    std::vector<double> expected, expected_gradient, expected_rounded, expected_lse;
    Operand actual_gradient(DType::f32, 0), actual(DType::f32, 0);
    std::vector<double> got, got_gradient;
    for (std::int64_t item = 0; item < shape.batch * shape.queries; ++item) {
      const std::int64_t query = item % shape.queries;
      const std::int64_t at = item / shape.queries * matrix_stride + query * row_stride;
      std::vector<double> row(static_cast<std::size_t>(shape.keys));
      for (std::size_t k = 0; k < row.size(); ++k) row[k] = raw[static_cast<std::size_t>(at) + k];
      double lse = 0;
      const auto p = probabilities(shape, query, row, static_cast<float>(kScale), &lse);
      expected_lse.push_back(lse);
      for (std::size_t k = 0; k < row.size(); ++k) {
        const auto place = static_cast<std::size_t>(at) + k;
        expected.push_back(p[k]);
        got.push_back(scores[place]);
        if (!sees(shape, query, static_cast<std::int64_t>(k))) {
          EXPECT_EQ(scores[place], 0.0);
          EXPECT_EQ(gradient[place], 0.0);
        }
        EXPECT_EQ(rounded[place], to_float(to_bf16(static_cast<float>(scores[place]))));
        const auto objective = [&](double v) {
          auto moved = row;
          moved[k] = v;
          const auto q = probabilities(shape, query, moved, static_cast<float>(kScale));
          double total = 0;
          for (std::size_t i = 0; i < q.size(); ++i) total += q[i] * dp[std::size_t(at) + i];
          return total;
        };
        expected_gradient.push_back(test::slope(objective, row[k]));
        got_gradient.push_back(gradient[place]);
      }
      for (std::int64_t k = shape.keys; k < row_stride && item % shape.queries + 1 < shape.queries;
           ++k) {  // what lies between the rows stays
        EXPECT_EQ(scores[static_cast<std::size_t>(at + k)], raw[static_cast<std::size_t>(at + k)]);
      }
    }
    test::expect_close(Operand(DType::f32, got), expected, "p");
    test::expect_close(Operand(DType::f32, got_gradient), expected_gradient, "ds", 2.0);
    test::expect_close(logsumexp, expected_lse, "logsumexp", 2.0);
  }
}

TEST(AttentionSoftmax, ANanScoreIsSeenInItsRowAlone) {
  std::vector<float> scores{1, 9, 9, 2, NAN, 9, 3, 4, 5};
  attention_softmax_forward({}, {.scores = scores.data(), .queries = 3, .keys = 3});
  EXPECT_EQ(scores[0], 1.0F);
  EXPECT_TRUE(std::isnan(scores[3]));
  EXPECT_TRUE(std::isnan(scores[4]));
  EXPECT_EQ(scores[5], 0.0F);
  EXPECT_NEAR(scores[6] + scores[7] + scores[8], 1.0, 1e-6);
}

TEST(AttentionSoftmax, OnlyNanIsNotAnEmptyRow) {
  std::vector<float> scores{NAN};
  attention_softmax_forward({}, {.scores = scores.data(), .queries = 1, .keys = 1});
  EXPECT_TRUE(std::isnan(scores[0]));
}

}  // namespace
}  // namespace poros
