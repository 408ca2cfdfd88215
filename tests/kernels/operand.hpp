// SPDX-License-Identifier: Apache-2.0
// Operands of kernel tests: values in a storage type, random data, comparison by dtype.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/dtype.hpp"

namespace poros::test {

/// A host array in a storage type. Values go in and come out as double.
class Operand {
 public:
  Operand() = default;
  Operand(DType dtype, std::size_t count) : dtype_(dtype), count_(count) {
    bytes_.resize(count * bytes_of(dtype));
  }
  Operand(DType dtype, const std::vector<double>& values) : Operand(dtype, values.size()) {
    for (std::size_t i = 0; i < count_; ++i) set(i, values[i]);
  }
  [[nodiscard]] double at(std::size_t i) const {
    switch (dtype_) {
      case DType::f32:
        return load<float>(i);
      case DType::bf16:
        return to_float(load<Bf16>(i));
      case DType::f16:
        return to_float(load<F16>(i));
    }
    return NAN;
  }
  double operator[](std::size_t i) const { return at(i); }
  void set(std::size_t i, double value) {
    const auto single = static_cast<float>(value);
    switch (dtype_) {
      case DType::f32:
        store(i, single);
        return;
      case DType::bf16:
        store(i, to_bf16(single));
        return;
      case DType::f16:
        store(i, to_f16(single));
        return;
    }
  }
  [[nodiscard]] void* data() { return bytes_.data(); }
  [[nodiscard]] const void* data() const { return bytes_.data(); }
  [[nodiscard]] float* floats() { return reinterpret_cast<float*>(bytes_.data()); }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] DType dtype() const { return dtype_; }

 private:
  template <typename T>
  [[nodiscard]] T load(std::size_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <typename T>
  void store(std::size_t i, T value) {
    std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
  }
  DType dtype_ = DType::f32;
  std::size_t count_ = 0;
  std::vector<std::byte> bytes_;
};

/// Normal values of a fixed seed, rounded to the storage type.
inline Operand random_operand(DType dtype, std::int64_t count, unsigned seed, double scale = 1.0) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Operand operand(dtype, static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < operand.size(); ++i) operand.set(i, normal(generator));
  return operand;
}

/// A storage type and the error it may bring: |actual - expected| <= relative*|expected| +
/// absolute*scale. f32: a few roundings of an O(1) sum; bf16: one rounding (2^-9) and a flip of it.
struct Tolerance {
  double relative, absolute;
};
inline Tolerance tolerance_of(DType dtype) {
  return dtype == DType::f32 ? Tolerance{4e-6, 4e-6} : Tolerance{1.0 / 128, 1e-3};
}

/// Every value close; NaN on either side fails, equal infinities pass.
inline void expect_close(const Operand& actual, const std::vector<double>& expected,
                         const std::string& what, double loosen = 1.0) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const Tolerance tolerance = tolerance_of(actual.dtype());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    const double limit =
        loosen * (tolerance.relative * std::fabs(expected[i]) + tolerance.absolute);
    if (!(std::fabs(actual[i] - expected[i]) <= limit)) {
      ADD_FAILURE() << what << "[" << i << "] (" << name_of(actual.dtype()) << "): " << actual[i]
                    << ", expected " << expected[i] << " within " << limit;
      return;
    }
  }
}

/// d/dx of a function of one coordinate, by central differences in double.
template <typename Function>
double slope(const Function& function, double x, double h = 1e-4) {
  return (function(x + h) - function(x - h)) / (2.0 * h);
}

inline std::string dtype_name(const testing::TestParamInfo<DType>& info) {
  return name_of(info.param);
}

}  // namespace poros::test
