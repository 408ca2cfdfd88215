// SPDX-License-Identifier: Apache-2.0
#include "receipts/parity.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "model/safetensors.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
using Hashes = std::map<std::string, std::string>;

/// "layers.2" before "layers.10": digits compare as numbers.
bool natural_less(const std::string& a, const std::string& b) {
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      std::size_t i_end = i, j_end = j;
      while (i_end < a.size() && is_digit(a[i_end])) ++i_end;
      while (j_end < b.size() && is_digit(b[j_end])) ++j_end;
      const std::size_t i_length = i_end - i, j_length = j_end - j;
      if (i_length != j_length) return i_length < j_length;
      const int order = a.compare(i, i_length, b, j, j_length);
      if (order != 0) return order < 0;
      i = i_end;
      j = j_end;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

const Hashes& hashes_of(const StepHashes& step, const std::string& kind) {
  static const Hashes none;
  const auto found = step.tensors.find(kind);
  return found == step.tensors.end() ? none : found->second;
}

bool is_empty(const StepHashes& step) {
  return step.loss.empty() || step.grad_norm.empty() ||
         std::any_of(std::begin(kParityKinds), std::end(kParityKinds),
                     [&](const char* kind) { return hashes_of(step, kind).empty(); });
}

/// Walks the hashes of two steps in the order of kParityKinds and stops at the first difference.
class StepWalk {
 public:
  StepWalk(std::int64_t step, HashComparison& into) : step_(step), into_(into) {}

  bool equal(const std::string& kind, const std::string& tensor, const std::string& a,
             const std::string& b) {
    ++into_.hashes;
    if (a == b) return true;
    into_.first = HashDifference{step_, kind, tensor, a, b};
    return false;
  }

  bool equal(const std::string& kind, const Hashes& a, const Hashes& b) {
    std::vector<std::string> names;
    for (const auto& entry : a) names.push_back(entry.first);
    for (const auto& entry : b) {
      if (!a.contains(entry.first)) names.push_back(entry.first);
    }
    std::sort(names.begin(), names.end(), natural_less);
    const auto hash = [](const Hashes& side, const std::string& name) {
      const auto found = side.find(name);
      return found == side.end() ? std::string() : found->second;
    };
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      return equal(kind, name, hash(a, name), hash(b, name));
    });
  }

 private:
  std::int64_t step_;
  HashComparison& into_;
};

bool compare_step(StepWalk walk, const StepHashes& a, const StepHashes& b) {
  const auto tensors = [&](const char* kind) {
    return walk.equal(kind, hashes_of(a, kind), hashes_of(b, kind));
  };
  return walk.equal("loss", "", a.loss, b.loss) && tensors("gradient") &&
         walk.equal("grad_norm", "", a.grad_norm, b.grad_norm) && tensors("exp_avg") &&
         tensors("exp_avg_sq") && tensors("weight");
}

}  // namespace

HashComparison compare_hashes(const std::vector<StepHashes>& a, const std::vector<StepHashes>& b) {
  for (const auto* side : {&a, &b}) {
    const char* arm = side == &a ? "first" : "second";
    if (side->empty()) fail(Fault::run, "parity: the {} arm left no hashes", arm);
    for (std::size_t step = 0; step < side->size(); ++step) {
      if (is_empty((*side)[step])) {
        fail(Fault::run, "parity: hashes of step {} of the {} arm are missing", step + 1, arm);
      }
    }
  }
  HashComparison result;
  const std::size_t common = std::min(a.size(), b.size());
  for (std::size_t step = 0; step < common; ++step) {
    const auto number = static_cast<std::int64_t>(step) + 1;
    if (!compare_step(StepWalk(number, result), a[step], b[step])) return result;
    result.steps = number;
  }
  if (a.size() != b.size()) {
    result.first = HashDifference{result.steps + 1, "steps", "", "", ""};
    return result;
  }
  result.equal = true;
  return result;
}

