// SPDX-License-Identifier: Apache-2.0
#include "kernels/dequantise.hpp"

#include "kernels/checks.hpp"

namespace poros {

void dequantise(const Stream& stream, const Dequantise& op) {
  const char* name = "dequantise";
  require_activation(name, op.dtype);
  require(name, op.count >= 0, "negative size");
  if (op.count == 0) return;
  const Nf4View& tensor = op.tensor;
  require(name, tensor.codes != nullptr && op.out != nullptr, "null operand");
  require(name,
          tensor.absmax != nullptr || (tensor.q != nullptr && tensor.nested_absmax != nullptr),
          "neither absmax nor its quantised form is given");
  if (op.cols != 0) {
    require(name, op.cols > 0 && op.cols % 8 == 0 && op.count % op.cols == 0, "bad row length");
    require(name, op.out_stride >= op.cols && op.out_stride % 8 == 0, "bad row stride");
    require(name, op.count / 8 < std::int64_t{1} << 31, "too many values for strided rows");
  }
  if (op.columns.rows != 0) {
    const LowRankColumns& columns = op.columns;
    require(name, op.cols != 0 && columns.dtype == op.dtype, "columns of another form");
    require(name, columns.y != nullptr && (columns.b != nullptr || columns.rank == 0),
            "null columns");
    require(name, columns.first >= 0 && columns.first + columns.rank <= columns.padded,
            "columns outside the padding");
    require_stride(name, columns.y_stride, columns.padded);
  }
  require(name, op.below_count == 0 || (op.below != nullptr && op.cols == 0), "no rows below");
  dispatch<const Dequantise&>(name, stream, cpu::dequantise, cuda_kernels().dequantise, op);
}

}  // namespace poros
