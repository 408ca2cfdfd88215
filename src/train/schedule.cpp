// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.hpp"

namespace poros {

Schedule::Schedule(const std::string& name, double base_rate, std::int64_t warmup_steps,
                   std::int64_t total_steps)
    : base_rate_(base_rate), warmup_steps_(warmup_steps), total_steps_(total_steps) {
  if (name == "constant") {
    shape_ = Shape::constant;
  } else if (name == "linear") {
    shape_ = Shape::linear;
  } else if (name == "cosine") {
    shape_ = Shape::cosine;
  } else {
    fail(Fault::input, "lr_scheduler \"{}\" is unknown; use constant, cosine or linear", name);
  }
  if (warmup_steps < 0 || total_steps < 0) {
    fail(Fault::input, "lr_warmup_steps {} and steps {} must not be negative", warmup_steps,
         total_steps);
  }
}

double Schedule::rate(std::int64_t step) const {
  const auto s = static_cast<double>(step);
  const auto warmup = static_cast<double>(warmup_steps_);
  if (step < warmup_steps_) return base_rate_ * (s / std::max(1.0, warmup));
  const auto total = static_cast<double>(total_steps_);
  const double span = std::max(1.0, total - warmup);
  switch (shape_) {
    case Shape::constant:
      return base_rate_;
    case Shape::linear:
      return base_rate_ * std::max(0.0, (total - s) / span);
    case Shape::cosine:
      return base_rate_ *
             std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * ((s - warmup) / span))));
  }
  return base_rate_;
}

}  // namespace poros
