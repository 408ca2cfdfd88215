// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "model/base_store.hpp"

namespace poros {

/// How the frozen base is kept, by the name that specs and commands use:
///   nf4         linears in NF4 with double quantisation, all else in 16 bit
///   nf4-single  the same without double quantisation
///   bf16, fp16, fp32
/// "All else in 16 bit": fp16 where the checkpoint has fp16, else bf16. Values of an fp32
/// checkpoint are rounded to bf16 first and then quantised, as loading it in bf16 does in the
/// peers.
struct Precision {
  std::string name = "nf4";
  Storage linears = Storage::nf4;
  bool double_quantised = true;

  friend bool operator==(const Precision&, const Precision&) = default;
};

/// @throws Error(Fault::input) naming the known ones.
[[nodiscard]] Precision parse_precision(const std::string& name);

[[nodiscard]] const char* name_of(Storage storage);
/// @throws Error(Fault::input)
[[nodiscard]] Storage parse_storage(const std::string& name, const std::string& origin);

/// Lays out a layer's tensors, one after the other at multiples of 256 bytes, filling every offset
/// of `tensors` (names, storages, sizes given).
[[nodiscard]] LayerLayout lay_out(std::vector<TensorPlace> tensors);

/// Bytes of a tensor's values alone, and with its scales (before alignment).
[[nodiscard]] std::uint64_t value_bytes(const TensorPlace& place);
[[nodiscard]] std::uint64_t stored_bytes(const TensorPlace& place);

/// The tensors of a layer in the order of the contract (linears' weights and biases, then norms).
[[nodiscard]] std::vector<TensorPlace> layer_tensors(const Architecture& architecture,
                                                     std::int64_t layer, const Precision& precision,
                                                     Storage other);

}  // namespace poros
