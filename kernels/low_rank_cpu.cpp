// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "kernels/backends.hpp"
#include "kernels/parallel.hpp"

namespace poros::cpu {
namespace {

float read(const void* data, DType dtype, std::int64_t at) {
  return dtype == DType::f32 ? static_cast<const float*>(data)[at]
                             : to_float(static_cast<const Bf16*>(data)[at]);
}

void write(void* data, DType dtype, std::int64_t at, float value) {
  if (dtype == DType::f32) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<Bf16*>(data)[at] = to_bf16(value);
  }
}

}  // namespace

void low_rank_project(const Stream& stream, const LowRankProject& op) {
  for (int index = 0; index < op.count; ++index) {
    const LowRankProject::Part& part = op.parts[static_cast<std::size_t>(index)];
    parallel_for(stream.threads, op.rows, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t j = 0; j < part.padded; ++j) {
          float sum = 0;
          for (std::int64_t c = 0; j < part.rank && c < part.width; ++c) {
            sum += read(part.x, op.dtype, row * part.x_stride + c) *
                   read(part.w, op.dtype, j * part.width + c);
          }
          write(part.y, op.dtype, row * part.y_stride + j, part.scale * sum);
        }
      }
    });
  }
}

void low_rank_outer(const Stream& stream, const LowRankOuter& op) {
  for (int index = 0; index < op.count; ++index) {
    const LowRankOuter::Part& part = op.parts[static_cast<std::size_t>(index)];
    parallel_for(stream.threads, part.width, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) {
        for (std::int64_t j = 0; j < part.rank; ++j) {
          float total = 0;
          for (std::int64_t group = 0; group < op.rows; group += kLowRankGroup) {
            float sum = 0;
            for (std::int64_t row = group; row < std::min(op.rows, group + kLowRankGroup); ++row) {
              sum += read(part.x, op.dtype, row * part.x_stride + m) *
                     read(part.p, op.dtype, row * part.p_stride + j);
            }
            total += sum;
          }
          part.c[m * part.row + j * part.column] += part.scale * total;
        }
      }
    });
  }
}

void low_rank_transpose(const Stream& stream, const LowRankTranspose& op) {
  parallel_for(stream.threads, op.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      const std::int64_t offset = op.list[3 * index], out = op.list[3 * index + 1],
                         rank = op.list[3 * index + 2];
      for (std::int64_t i = 0; i < out; ++i) {
        for (std::int64_t j = 0; j < rank; ++j) {
          write(op.y, op.dtype, offset + j * out + i, op.x[offset + i * rank + j]);
        }
      }
    }
  });
}

void low_rank_columns(const Stream& stream, const LowRankColumns& op) {
  parallel_for(stream.threads, op.rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t j = 0; j < op.padded; ++j) {
        const std::int64_t of_b = j - op.first;
        float value = 0;
        if (of_b >= 0 && of_b < op.rank) {
          const std::int64_t at = op.turned ? of_b * op.rows + row : row * op.rank + of_b;
          value = op.scale * read(op.b, op.dtype, at);
        }
        write(op.y, op.dtype, row * op.y_stride + j, value);
      }
    }
  });
}

}  // namespace poros::cpu
