// SPDX-License-Identifier: Apache-2.0
// make_report SOURCE OUT_DIR: report.html and report.md of a campaign folder or a campaign.h5.
#include <cstdio>

#include <fmt/format.h>

#include "analysis/report.hpp"
#include "base/error.hpp"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: make_report SOURCE OUT_DIR\n", stderr);
    return poros::kWrongInput;
  }
  try {
    (void)poros::write_report(argv[1], argv[2], true, true);
  } catch (const poros::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  }
}
