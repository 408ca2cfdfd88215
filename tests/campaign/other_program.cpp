// SPDX-License-Identifier: Apache-2.0
#include "other_program.hpp"

#include <cstring>

#include "cell/supervisor.hpp"
#include "driver_fixture.hpp"
#include "fake_cell.hpp"

namespace poros::testing {

std::optional<int> other_program(int argc, char** argv) {
  if (is_supervisor_command(argc, argv)) return supervisor_main(argc, argv);
  if (argc == 3 && std::strcmp(argv[1], "run") == 0) return fake_cell(argv[2]);
  if (argc == 4 && std::strcmp(argv[1], "-m") == 0) return fake_tokeniser(argv[3]);
  if (argc >= 4 && std::strcmp(argv[1], "__drive") == 0) return drive_main(argc, argv);
  return std::nullopt;
}

}  // namespace poros::testing
