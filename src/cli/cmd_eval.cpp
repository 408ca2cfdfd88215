// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "campaign/tokeniser.hpp"
#include "cli/cell_program.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "model/hub.hpp"
#include "spec/schema.hpp"

namespace poros {
namespace {

struct EvalOptions {
  std::string model, adapter, tokens, precision = "nf4", device = "auto", cache;
  std::int64_t threads = 0;
  bool compare = false, json = false;
  TrainingSpec data;  // of --data: its dataset, seq_len and packing
  std::int64_t seq_len = 0;
};

/// Tokens of --data; the statistics go to stderr.
std::filesystem::path tokenised(EvalOptions& options, const std::filesystem::path& model,
                                const std::filesystem::path& folder) {
  TrainingSpec& training = options.data;
  const std::int64_t positions = read_architecture(read_model_config(model)).max_positions;
  training.seq_len = options.seq_len > 0 ? options.seq_len : std::min<std::int64_t>(512, positions);
  training.dataset.shuffle = false;
  if (!is_hub_id(training.dataset.source) || std::filesystem::exists(training.dataset.source)) {
    training.dataset.path = std::filesystem::absolute(training.dataset.source).string();
  }
  training.dataset.chat_template_path = training.dataset.chat_template;
  const TokenisedData made =
      tokenise(find_install_paths({}), token_request(training, model, folder, true));
  if (!options.json) std::fputs(made.text.c_str(), stderr);
  return made.path;
}

int evaluate(EvalOptions& options) {
  const bool data = !options.data.dataset.source.empty();
  if (data != options.tokens.empty()) {
    fail(Fault::usage, "give either --tokens or --data");
  }
  const std::filesystem::path model = model_from_argument(options.model);
  const ScratchFolder scratch;
  const std::string tokens =
      data ? tokenised(options, model, scratch.path()).string() : options.tokens;
  const std::string device = resolve_device(options.device);
  std::vector<std::string> words = {"eval", "--model",     model.string(),    "--tokens",
                                    tokens, "--precision", options.precision, "--device",
                                    device};
  if (!options.adapter.empty()) words.insert(words.end(), {"--adapter", options.adapter});
  if (!options.cache.empty()) words.insert(words.end(), {"--cache", options.cache});
  if (options.threads > 0) {
    words.insert(words.end(), {"--threads", std::to_string(options.threads)});
  }
  if (options.compare) words.emplace_back("--compare");
  if (options.json) words.emplace_back("--json");
  return run_cell_program(device, words);
}

}  // namespace

void add_eval(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<EvalOptions>();
  DatasetSpec& dataset = options->data.dataset;
  dataset.source.clear();
  CLI::App* command =
      parent.add_subcommand("eval", "Loss and perplexity of a model, with or without an adapter");
  command->add_option("--model", options->model, "Checkpoint folder, or a hub id in the cache")
      ->required();
  command->add_option("--adapter", options->adapter, "Adapter folder in PEFT's format");
  command->add_option("--tokens", options->tokens,
                      "JSON {\"input_ids\": [[...], ...]} or a .tokens file");
  command->add_option("--data", dataset.source,
                      "Text, JSONL, CSV or parquet file, or a cached hub dataset (docs/data.md)");
  command
      ->add_option("--seq-len", options->seq_len,
                   "With --data: tokens of a row; default 512 or the model's positions")
      ->check(CLI::Range(2, 1048576));
  command->add_flag("--packing", options->data.packing, "With --data: several documents in a row");
  const auto choice = [&](const char* name, std::string& value, const char* key) {
    command->add_option(name, value, "With --data: " + schema_key(key).text)
        ->check(CLI::IsMember(schema_key(key).rule.choices))
        ->capture_default_str();
  };
  choice("--format", dataset.format, "training.dataset.format");
  choice("--rows", dataset.rows, "training.dataset.rows");
  choice("--loss-on", dataset.loss_on, "training.dataset.loss_on");
  command->add_option("--text-field", dataset.text_field, "With --data: field of the text")
      ->capture_default_str();
  command->add_option("--chat-template", dataset.chat_template,
                      "With --data: a Jinja file in place of the model's template");
  command->add_option("--precision", options->precision, "How the base is kept")
      ->check(CLI::IsMember({"nf4", "nf4-single", "bf16", "fp16", "fp32"}))
      ->capture_default_str();
  command->add_flag("--compare", options->compare,
                    "With --adapter: the base without it too, and the ratio");
  command->add_option("--device", options->device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--cache", options->cache, "Cache of quantised bases");
  command->add_option("--threads", options->threads, "CPU threads; default: all")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros eval --model configs/models/kjv-qwen2 --data configs/data/alice.txt
  poros eval --model Qwen/Qwen2.5-0.5B --adapter out/adapter --data held_out.jsonl --compare
)");
  command->callback(
      [&invocation, options] { invocation.run = [options] { return evaluate(*options); }; });
}

}  // namespace poros
