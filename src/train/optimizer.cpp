// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.hpp"

namespace poros {

FlatParameters flat_parameters(Executor& executor) {
  return {executor.master(), executor.gradient(), executor.exp_avg(), executor.exp_avg_sq(),
          executor.views()};
}

FlatParameters host_parameters(Executor& executor, std::vector<float>& memory) {
  FlatParameters parameters = flat_parameters(executor);
  const Stream stream = executor.stream();
  if (stream.device == DeviceKind::cpu) return parameters;
  const auto elements = static_cast<std::size_t>(executor.flat_elements());
  memory.resize(4 * elements);
  float* at = memory.data();
  for (float** buffer :
       {&parameters.master, &parameters.gradient, &parameters.exp_avg, &parameters.exp_avg_sq}) {
    copy_bytes(stream, at, *buffer, elements * sizeof(float));
    *buffer = at;
    at += elements;
  }
  synchronise(stream);
  return parameters;
}

AdamW::AdamW(const FlatParameters& parameters, const AdamWSettings& settings, const Stream& stream)
    : settings_(settings), stream_(stream) {
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
  // Pieces at 256-byte boundaries of one allocation.
  std::uint64_t bytes = 0;
  const auto piece = [&](std::uint64_t size) {
    const std::uint64_t at = bytes;
    bytes += (size + 255) / 256 * 256;
    return at;
  };
  const std::uint64_t norm = piece(sizeof(GradientNorm)), updates = piece(sizeof(std::int64_t));
  const std::uint64_t list_bytes = tensors_.size() * sizeof(AdamWTensor);
  const std::uint64_t device_list = piece(list_bytes);
  const std::uint64_t work =
      piece(static_cast<std::uint64_t>(global_norm_workspace(list())) * sizeof(double));
  memory_ = DeviceBuffer(bytes, stream);
  fill_bytes(stream, memory_.data(), 0, bytes);
  norm_ = reinterpret_cast<GradientNorm*>(memory_.data() + norm);
  updates_ = reinterpret_cast<std::int64_t*>(memory_.data() + updates);
  workspace_ = reinterpret_cast<double*>(memory_.data() + work);
  if (stream.device == DeviceKind::cuda) {
    device_tensors_ = reinterpret_cast<AdamWTensor*>(memory_.data() + device_list);
    copy_bytes(stream, device_tensors_, tensors_.data(), list_bytes);
    synchronise(stream);
  }
}

AdamWTensors AdamW::list() const {
  return {tensors_.data(), device_tensors_, static_cast<std::int64_t>(tensors_.size())};
}

GradientNorm AdamW::measure_norm() {
  global_norm(stream_, {list(), workspace_, norm_});
  GradientNorm norm;
  read_back(stream_, &norm, norm_, sizeof norm);
  return norm;
}

void AdamW::restore(std::int64_t updates) {
  copy_bytes(stream_, updates_, &updates, sizeof updates);
  synchronise(stream_);
}

std::int64_t AdamW::updates() const {
  std::int64_t updates = 0;
  read_back(stream_, &updates, updates_, sizeof updates);
  return updates;
}

void AdamW::update(double learning_rate) {
  AdamWStep step;
  step.tensors = list();
  step.norm = norm_;
  step.step = updates_;
  step.learning_rate = learning_rate;
  step.beta1 = AdamWSettings::kBeta1;
  step.beta2 = AdamWSettings::kBeta2;
  step.eps = AdamWSettings::kEpsilon;
  step.weight_decay = settings_.weight_decay;
  step.max_norm = settings_.max_grad_norm;
  adamw_step(stream_, step);
}

}  // namespace poros
