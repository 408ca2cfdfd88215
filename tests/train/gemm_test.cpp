// SPDX-License-Identifier: Apache-2.0
// The products against a plain triple loop in double precision.
#include "train/gemm.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "train/executor.hpp"

namespace poros {
namespace {

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(generator);
  return values;
}

/// The same values as bf16, and the floats that these are.
std::vector<Bf16> as_bf16(std::vector<float>& values) {
  std::vector<Bf16> rounded;
  for (float& value : values) {
    rounded.push_back(to_bf16(value));
    value = to_float(rounded.back());
  }
  return rounded;
}

struct Shape {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
};

class GemmShapes : public testing::TestWithParam<Shape> {
 protected:
  static constexpr std::int64_t kPad = 3;  // beyond each row: strides are respected
  GemmShapes() {
    prepare_cpu_math(cpu_device_model(2));
    workspace_.resize(1 << 16);
    gemm_ = make_cpu_gemm(Stream{}, workspace_.data(), workspace_.size() * sizeof(float));
  }
  std::vector<float> workspace_;
  std::unique_ptr<GemmEngine> gemm_;
};

TEST_P(GemmShapes, EqualATripleLoop) {
  const Shape shape = GetParam();
  const std::int64_t a_rows = shape.transpose_a ? shape.k : shape.m;
  const std::int64_t a_stride = (shape.transpose_a ? shape.m : shape.k) + kPad;
  const std::int64_t b_rows = shape.transpose_b ? shape.n : shape.k;
  const std::int64_t b_stride = (shape.transpose_b ? shape.k : shape.n) + kPad;
  const std::int64_t c_stride = shape.n + kPad;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const DType c_dtype : {DType::f32, DType::bf16}) {
      for (const float beta : {0.0F, 1.0F}) {
        auto a = random_values(static_cast<std::size_t>(a_rows * a_stride), 1);
        auto b = random_values(static_cast<std::size_t>(b_rows * b_stride), 2);
        auto c = random_values(static_cast<std::size_t>(shape.m * c_stride), 3);
        const auto a16 = dtype == DType::bf16 ? as_bf16(a) : std::vector<Bf16>{};
        const auto b16 = dtype == DType::bf16 ? as_bf16(b) : std::vector<Bf16>{};
        auto c16 = c_dtype == DType::bf16 ? as_bf16(c) : std::vector<Bf16>{};
        const std::vector<float> before = c;
        const void* a_data = dtype == DType::bf16 ? static_cast<const void*>(a16.data()) : a.data();
        const void* b_data = dtype == DType::bf16 ? static_cast<const void*>(b16.data()) : b.data();
        void* c_data = c_dtype == DType::bf16 ? static_cast<void*>(c16.data()) : c.data();
        gemm_->multiply({.a = {a_data, dtype, a_stride, shape.transpose_a},
                         .b = {b_data, dtype, b_stride, shape.transpose_b},
                         .c = c_data,
                         .c_dtype = c_dtype,
                         .c_stride = c_stride,
                         .m = shape.m,
                         .n = shape.n,
                         .k = shape.k,
                         .alpha = 0.5F,
                         .beta = beta});
        const double tolerance = c_dtype == DType::bf16 ? 0.0079 : 1e-5;
        for (std::int64_t row = 0; row < shape.m; ++row) {
          for (std::int64_t col = 0; col < c_stride; ++col) {
            const auto at = static_cast<std::size_t>(row * c_stride + col);
            const float got = c_dtype == DType::bf16 ? to_float(c16[at]) : c[at];
            if (col >= shape.n) {
              ASSERT_EQ(got, before[at]) << "padding written";
              continue;
            }
            double sum = 0;
            for (std::int64_t k = 0; k < shape.k; ++k) {
              const auto ai = shape.transpose_a ? k * a_stride + row : row * a_stride + k;
              const auto bi = shape.transpose_b ? col * b_stride + k : k * b_stride + col;
              sum += static_cast<double>(a[static_cast<std::size_t>(ai)]) *
                     static_cast<double>(b[static_cast<std::size_t>(bi)]);
            }
            const double wanted = 0.5 * sum + static_cast<double>(beta * before[at]);
            ASSERT_NEAR(static_cast<double>(got), wanted, tolerance * (1 + std::abs(wanted)));
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GemmShapes,
                         testing::Values(Shape{5, 7, 9, false, true}, Shape{5, 7, 9, false, false},
                                         Shape{5, 7, 9, true, false}, Shape{5, 7, 9, true, true},
                                         Shape{64, 48, 33, false, true},
                                         Shape{1, 1, 1, false, false},
                                         Shape{40, 2, 64, true, false}));

/// C = A B + addend + bias; what C held is not read. One rounding, also where C is bf16.
TEST_P(GemmShapes, AddAnotherMatrixAndABias) {
  const Shape shape = GetParam();
  const std::int64_t a_stride = shape.transpose_a ? shape.m : shape.k;
  const std::int64_t b_stride = shape.transpose_b ? shape.k : shape.n;
  const std::int64_t c_stride = shape.n + kPad, addend_stride = shape.n + 1;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    auto a = random_values(static_cast<std::size_t>(shape.m * shape.k), 1);
    auto b = random_values(static_cast<std::size_t>(shape.k * shape.n), 2);
    auto addend = random_values(static_cast<std::size_t>(shape.m * addend_stride), 3);
    auto bias = random_values(static_cast<std::size_t>(shape.n), 4);
    const auto a16 = as_bf16(a), b16 = as_bf16(b), addend16 = as_bf16(addend),
               bias16 = as_bf16(bias);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> c(static_cast<std::size_t>(shape.m * c_stride), nan);
    std::vector<Bf16> c16(c.size(), to_bf16(nan));
    const bool rounds = dtype == DType::bf16;
    gemm_->multiply({.a = {rounds ? static_cast<const void*>(a16.data()) : a.data(), dtype,
                           a_stride, shape.transpose_a},
                     .b = {rounds ? static_cast<const void*>(b16.data()) : b.data(), dtype,
                           b_stride, shape.transpose_b},
                     .c = rounds ? static_cast<void*>(c16.data()) : c.data(),
                     .c_dtype = dtype,
                     .c_stride = c_stride,
                     .m = shape.m,
                     .n = shape.n,
                     .k = shape.k,
                     .beta = 1.0F,
                     .addend = rounds ? static_cast<const void*>(addend16.data()) : addend.data(),
                     .addend_stride = addend_stride,
                     .bias = bias16.data(),
                     .bias_dtype = DType::bf16});
    for (std::int64_t row = 0; row < shape.m; ++row) {
      for (std::int64_t col = 0; col < shape.n; ++col) {
        double wanted =
            static_cast<double>(addend[static_cast<std::size_t>(row * addend_stride + col)]) +
            static_cast<double>(bias[static_cast<std::size_t>(col)]);
        for (std::int64_t k = 0; k < shape.k; ++k) {
          const auto ai = shape.transpose_a ? k * a_stride + row : row * a_stride + k;
          const auto bi = shape.transpose_b ? col * b_stride + k : k * b_stride + col;
          wanted += static_cast<double>(a[static_cast<std::size_t>(ai)]) *
                    static_cast<double>(b[static_cast<std::size_t>(bi)]);
        }
        const auto at = static_cast<std::size_t>(row * c_stride + col);
        const float got = rounds ? to_float(c16[at]) : c[at];
        ASSERT_NEAR(static_cast<double>(got), wanted,
                    (rounds ? 0.004 : 1e-5) * (1 + std::abs(wanted)));
      }
    }
  }
}

TEST(Gemm, WithBetaZeroAnOldNanIsNotRead) {
  prepare_cpu_math(cpu_device_model(1));
  const auto gemm = make_cpu_gemm(Stream{}, nullptr, 0);
  const std::vector<float> a = {1, 2}, b = {3, 4};
  float c = std::numeric_limits<float>::quiet_NaN();
  gemm->multiply({.a = {a.data(), DType::f32, 2},
                  .b = {b.data(), DType::f32, 2, true},
                  .c = &c,
                  .c_stride = 1,
                  .m = 1,
                  .n = 1,
                  .k = 2});
  EXPECT_EQ(c, 11.0F);
}

TEST(Gemm, ABatchThatSharesCAddsUp) {
  prepare_cpu_math(cpu_device_model(1));
  const auto gemm = make_cpu_gemm(Stream{}, nullptr, 0);
  const std::vector<float> a = {1, 2, 3}, b = {10, 20, 30};
  float c = 5;
  gemm->multiply({.a = {a.data(), DType::f32, 1, false, 1},
                  .b = {b.data(), DType::f32, 1, false, 1},
                  .c = &c,
                  .c_stride = 1,
                  .m = 1,
                  .n = 1,
                  .k = 1,
                  .batch = 3,
                  .beta = 1.0F});
  EXPECT_EQ(c, 145.0F);
}

TEST(Gemm, RefusesMoreThanItsWorkspace) {
  prepare_cpu_math(cpu_device_model(1));
  std::vector<float> workspace(16);
  const auto gemm = make_cpu_gemm(Stream{}, workspace.data(), workspace.size() * sizeof(float));
  const std::vector<Bf16> a(16), b(16);
  float c[16];
  EXPECT_THROW(gemm->multiply({.a = {a.data(), DType::bf16, 4},
                               .b = {b.data(), DType::bf16, 4},
                               .c = c,
                               .c_stride = 4,
                               .m = 4,
                               .n = 4,
                               .k = 4}),
               Error);
}

}  // namespace
}  // namespace poros
