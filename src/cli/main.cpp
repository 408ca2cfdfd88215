// SPDX-License-Identifier: Apache-2.0
#include "cell/supervisor.hpp"
#include "cli/app.hpp"

int main(int argc, char** argv) {
  if (poros::is_supervisor_command(argc, argv)) return poros::supervisor_main(argc, argv);
  return poros::run_app(argc, argv);
}
