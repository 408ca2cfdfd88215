// SPDX-License-Identifier: Apache-2.0
// Comparing two arms bit by bit: hashes of every tensor a step, and dumped tensors of one step.
//
// Steps are counted from 1 here, in step events and in a request's `dump`: step n is the n-th
// optimizer step. A dump folder holds, for each kind, <kind>.safetensors with one fp32 tensor per
// PEFT tensor name, for the kinds gradient (as accumulated, before clipping), exp_avg, exp_avg_sq
// and weight (after the step), and scalars.safetensors with `loss` and `grad_norm`, fp32, one
// element.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "receipts/pass_record.hpp"

namespace poros {

/// Kinds of tensors in StepHashes and in a dump, in the order in which a step makes them.
inline constexpr const char* kParityKinds[] = {"gradient", "exp_avg", "exp_avg_sq", "weight"};
inline constexpr const char* kParityScalars = "scalars";  // loss and grad_norm of a dump

struct HashDifference {
  std::int64_t step = 0;  // from 1
  std::string kind;       // loss | gradient | grad_norm | exp_avg | exp_avg_sq | weight | steps
  std::string tensor;     // PEFT tensor name; empty for loss, grad_norm and steps
  std::string hash_a, hash_b;  // empty on the side that has no such tensor or step
};

struct HashComparison {
  bool equal = false;
  std::int64_t steps = 0;               // compared in full
  std::int64_t hashes = 0;              // pairs compared
  std::optional<HashDifference> first;  // set exactly when not equal
};

/// Compares two arms' hashes, step by step and within a step in the order in which values come to
/// be: loss, gradients, norm, moments, weights; tensors by layer number. Kind "steps": one arm has
/// fewer steps.
/// @throws Error(Fault::run) when an arm has no hashes or a step without any: nothing was measured,
/// and equality of nothing must not pass for parity.
[[nodiscard]] HashComparison compare_hashes(const std::vector<StepHashes>& a,
                                            const std::vector<StepHashes>& b);

/// The element of one kind at which two dumps differ most.
struct DumpDifference {
  double max_abs = 0;      // max |a - b|; infinity where exactly one of the two is not finite
  std::string tensor;      // where; empty when equal
  std::int64_t index = 0;  // flat, row-major
  double a = 0, b = 0;
  std::int64_t elements = 0;  // compared
  std::int64_t unequal = 0;   // elements whose bits differ
};

/// Compares two dump folders; one entry a kind, "loss" and "grad_norm" among them.
/// @throws Error(Fault::input) naming file and tensor when files are missing, malformed or of
/// different names, dtypes or shapes.
[[nodiscard]] std::map<std::string, DumpDifference> compare_dumps(const std::filesystem::path& a,
                                                                  const std::filesystem::path& b);

}  // namespace poros
