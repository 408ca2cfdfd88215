// SPDX-License-Identifier: Apache-2.0
// train_adapter MODEL TOKENS STEPS OUT: trains an adapter on a token file, on the CPU, and writes
// it to OUT in PEFT's format, for use_test.py. The cache is OUT.cache.
#include <cstdio>
#include <string>

#include "base/error.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "model/token_file.hpp"
#include "train/arm/session.hpp"
#include "train/trainer.hpp"

namespace poros {
namespace {

void train_adapter(const std::string& model, const std::string& tokens_path, std::int64_t steps,
                   const std::filesystem::path& out) {
  TokenFile tokens = read_token_file(tokens_path);
  SessionInput input;
  input.cell.method = "poros";
  input.cell.precision = "bf16";
  input.cell.device = "cpu";
  TrainingSpec& training = input.cell.training;
  training.steps = steps;
  training.seq_len = tokens.seq_len;
  training.gradient_accumulation_steps = 4;
  training.learning_rate = 3e-3;
  input.cell.lora.rank = 8;
  input.cell.lora.dropout = 0;
  input.model_dir = model;
  input.cache_dir = out.string() + ".cache";
  input.threads = 2;
  const Architecture architecture = read_architecture(read_model_config(model));
  std::filesystem::create_directories(out);
  write_adapter(out, initial_adapter(architecture, input.cell.lora, model, 1));
  input.adapter_dir = out;
  Session session;
  open_session(
      input, [](const char*) {}, session);
  StepRows rows(std::move(tokens), training.batch_size, training.gradient_accumulation_steps);
  TrainHooks hooks;
  hooks.after_step = [](const StepReport& report) {
    std::printf("step %lld loss %.4f\n", static_cast<long long>(report.step),
                static_cast<double>(report.loss));
  };
  if (train(*session.executor, rows, training, {}, hooks).end != TrainEnd::finished) {
    fail(Fault::run, "the training did not finish");
  }
  write_adapter(out, session.executor->adapter());
}

}  // namespace
}  // namespace poros

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("train_adapter MODEL TOKENS STEPS OUT\n", stderr);
    return 2;
  }
  try {
    poros::train_adapter(argv[1], argv[2], std::stoll(argv[3]), argv[4]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_adapter: %s\n", error.what());
    return 1;
  }
}
