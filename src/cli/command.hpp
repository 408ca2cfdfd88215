// SPDX-License-Identifier: Apache-2.0
// One function a command, one file each (cmd_*.cpp): it adds the command to the parser and, where
// the command line asks for it, says what is to be done.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace poros {

/// What the command line asked for.
struct Invocation {
  int argc = 0;
  char** argv = nullptr;
  std::function<int()> run;  // returns the exit code
};

void add_schema(CLI::App& parent, Invocation& invocation);
void add_fetch(CLI::App& parent, Invocation& invocation);
void add_prepare(CLI::App& parent, Invocation& invocation);
void add_check(CLI::App& parent, Invocation& invocation);
void add_doctor(CLI::App& parent, Invocation& invocation);
void add_cache(CLI::App& parent, Invocation& invocation);
void add_train(CLI::App& parent, Invocation& invocation);
void add_eval(CLI::App& parent, Invocation& invocation);
void add_generate(CLI::App& parent, Invocation& invocation);
void add_export_model(CLI::App& parent, Invocation& invocation);

// Below `poros bench`.
void add_run(CLI::App& parent, Invocation& invocation);
void add_matrix(CLI::App& parent, Invocation& invocation);
void add_plan(CLI::App& parent, Invocation& invocation);
void add_status(CLI::App& parent, Invocation& invocation);
void add_show(CLI::App& parent, Invocation& invocation);
void add_logs(CLI::App& parent, Invocation& invocation);
void add_rerun(CLI::App& parent, Invocation& invocation);
void add_gather(CLI::App& parent, Invocation& invocation);
void add_profile(CLI::App& parent, Invocation& invocation);
void add_report(CLI::App& parent, Invocation& invocation);
void add_compare(CLI::App& parent, Invocation& invocation);
void add_verify(CLI::App& parent, Invocation& invocation);
void add_submit(CLI::App& parent, Invocation& invocation);
void add_cancel(CLI::App& parent, Invocation& invocation);

}  // namespace poros
