// SPDX-License-Identifier: Apache-2.0
#include "kernels/low_rank.hpp"

#include "kernels/checks.hpp"

namespace poros {
namespace {

void require_count(const char* name, int count) {
  require(name, count >= 0 && count <= kLowRankParts, "too many parts");
}

}  // namespace

bool low_rank_fits(std::int64_t rows, std::int64_t width, std::int64_t rank) {
  return rows % kLowRankRows == 0 && width % kLowRankWidth == 0 && rank % kLowRankGranule == 0 &&
         rank > 0 && rank <= kLowRankMost;
}

void low_rank_project(const Stream& stream, const LowRankProject& op) {
  const char* name = "low_rank_project";
  require_activation(name, op.dtype);
  require_count(name, op.count);
  if (op.rows == 0 || op.count == 0) return;
  for (int i = 0; i < op.count; ++i) {
    const LowRankProject::Part& part = op.parts[static_cast<std::size_t>(i)];
    require(name, part.x != nullptr && part.w != nullptr && part.y != nullptr, "null operand");
    require(name, low_rank_fits(op.rows, part.width, part.rank), "sizes that do not fit");
    require(name, part.padded >= part.rank && part.padded % kLowRankGranule == 0, "bad padding");
    require_stride(name, part.x_stride, part.width);
    require_stride(name, part.y_stride, part.padded);
  }
  dispatch<const LowRankProject&>(name, stream, cpu::low_rank_project,
                                  cuda_kernels().low_rank_project, op);
}

void low_rank_outer(const Stream& stream, const LowRankOuter& op) {
  const char* name = "low_rank_outer";
  require_activation(name, op.dtype);
  require_count(name, op.count);
  if (op.rows == 0 || op.count == 0) return;
  for (int i = 0; i < op.count; ++i) {
    const LowRankOuter::Part& part = op.parts[static_cast<std::size_t>(i)];
    require(name, part.x != nullptr && part.p != nullptr && part.c != nullptr, "null operand");
    require(name, low_rank_fits(op.rows, part.width, part.rank), "sizes that do not fit");
    require_stride(name, part.x_stride, part.width);
    require_stride(name, part.p_stride, part.rank);
  }
  dispatch<const LowRankOuter&>(name, stream, cpu::low_rank_outer, cuda_kernels().low_rank_outer,
                                op);
}

void low_rank_transpose(const Stream& stream, const LowRankTranspose& op) {
  const char* name = "low_rank_transpose";
  require_activation(name, op.dtype);
  if (op.count == 0) return;
  require(name, op.x != nullptr && op.y != nullptr && op.list != nullptr, "null operand");
  dispatch<const LowRankTranspose&>(name, stream, cpu::low_rank_transpose,
                                    cuda_kernels().low_rank_transpose, op);
}

void low_rank_columns(const Stream& stream, const LowRankColumns& op) {
  const char* name = "low_rank_columns";
  require_activation(name, op.dtype);
  if (op.rows == 0 || op.padded == 0) return;
  require(name, op.y != nullptr && (op.b != nullptr || op.rank == 0), "null operand");
  require(name, op.first >= 0 && op.first + op.rank <= op.padded, "columns outside the padding");
  require_stride(name, op.y_stride, op.padded);
  dispatch<const LowRankColumns&>(name, stream, cpu::low_rank_columns,
                                  cuda_kernels().low_rank_columns, op);
}

}  // namespace poros
