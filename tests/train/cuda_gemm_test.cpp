// SPDX-License-Identifier: Apache-2.0
// cublasLt products against sums in double: transposes, strides, offsets that are barely aligned,
// batches, beta, shared output.
#include <cmath>
#include <cstring>
#include <random>

#include "cuda_fixture.hpp"
#include "train/gemm.hpp"

namespace poros {
namespace {

/// A matrix of normal numbers in host and device memory, rows `stride` apart.
class Matrix2 {
 public:
  Matrix2(std::int64_t rows, std::int64_t stride, DType dtype, unsigned seed, const Stream& stream)
      : dtype_(dtype),
        values_(static_cast<std::size_t>(rows * stride)),
        device_(values_.size() * bytes_of(dtype), stream) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<std::byte> bytes(device_.bytes());
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const float value = normal(generator);
      const Bf16 rounded = to_bf16(value);
      values_[i] = dtype == DType::f32 ? value : to_float(rounded);
      std::memcpy(bytes.data() + i * bytes_of(dtype),
                  dtype == DType::f32 ? static_cast<const void*>(&value) : &rounded,
                  bytes_of(dtype));
    }
    copy_bytes(stream, device_.data(), bytes.data(), bytes.size());
    synchronise(stream);
  }
  [[nodiscard]] std::byte* at(std::int64_t element) const {
    return device_.data() + static_cast<std::size_t>(element) * bytes_of(dtype_);
  }
  [[nodiscard]] double value(std::int64_t element) const {
    return static_cast<double>(values_[static_cast<std::size_t>(element)]);
  }
  [[nodiscard]] std::vector<double> read(const Stream& stream) const {
    std::vector<std::byte> bytes(device_.bytes());
    read_back(stream, bytes.data(), device_.data(), bytes.size());
    std::vector<double> values;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      float single = 0;
      if (dtype_ == DType::f32) {
        std::memcpy(&single, bytes.data() + 4 * i, 4);
      } else {
        Bf16 half;
        std::memcpy(&half, bytes.data() + 2 * i, 2);
        single = to_float(half);
      }
      values.push_back(static_cast<double>(single));
    }
    return values;
  }

 private:
  DType dtype_;
  std::vector<float> values_;
  DeviceBuffer device_;
};

struct Case {
  DType in, out;
  std::int64_t m, n, k;
  bool ta, tb;
  std::int64_t extra;   // columns that each row is longer
  std::int64_t offset;  // elements before the operands
  std::int64_t batch;
  bool shared_c;
  float alpha, beta;
};

class CudaGemmTest : public CudaTest {};

/// C = A B + addend + bias in one rounding: by the epilogue where the bias has C's dtype, else
/// after it.
TEST_F(CudaGemmTest, AddsAnotherMatrixAndABias) {
  const Stream stream{DeviceKind::cuda, cuda_device().open(), 1};
  const DeviceBuffer workspace(std::uint64_t{32} << 20, stream);
  const auto engine = cuda_device().make_gemm(stream, workspace.data(), workspace.bytes());
  constexpr std::int64_t m = 192, n = 320, k = 272, stride = n + 64;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const DType bias_dtype : {DType::bf16, DType::f32}) {
      for (const bool adds : {true, false}) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << ", bias " << name_of(bias_dtype)
                                        << (adds ? ", addend" : ""));
        const Matrix2 a(m, k, dtype, 1, stream), b(n, k, dtype, 2, stream);
        const Matrix2 c(m, n, dtype, 3, stream), addend(m, stride, dtype, 4, stream);
        const Matrix2 bias(1, n, bias_dtype, 5, stream), other(1, n, bias_dtype, 6, stream);
        Gemm gemm = {.a = {a.at(0), dtype, k},
                     .b = {b.at(0), dtype, k, true},
                     .c = c.at(0),
                     .c_dtype = dtype,
                     .c_stride = n,
                     .m = m,
                     .n = n,
                     .k = k,
                     .bias = other.at(0),
                     .bias_dtype = bias_dtype};
        if (adds) {
          gemm.beta = 1.0F;
          gemm.addend = addend.at(0);
          gemm.addend_stride = stride;
        }
        engine->multiply(gemm);  // the kept choice takes another bias the next time
        gemm.bias = bias.at(0);
        engine->multiply(gemm);
        const std::vector<double> got = c.read(stream);
        double difference = 0, norm = 0;
        for (std::int64_t row = 0; row < m; ++row) {
          for (std::int64_t col = 0; col < n; ++col) {
            double wanted = bias.value(col) + (adds ? addend.value(row * stride + col) : 0.0);
            for (std::int64_t i = 0; i < k; ++i) {
              wanted += a.value(row * k + i) * b.value(col * k + i);
            }
            const double error = got[static_cast<std::size_t>(row * n + col)] - wanted;
            difference += error * error;
            norm += wanted * wanted;
          }
        }
        const double distance = std::sqrt(difference / norm);
        EXPECT_TRUE(std::isfinite(distance));
        EXPECT_LT(distance, dtype == DType::f32 ? 2e-5 : 3e-3);
      }
    }
  }
}

