// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "campaign/arms.hpp"
#include "campaign/inputs.hpp"
#include "cli/command.hpp"
#include "spec/expand.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

struct ProfileOptions {
  std::string spec, method = "poros", model;
  std::int64_t steps = 5;
  bool json = false;
};

CellSpec find_cell(const ProfileOptions& options) {
  const BenchmarkSpec spec = read_spec(options.spec);
  for (const CellSpec& cell : expand(spec)) {
    if (cell.method != options.method) continue;
    if (!options.model.empty() && cell.model.model_id != options.model &&
        cell.model.display_name != options.model) {
      continue;
    }
    return cell;
  }
  fail(Fault::input, "{}: has no cell of the arm {}{}", options.spec, options.method,
       options.model.empty() ? "" : fmt::format(" and the model \"{}\"", options.model));
}

/// The command line that measures a cell's steps.
std::vector<std::string> bench_command(const fs::path& program, const CellSpec& cell,
                                       const ProfileOptions& options) {
  const TrainingSpec& training = cell.training;
  const PorosSpec& poros = cell.poros;
  const bool resident = cell.method == "resident";
  const char* residency = resident ? "resident" : poros.vram_budget_mb ? "partial" : "streamed";
  std::vector<std::string> argv = {program.string(),
                                   "--profile",
                                   "--phases",
                                   "--shape",
                                   model_folder(cell.model).string(),
                                   "--residency",
                                   residency,
                                   "--precision",
                                   cell.precision,
                                   "--accumulate",
                                   poros.accumulation,
                                   "--layer-inputs",
                                   poros.layer_inputs};
  const auto add = [&](const char* name, const auto& value) {
    argv.emplace_back(name);
    argv.push_back(fmt::format("{}", value));
  };
  add("--steps", options.steps);
  add("--seq-len", training.seq_len);
  add("--batch", training.batch_size);
  add("--accumulation", training.gradient_accumulation_steps);
  add("--rank", cell.lora.rank);
  add("--dropout", cell.lora.dropout);
  add("--block-size", poros.block_size);
  add("--ceiling-s", 2);
  if (poros.vram_budget_mb) add("--budget-mb", *poros.vram_budget_mb);
  if (!poros.enable_prefetch) argv.emplace_back("--no-prefetch");
  if (options.json) argv.emplace_back("--json");
  return argv;
}

int profile(const ProfileOptions& options) {
  const CellSpec cell = find_cell(options);
  if (cell.device != "cuda" || !has_nvidia_gpu()) {
    fail(Fault::environment, "{}: poros profile times the kernels of a GPU; {}", options.spec,
         cell.device == "cuda" ? "no NVIDIA GPU was found on this machine"
                               : "the spec asks for device: cpu");
  }
  const fs::path program = find_install_paths({}).cell_program.parent_path() / "poros-step-bench";
  std::error_code error;
  if (!fs::exists(program, error)) {
    fail(Fault::environment, "{}: is missing; a build with a CUDA toolkit makes it",
         program.string());
  }
  std::vector<std::string> argv = bench_command(program, cell, options);
  std::vector<char*> pointers;
  for (std::string& argument : argv) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  fail_errno(Fault::environment, program.string());
}

}  // namespace

void add_profile(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<ProfileOptions>();
  CLI::App* command = parent.add_subcommand(
      "profile", "Where the time of a step goes on this GPU: by phase, by kernel, copies, idle");
  command->add_option("SPEC", options->spec, "The YAML file")->required();
  command->add_option("--method", options->method, "The arm")
      ->check(CLI::IsMember(std::vector<std::string>{"poros", "resident"}))
      ->capture_default_str();
  command->add_option("--model", options->model, "Id or name of a model; the spec's first");
  command->add_option("--steps", options->steps, "Steps that are timed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Example:
  poros profile configs/bench/demo_gpu.yaml --method resident

Steps have the cell's shapes and settings, random weights and random tokens. Times of kernels come
from CUPTI, which LibTorch and the CUDA toolkit bring.
)");
  command->callback(
      [&invocation, options] { invocation.run = [options] { return profile(*options); }; });
}

}  // namespace poros
