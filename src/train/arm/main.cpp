// SPDX-License-Identifier: Apache-2.0
// poros-cell: the trainer. `poros` starts one for each pass; it can be run by hand as well.
// Compiled with POROS_CUDA it is poros-cell-cuda, which runs on GPUs and loads LibTorch's CUDA
// libraries.
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "base/error.hpp"
#include "train/arm/evaluate.hpp"
#include "train/arm/generate.hpp"
#include "train/arm/libraries.hpp"
#include "train/arm/probe.hpp"
#include "train/arm/run_request.hpp"
#include "train/arm/train_run.hpp"
#include "train/device.hpp"

namespace {

volatile std::sig_atomic_t g_stop = 0;

extern "C" void on_terminate(int) {
  g_stop = 1;
}

/// A training writes a checkpoint first; who asks twice does not want to wait for it.
extern "C" void on_stop_training(int number) {
  if (g_stop != 0) ::_exit(128 + number);
  g_stop = 1;
}

void set_training_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_training;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    struct sigaction old {};
    ::sigaction(number, nullptr, &old);
    if (old.sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr);
  }
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

/// What eval and generate are told alike.
template <class Options>
void add_model_options(CLI::App& command, Options& options) {
  command.add_option("--model", options.model_dir, "Checkpoint folder")->required();
  command.add_option("--adapter", options.adapter_dir, "Adapter folder in PEFT's format");
  command
      .add_option("--precision", options.precision, "How the base is kept: nf4, bf16, fp16, fp32")
      ->capture_default_str();
  command.add_option("--device", options.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--cache", options.cache_dir, "Cache of quantised bases");
  command.add_option("--threads", options.threads, "CPU threads; 0: all")->capture_default_str();
}

struct EvaluateCommand {
  poros::EvaluateOptions options;
  bool compare = false, json = false;

  CLI::App* add_to(CLI::App& app) {
    CLI::App* command =
        app.add_subcommand("eval", "Loss and perplexity of a model, with or without an adapter");
    add_model_options(*command, options);
    command
        ->add_option("--tokens", options.tokens_path,
                     "JSON {\"input_ids\": [[...], ...]} or a .tokens file")
        ->required();
    command->add_flag("--compare", compare, "The base without its adapter too");
    command->add_flag("--json", json, "Print one JSON object");
    return command;
  }
};

struct GenerateCommand {
  poros::GenerateOptions options;
  std::string prompt_path, answer_path;

  CLI::App* add_to(CLI::App& app) {
    CLI::App* command =
        app.add_subcommand("generate", "Go on from a prompt's ids (poros generate takes text)");
    add_model_options(*command, options);
    command->add_option("--prompt-ids", prompt_path, R"(JSON {"prompt": [...], "stop_ids": [...]})")
        ->required();
    command->add_option("--answer", answer_path, R"(Gets {"ids": [...], "finish": "..."})")
        ->required();
    command->add_option("--max-new-tokens", options.max_new_tokens, "Most that are made")
        ->capture_default_str();
    command->add_option("--temperature", options.temperature, "0: the likeliest token")
        ->capture_default_str();
    command->add_option("--top-p", options.top_p, "Share of the tokens that are drawn from")
        ->capture_default_str();
    command->add_option("--seed", options.seed, "Of what is drawn")->capture_default_str();
    return command;
  }
};

int run(int argc, char** argv) {
  CLI::App app("Poros Bench's trainer: runs one pass of a cell, or evaluates a model.",
               "poros-cell");
  app.set_version_flag("--version", std::string("poros-cell ") + poros::poros_version());
  app.require_subcommand(1);

  std::string request_path;
  CLI::App* run_command = app.add_subcommand(
      "run", "Run one pass as REQUEST.json says; the result goes to its result_path");
  run_command->add_option("REQUEST.json", request_path, "The request")->required();

  std::string train_path;
  CLI::App* train_command =
      app.add_subcommand("train", "Train as REQUEST.json of `poros train` says");
  train_command->add_option("REQUEST.json", train_path, "The request")->required();

  EvaluateCommand evaluate;
  CLI::App* evaluate_command = evaluate.add_to(app);
  GenerateCommand generate;
  CLI::App* generate_command = generate.add_to(app);

  bool json = false;
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
  if (*train_command) {
    set_training_signals();
    return poros::run_training(poros::read_train_request(train_path), [] { return g_stop != 0; });
  }
  if (*probe_command) {
    std::printf("%s\n", poros::dump_json(poros::probe_gpu()).c_str());
    return poros::kDone;
  }
  std::signal(SIGTERM, SIG_DFL);  // what follows has nothing to put in order
  if (*generate_command) {
    return poros::generate_files(generate.options, generate.prompt_path, generate.answer_path);
  }
  if (*evaluate_command) {
    return poros::evaluate_and_print(evaluate.options, evaluate.compare, evaluate.json);
  }
  return poros::kWrongInput;
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
