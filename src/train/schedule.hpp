// SPDX-License-Identifier: Apache-2.0
// Learning rate schedules, equal to those of transformers.get_scheduler.
#pragma once

#include <cstdint>
#include <string>

namespace poros {

/// Learning rate as a function of the step. With w warm-up steps, T steps in all and s counted from
/// 0, the rate of step s is base * f(s), where f(s) = s / max(1, w) for s < w and from there on
///   constant  1                                (transformers: "constant_with_warmup"; w = 0 gives
///                                               its "constant")
///   linear    max(0, (T - s) / max(1, T - w))
///   cosine    max(0, (1 + cos(pi (s - w) / max(1, T - w))) / 2)
/// With warm-up the first step has the rate 0, as in transformers.
class Schedule {
 public:
  /// @throws Error(Fault::input) when the name is unknown or a count is negative.
  Schedule(const std::string& name, double base_rate, std::int64_t warmup_steps,
           std::int64_t total_steps);

  /// Rate used in step s, counted from 0.
  [[nodiscard]] double rate(std::int64_t step) const;

 private:
  enum class Shape { constant, linear, cosine };
  Shape shape_;
  double base_rate_;
  std::int64_t warmup_steps_, total_steps_;
};

}  // namespace poros
