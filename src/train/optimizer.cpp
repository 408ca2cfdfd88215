// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.hpp"

#include "base/error.hpp"

namespace poros {

FlatParameters flat_parameters(Executor& executor) {
  return {executor.master(), executor.gradient(), executor.exp_avg(), executor.exp_avg_sq(),
          executor.views()};
}

AdamW::AdamW(const FlatParameters& parameters, const AdamWSettings& settings, const Stream& stream)
    : settings_(settings), stream_(stream) {
  if (stream.device != DeviceKind::cpu) {
    fail(Fault::environment, "AdamW: this build of poros-cell has no device code");
  }
  tensors_.reserve(parameters.views.size());
  for (const ParameterView& view : parameters.views) {
    AdamWTensor tensor;
    tensor.weight = parameters.master + view.offset;
    tensor.gradient = parameters.gradient + view.offset;
    tensor.exp_avg = parameters.exp_avg + view.offset;
    tensor.exp_avg_sq = parameters.exp_avg_sq + view.offset;
    tensor.count = view.rows * view.cols;
    tensors_.push_back(tensor);
  }
  const AdamWTensors list{tensors_.data(), nullptr, static_cast<std::int64_t>(tensors_.size())};
  workspace_.resize(static_cast<std::size_t>(global_norm_workspace(list)));
}

GradientNorm AdamW::measure_norm() {
  const AdamWTensors list{tensors_.data(), nullptr, static_cast<std::int64_t>(tensors_.size())};
  global_norm(stream_, {list, workspace_.data(), &norm_});
  return norm_;
}

void AdamW::update(double learning_rate) {
  AdamWStep step;
  step.tensors = {tensors_.data(), nullptr, static_cast<std::int64_t>(tensors_.size())};
  step.norm = &norm_;
  step.step = &updates_;
  step.learning_rate = learning_rate;
  step.beta1 = AdamWSettings::kBeta1;
  step.beta2 = AdamWSettings::kBeta2;
  step.eps = AdamWSettings::kEpsilon;
  step.weight_decay = settings_.weight_decay;
  step.max_norm = settings_.max_grad_norm;
  adamw_step(stream_, step);
}

}  // namespace poros