namespace {

/// |a - b|, infinity where the two are not both finite.
double distance(float a, float b) {
  const double difference = std::abs(static_cast<double>(a) - static_cast<double>(b));
  return std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity();
}

std::string dtype_and_shape(const TensorInfo& tensor) {
  return std::string(name_of(tensor.type)) + " " + tensor.shape_text();
}

/// Compares one tensor of two files, in pieces.
void compare_tensor(const SafetensorsFile& file_a, const TensorInfo& a,
                    const SafetensorsFile& file_b, DumpDifference& into) {
  const auto found = file_b.tensors().find(a.name);
  if (found == file_b.tensors().end()) {
    fail(Fault::input, "{}: has no tensor {}, which {} has", file_b.path().string(), a.name,
         file_a.path().string());
  }
  const TensorInfo& b = found->second;
  if (a.type != TensorType::f32 || b.type != TensorType::f32 || a.shape != b.shape) {
    fail(Fault::input, "{}: {} is {}, but {} in {}; dumps are F32 and of equal shapes",
         file_b.path().string(), a.name, dtype_and_shape(b), dtype_and_shape(a),
         file_a.path().string());
  }
  constexpr std::int64_t kPiece = std::int64_t{1} << 18;  // elements
  std::vector<float> values_a, values_b;
  for (std::int64_t begin = 0; begin < a.elements(); begin += kPiece) {
    const auto count = static_cast<std::size_t>(std::min(kPiece, a.elements() - begin));
    values_a.resize(count);
    values_b.resize(count);
    const std::uint64_t bytes = count * sizeof(float);
    const std::uint64_t offset = static_cast<std::uint64_t>(begin) * sizeof(float);
    file_a.read(a, offset, bytes, values_a.data());
    file_b.read(b, offset, bytes, values_b.data());
    into.elements += static_cast<std::int64_t>(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (std::memcmp(&values_a[i], &values_b[i], sizeof(float)) == 0) continue;
      ++into.unequal;
      const double delta = distance(values_a[i], values_b[i]);
      if (into.tensor.empty() || delta > into.max_abs) {
        into.max_abs = delta;
        into.tensor = a.name;
        into.index = begin + static_cast<std::int64_t>(i);
        into.a = values_a[i];
        into.b = values_b[i];
      }
    }
  }
}

void refuse_left_over(const SafetensorsFile& a, const SafetensorsFile& b) {
  for (const auto& [name, tensor] : b.tensors()) {
    if (!a.tensors().contains(name)) {
      fail(Fault::input, "{}: has no tensor {}, which {} has", a.path().string(), name,
           b.path().string());
    }
  }
  if (a.tensors().empty()) fail(Fault::input, "{}: holds no tensors", a.path().string());
}

std::vector<const TensorInfo*> in_natural_order(const SafetensorsFile& file) {
  std::vector<const TensorInfo*> tensors;
  for (const auto& entry : file.tensors()) tensors.push_back(&entry.second);
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo* x, const TensorInfo* y) {
    return natural_less(x->name, y->name);
  });
  return tensors;
}

}  // namespace

std::map<std::string, DumpDifference> compare_dumps(const fs::path& a, const fs::path& b) {
  std::map<std::string, DumpDifference> result;
  const auto compare_file = [&](const std::string& kind, bool split) {
    const std::string name = kind + ".safetensors";
    const SafetensorsFile file_a(a / name), file_b(b / name);
    refuse_left_over(file_a, file_b);
    for (const TensorInfo* tensor : in_natural_order(file_a)) {
      compare_tensor(file_a, *tensor, file_b, result[split ? tensor->name : kind]);
    }
  };
  for (const char* kind : kParityKinds) compare_file(kind, false);
  compare_file(kParityScalars, true);
  for (const char* scalar : {"loss", "grad_norm"}) {
    if (!result.contains(scalar)) {
      fail(Fault::input, "{}: scalars.safetensors has no {}", a.string(), scalar);
    }
  }
  return result;
}

}  // namespace poros
