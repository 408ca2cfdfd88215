// SPDX-License-Identifier: Apache-2.0
// export_checkpoint CHECKPOINT PRECISION OUT: opens a base and writes it as a checkpoint, for
// export_bits_test.py. The cache is OUT.cache.
#include <cstdio>

#include "base/error.hpp"
#include "model/export_base.hpp"
#include "model/open_base.hpp"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("export_checkpoint CHECKPOINT PRECISION OUT\n", stderr);
    return 2;
  }
  try {
    const std::string out = argv[3];
    const auto base = poros::open_base(argv[1], argv[2], out + ".cache");
    const std::string sha256 = poros::export_base(*base, poros::read_model_config(argv[1]), out);
    std::printf("%s\n", sha256.c_str());
    return 0;
  } catch (const poros::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
