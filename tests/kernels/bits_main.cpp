// SPDX-License-Identifier: Apache-2.0
// Prints a hash of each kernel output. Built once with the product's kernels and once for each
// instruction set alone; isa_test.cmake compares what they print. Exit code 3: the CPU lacks the
// instruction set.
#include <cstdio>

#include "all_ops.hpp"
#include "base/sha256.hpp"

int main() {
#if defined(__AVX2__)
  if (!__builtin_cpu_supports("avx2")) return 3;
#endif
  poros::test::HostMemory memory;
  for (const auto& output : poros::test::run_all_ops({}, memory)) {
    const auto& bytes = output.values.bytes();
    const std::string hash =
        poros::sha256_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    std::printf("%s %s\n", hash.c_str(), output.name.c_str());
  }
  return 0;
}