TEST_F(CudaGemmTest, AgreesWithSumsInDouble) {
  const Stream stream{DeviceKind::cuda, cuda_device().open(), 1};
  const DeviceBuffer workspace(std::uint64_t{32} << 20, stream);
  const auto engine = cuda_device().make_gemm(stream, workspace.data(), workspace.bytes());
  using enum DType;
  const Case cases[] = {
      {bf16, bf16, 192, 320, 256, false, true, 0, 0, 1, false, 1, 0},
      {bf16, bf16, 192, 320, 256, false, false, 64, 0, 1, false, 0.5F, 1},
      {bf16, f32, 48, 256, 512, true, false, 0, 0, 1, false, 2, 1},
      {bf16, f32, 8, 200, 64, true, false, 16, 8, 1, false, 1, 1},
      {bf16, bf16, 100, 8, 64, false, false, 16, 4, 1, false, 1, 0},
      {bf16, bf16, 100, 12, 6, false, true, 2, 2, 1, false, 1, 1},
      {bf16, bf16, 64, 5, 256, false, true, 0, 0, 1, false, 1, 0},  // a router of 5 experts
      {bf16, bf16, 64, 256, 5, false, false, 0, 0, 1, false, 1, 1},
      {bf16, f32, 64, 80, 64, false, true, 32, 0, 3, false, 1, 0},
      {bf16, f32, 80, 64, 64, true, false, 32, 0, 3, true, 1, 1},
      {f32, f32, 192, 320, 256, false, true, 0, 0, 1, false, 1, 0},
      {f32, f32, 33, 17, 65, true, true, 3, 1, 1, false, 1, 1},
      {f32, f32, 64, 80, 96, true, false, 4, 4, 3, true, 1, 1},
  };
  for (const Case& c : cases) {
    const std::int64_t a_rows = c.ta ? c.k : c.m, a_stride = (c.ta ? c.m : c.k) + c.extra;
    const std::int64_t b_rows = c.tb ? c.n : c.k, b_stride = (c.tb ? c.k : c.n) + c.extra;
    const std::int64_t c_stride = c.n + c.extra;
    const Matrix2 a(a_rows * c.batch + 1, a_stride, c.in, 1, stream);
    const Matrix2 b(b_rows * c.batch + 1, b_stride, c.in, 2, stream);
    const Matrix2 result(c.m * c.batch + 1, c_stride, c.out, 3, stream);
    const std::int64_t c_batch = c.shared_c ? 0 : c.m * c_stride;
    Gemm gemm;
    gemm.a = {a.at(c.offset), c.in, a_stride, c.ta, a_rows * a_stride};
    gemm.b = {b.at(c.offset), c.in, b_stride, c.tb, b_rows * b_stride};
    gemm.c = result.at(c.offset);
    gemm.c_dtype = c.out;
    gemm.c_stride = c_stride;
    gemm.c_batch_stride = c_batch;
    gemm.m = c.m;
    gemm.n = c.n;
    gemm.k = c.k;
    gemm.batch = c.batch;
    gemm.alpha = c.alpha;
    gemm.beta = c.beta;
    SCOPED_TRACE(testing::Message() << name_of(c.in) << " to " << name_of(c.out) << " m " << c.m
                                    << " n " << c.n << " k " << c.k << " offset " << c.offset);
    try {
      engine->multiply(gemm);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
      continue;
    }
    const std::vector<double> got = result.read(stream);
    double difference = 0, norm = 0, untouched = 0;
    for (std::int64_t batch = 0; batch < (c.shared_c ? 1 : c.batch); ++batch) {
      for (std::int64_t row = 0; row < c.m; ++row) {
        for (std::int64_t col = 0;
             col < c_stride && batch * c_batch + row * c_stride + col + c.offset <
                                   static_cast<std::int64_t>(got.size());
             ++col) {
          const std::int64_t at = c.offset + batch * c_batch + row * c_stride + col;
          if (col >= c.n) {
            untouched += std::abs(got[static_cast<std::size_t>(at)] - result.value(at));
            continue;
          }
          double sum = 0;
          for (std::int64_t turn = 0; turn < (c.shared_c ? c.batch : 1); ++turn) {
            const std::int64_t product = c.shared_c ? turn : batch;
            for (std::int64_t i = 0; i < c.k; ++i) {
              const std::int64_t left = c.ta ? i * a_stride + row : row * a_stride + i;
              const std::int64_t right = c.tb ? col * b_stride + i : i * b_stride + col;
              sum += a.value(c.offset + product * a_rows * a_stride + left) *
                     b.value(c.offset + product * b_rows * b_stride + right);
            }
          }
          const double wanted =
              static_cast<double>(c.alpha) * sum + static_cast<double>(c.beta) * result.value(at);
          const double error = got[static_cast<std::size_t>(at)] - wanted;
          difference += error * error;
          norm += wanted * wanted;
        }
      }
    }
    const double distance = std::sqrt(difference / norm);
    EXPECT_TRUE(std::isfinite(distance));
    // The matrix unit truncates where it adds up, so fp32 results are a little worse than rounding.
    EXPECT_LT(distance, c.out == f32 ? 2e-5 : 3e-3);
    EXPECT_EQ(untouched, 0);
  }
}

}  // namespace
}  // namespace poros
