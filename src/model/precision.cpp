// SPDX-License-Identifier: Apache-2.0
#include "model/precision.hpp"

#include "base/error.hpp"
#include "kernels/nf4.hpp"
#include "model/architectures.hpp"

namespace poros {

Precision parse_precision(const std::string& name) {
  if (name == "nf4") return {name, Storage::nf4, true};
  if (name == "nf4-single") return {name, Storage::nf4, false};
  if (name == "bf16") return {name, Storage::bf16, false};
  if (name == "fp16") return {name, Storage::fp16, false};
  if (name == "fp32") return {name, Storage::fp32, false};
  fail(Fault::input, "precision \"{}\" is not known; known are nf4, nf4-single, bf16, fp16, fp32",
       name);
}

const char* name_of(Storage storage) {
  switch (storage) {
    case Storage::nf4:
      return "nf4";
    case Storage::bf16:
      return "bf16";
    case Storage::fp16:
      return "fp16";
    case Storage::fp32:
      return "fp32";
  }
  return "?";
}

Storage parse_storage(const std::string& name, const std::string& origin) {
  for (const Storage s : {Storage::nf4, Storage::bf16, Storage::fp16, Storage::fp32}) {
    if (name == name_of(s)) return s;
  }
  fail(Fault::input, "{}: storage \"{}\" is not known", origin, name);
}

std::uint64_t value_bytes(const TensorPlace& place) {
  const std::int64_t n = place.rows * place.cols;
  return static_cast<std::uint64_t>(
      place.storage == Storage::nf4
          ? nf4_code_bytes(n)
          : n * static_cast<std::int64_t>(bytes_per_element(place.storage)));
}

std::uint64_t stored_bytes(const TensorPlace& place) {
  std::uint64_t bytes = value_bytes(place);
  if (place.storage == Storage::nf4) {
    const std::int64_t n = place.rows * place.cols;
    bytes += static_cast<std::uint64_t>(
        place.double_quantised ? nf4_blocks(n) + 4 * nf4_nested_blocks(n) : 4 * nf4_blocks(n));
  }
  return bytes;
}

LayerLayout lay_out(std::vector<TensorPlace> tensors) {
  LayerLayout layout;
  layout.tensors = std::move(tensors);
  std::uint64_t end = 0;
  const auto place = [&](std::int64_t bytes) {
    const std::uint64_t begin = end;
    end = (begin + static_cast<std::uint64_t>(bytes) + 255) / 256 * 256;
    return begin;
  };
  for (TensorPlace& t : layout.tensors) {
    const std::int64_t n = t.rows * t.cols;
    t.offset = place(static_cast<std::int64_t>(value_bytes(t)));
    if (t.storage != Storage::nf4) continue;
    t.absmax_offset = place(t.double_quantised ? nf4_blocks(n) : 4 * nf4_blocks(n));
    if (t.double_quantised) t.nested_absmax_offset = place(4 * nf4_nested_blocks(n));
  }
  layout.bytes = end;
  return layout;
}

std::vector<TensorPlace> layer_tensors(const Architecture& architecture, std::int64_t layer,
                                       const Precision& precision, Storage other) {
  const LayerShape& shape = architecture.layers.at(static_cast<std::size_t>(layer));
  std::vector<TensorPlace> tensors;
  const auto add = [&](std::string name, Storage storage, std::int64_t rows, std::int64_t cols) {
    TensorPlace place;
    place.name = std::move(name);
    place.storage = storage;
    place.rows = rows;
    place.cols = cols;
    place.double_quantised = storage == Storage::nf4 && precision.double_quantised;
    tensors.push_back(std::move(place));
  };
  for (const LinearShape& linear : shape.linears) {
    add(linear.name + ".weight", linear.quantised ? precision.linears : other, linear.out,
        linear.in);
    if (linear.has_bias) add(linear.name + ".bias", other, 1, linear.out);
  }
  for (const std::string& norm : shape.norms) {
    add(norm + ".weight", other, 1, norm_size(architecture, shape, norm));
  }
  return tensors;
}

}  // namespace poros
