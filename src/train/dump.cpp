// SPDX-License-Identifier: Apache-2.0
#include "train/dump.hpp"

#include <system_error>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "model/safetensors.hpp"

namespace poros {
namespace {

TensorToWrite tensor_of(std::string name, std::vector<std::int64_t> shape, const float* values) {
  TensorToWrite tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  std::uint64_t bytes = sizeof(float);
  for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::uint64_t>(extent);
  tensor.write = [values, bytes](const TensorToWrite::Sink& sink) { sink(values, bytes); };
  return tensor;
}

}  // namespace

void dump_step(const std::filesystem::path& folder, const FlatParameters& parameters, float loss,
               float grad_norm) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(Fault::io, "{}: {}", folder.string(), error.message());
  const std::pair<const char*, const float*> kinds[] = {{"gradient", parameters.gradient},
                                                        {"exp_avg", parameters.exp_avg},
                                                        {"exp_avg_sq", parameters.exp_avg_sq},
                                                        {"weight", parameters.master}};
  for (const auto& [kind, buffer] : kinds) {
    std::vector<TensorToWrite> tensors;
    for (const ParameterView& view : parameters.views) {
      tensors.push_back(tensor_of(view.name, {view.rows, view.cols}, buffer + view.offset));
    }
    write_safetensors(folder / (std::string(kind) + ".safetensors"), std::move(tensors));
  }
  write_safetensors(folder / "scalars.safetensors",
                    {tensor_of("loss", {1}, &loss), tensor_of("grad_norm", {1}, &grad_norm)});
}

}  // namespace poros
