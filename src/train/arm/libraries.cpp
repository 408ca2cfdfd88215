// SPDX-License-Identifier: Apache-2.0
#include "train/arm/libraries.hpp"

#include <ATen/Version.h>
#include <torch/version.h>

namespace poros {
namespace {

/// First line of a library's own description.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

const char* poros_version() {
  return POROS_VERSION;
}

Json library_versions() {
  return {{"poros", poros_version()},
          {"libtorch", TORCH_VERSION},
          {"mkl", first_line(at::get_mkl_version())},
          {"openmp", first_line(at::get_openmp_version())},
          {"cpu_capability", at::get_cpu_capability()}};
}

}  // namespace poros
