// SPDX-License-Identifier: Apache-2.0
// poros-cell: the trainer. `poros` starts one for each pass; it can be run by hand as well.
// Compiled with POROS_CUDA it is poros-cell-cuda, which runs on GPUs and loads LibTorch's CUDA
// libraries.
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "train/arm/evaluate.hpp"
#include "train/arm/libraries.hpp"
#include "train/arm/probe.hpp"
#include "train/arm/run_request.hpp"
#include "train/device.hpp"

namespace {

volatile std::sig_atomic_t g_stop = 0;

extern "C" void on_terminate(int) {
  g_stop = 1;
}

void set_signals() {
  struct sigaction action {};
  action.sa_handler = on_terminate;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;  // a reader of events that is gone must not end the work
  ::sigaction(SIGPIPE, &action, nullptr);
}

int run(int argc, char** argv) {
  CLI::App app("Poros Bench's trainer: runs one pass of a cell, or evaluates a model.",
               "poros-cell");
  app.set_version_flag("--version", std::string("poros-cell ") + poros::poros_version());
  app.require_subcommand(1);

  std::string request_path;
  CLI::App* run_command = app.add_subcommand(
      "run", "Run one pass as REQUEST.json says; the result goes to its result_path");
  run_command->add_option("REQUEST.json", request_path, "The request")->required();

  poros::EvaluateOptions evaluate;
  bool json = false;
  CLI::App* evaluate_command =
      app.add_subcommand("eval", "Loss and perplexity of a model, with or without an adapter");
  evaluate_command->add_option("--model", evaluate.model_dir, "Checkpoint folder")->required();
  evaluate_command->add_option("--adapter", evaluate.adapter_dir,
                               "Adapter folder in PEFT's format");
  evaluate_command
      ->add_option("--tokens", evaluate.tokens_path,
                   "JSON {\"input_ids\": [[...], ...]} or a .tokens file")
      ->required();
  evaluate_command
      ->add_option("--precision", evaluate.precision, "How the base is kept: nf4, bf16, fp16, fp32")
      ->capture_default_str();
  evaluate_command->add_option("--cache", evaluate.cache_dir, "Cache of quantised bases");
  evaluate_command->add_option("--threads", evaluate.threads, "CPU threads")->capture_default_str();
  evaluate_command->add_flag("--json", json, "Print one JSON object");

  CLI::App* probe_command =
      app.add_subcommand("probe", "What the GPU and the memory around it give, as JSON");
  probe_command->add_flag("--json", json, "Print one JSON object (it always does)");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? poros::kDone : poros::kWrongInput;
  }
  if (*run_command) {
    return poros::run_request(poros::read_request(request_path), [] { return g_stop != 0; });
  }
  if (*probe_command) {
    std::printf("%s\n", poros::dump_json(poros::probe_gpu()).c_str());
    return poros::kDone;
  }
  return poros::evaluate_and_print(evaluate, json);
}

}  // namespace

int main(int argc, char** argv) {
  set_signals();
  try {
#ifdef POROS_CUDA
    poros::register_cuda_device();
#endif
    return run(argc, argv);
  } catch (const poros::Error& error) {
    std::fprintf(stderr, "poros-cell: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "poros-cell: %s\n", error.what());
    return poros::kFailed;
  }
}
