// SPDX-License-Identifier: Apache-2.0
// A cell program for tests of the driver: it keeps to the protocol, takes no time and fails on
// demand. POROS_FAKE_CELL names a JSON file {method: {settings}}; each call is noted, one line
// each, in <that file>.calls. Settings:
//   mode           ok | silent (exit 0, no result) | late_failure (a result, exit 1) | crash |
//                  oom | skipped | foreign (another cell's record) | garbage | hang |
//                  kill_supervisor
//   mode_attempts  the mode holds for that many attempts, then ok (default: all)
//   step_s         time of a step [s], default 0
//   s_per_step     what the record says, one value a pass, default 0.5
//   change_step    from that step on this arm's weights differ (parity)
//   first_loss, trainable_params, print   as named
#pragma once

namespace poros::testing {

/// argv: program run REQUEST.json
int fake_cell(const char* request_path);

/// argv: program -m poros_peers.tokenise REQUEST.json: a small token file, without Python.
int fake_tokeniser(const char* request);

}  // namespace poros::testing
