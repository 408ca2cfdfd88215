// SPDX-License-Identifier: Apache-2.0
// The kernels at the shapes of one training step of a 7B model (Qwen2.5-7B: hidden 3584,
// intermediate 18944, 28 heads, 4 key/value heads of 128, 4096 rows a sweep).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros::bench {

/// What an operand holds at the start. Integers are int32 in [0, limit).
enum class Fill { normal, positive, bytes, integers, iota, zeros };

struct Operand {
  std::string name;
  Fill fill = Fill::normal;
  std::size_t bytes = 0;
  DType dtype = DType::bf16;  // of normal and positive
  double scale = 1.0;
  std::int32_t limit = 1;
  bool checked = false;  // compared with the CPU reference after one run
  bool exact = false;    // to the bit
  double loosen = 1.0;   // factor on the dtype's tolerance
};

struct Case {
  std::string name, shape;
  double moved = 0;  // bytes that have to cross the memory bus, each operand once
  std::vector<Operand> operands;
  /// Runs the op on operands in memory of the stream's device.
  std::function<void(const Stream&, const std::vector<void*>&)> run;
};

using Pointers = std::vector<void*>;

[[nodiscard]] std::vector<Case> all_cases();
[[nodiscard]] std::vector<Case> lora_cases();
[[nodiscard]] std::vector<Case> optimizer_cases();
[[nodiscard]] std::vector<Case> moe_cases();

}  // namespace poros::bench
