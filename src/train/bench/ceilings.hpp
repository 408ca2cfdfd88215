// SPDX-License-Identifier: Apache-2.0
// What this GPU can do at most, measured: the matrix products of a model's layers back to back, a
// copy on the device, a copy from page-locked host memory.
#pragma once

#include "kernels/device.hpp"
#include "model/architecture.hpp"

namespace poros::bench {

struct Ceilings {
  double matrix_tflops = 0;    // bf16, random data, the products of a layer at their shapes
  double device_gb_per_s = 0;  // bytes read and written
  double host_link_gb_per_s = 0;
};

/// TFLOP/s of plain products with the weights of a layer (q, k and v in one, gate and up in one):
/// forward, the same again without down, and dX, in a loop.
/// @param rows    tokens of a sweep
/// @param seconds that the loop runs, so that clocks settle
[[nodiscard]] double measure_products(const Stream& stream, const Architecture& architecture,
                                      std::int64_t rows, double seconds);

/// Fills in the copy rates.
void measure_copies(const Stream& stream, Ceilings& ceilings);

}  // namespace poros::bench
