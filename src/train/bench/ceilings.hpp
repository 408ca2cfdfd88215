// SPDX-License-Identifier: Apache-2.0
// What this GPU can do at most, measured: a large bf16 matrix product, a copy on the device, a copy
// from page-locked host memory.
#pragma once

#include "kernels/device.hpp"

namespace poros::bench {

struct Ceilings {
  double matrix_tflops = 0;    // 8192 x 8192 x 8192, bf16, random data
  double device_gb_per_s = 0;  // bytes read and written
  double host_link_gb_per_s = 0;
};

/// @param seconds that the matrix product runs, so that clocks settle
[[nodiscard]] Ceilings measure_ceilings(const Stream& stream, double seconds);

}  // namespace poros::bench
