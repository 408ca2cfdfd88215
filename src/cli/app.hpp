// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace poros {

/// The program `poros`: parses the command line and runs the command. Prints errors itself: one
/// message on stderr, or with --json one JSON object there. @returns the exit code
int run_app(int argc, char** argv);

}  // namespace poros
