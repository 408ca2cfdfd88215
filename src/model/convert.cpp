// SPDX-License-Identifier: Apache-2.0
#include "model/convert.hpp"

#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "kernels/dtype.hpp"

namespace poros {
namespace {

template <class Bits>
bool any_exponent_full(const void* values, std::int64_t count, Bits mask) {
  Bits found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, static_cast<const char*>(values) + i * static_cast<int>(sizeof(Bits)),
                sizeof(Bits));
    found = static_cast<Bits>(found | ((bits & mask) == mask ? 1 : 0));
  }
  return found != 0;
}

template <class From, class To>
bool convert(const void* values, std::int64_t count, void* into) {
  bool fits = true;
  for (std::int64_t i = 0; i < count; ++i) {
    From from;
    std::memcpy(&from, static_cast<const char*>(values) + i * static_cast<int>(sizeof(From)),
                sizeof(From));
    const To to = from_float<To>(to_float(from));
    fits = fits && (std::isfinite(to_float(to)) || !std::isfinite(to_float(from)));
    std::memcpy(static_cast<char*>(into) + i * static_cast<int>(sizeof(To)), &to, sizeof(To));
  }
  return fits;
}

template <class From>
bool convert_from(const void* values, std::int64_t count, Storage storage, void* into) {
  switch (storage) {
    case Storage::bf16:
      return convert<From, Bf16>(values, count, into);
    case Storage::fp16:
      return convert<From, F16>(values, count, into);
    case Storage::fp32:
      return convert<From, float>(values, count, into);
    case Storage::nf4:
      break;
  }
  fail(Fault::run, "values can't be converted to nf4 one by one");
}

}  // namespace

bool has_non_finite(TensorType type, const void* values, std::int64_t count) {
  switch (type) {
    case TensorType::f32:
      return any_exponent_full<std::uint32_t>(values, count, 0x7f800000U);
    case TensorType::bf16:
      return any_exponent_full<std::uint16_t>(values, count, 0x7f80U);
    case TensorType::f16:
      return any_exponent_full<std::uint16_t>(values, count, 0x7c00U);
    default:
      fail(Fault::run, "{} is no floating type of weights", name_of(type));
  }
}

bool convert_values(TensorType type, const void* values, std::int64_t count, Storage storage,
                    void* into) {
  switch (type) {
    case TensorType::f32:
      return convert_from<float>(values, count, storage, into);
    case TensorType::bf16:
      return convert_from<Bf16>(values, count, storage, into);
    case TensorType::f16:
      return convert_from<F16>(values, count, storage, into);
    default:
      fail(Fault::run, "{} is no floating type of weights", name_of(type));
  }
}

}  // namespace poros
