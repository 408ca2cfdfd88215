// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "campaign/tokeniser.hpp"
#include "cli/cell_program.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"

namespace poros {
namespace {

struct GenerateCommand {
  std::string model, adapter, prompt, chat_template, precision = "nf4", device = "auto", cache;
  std::int64_t max_new_tokens = 128, threads = 0;
  std::uint64_t seed = 0;
  double temperature = 0, top_p = 1;
  bool chat = false, json = false;
};

int generate(const GenerateCommand& options) {
  const std::filesystem::path model = model_from_argument(options.model);
  const InstallPaths paths = find_install_paths({});
  const PromptTokens prompt =
      encode_prompt(paths, model, options.prompt, options.chat, options.chat_template);
  const ScratchFolder scratch;
  const std::filesystem::path asked = scratch.path() / "prompt.json";
  const std::filesystem::path answered = scratch.path() / "answer.json";
  write_file_durably(asked, dump_json({{"prompt", prompt.ids}, {"stop_ids", prompt.stop_ids}}));
  const std::string device = resolve_device(options.device);
  std::vector<std::string> words = {"generate",
                                    "--model",
                                    model.string(),
                                    "--prompt-ids",
                                    asked.string(),
                                    "--answer",
                                    answered.string(),
                                    "--max-new-tokens",
                                    std::to_string(options.max_new_tokens),
                                    "--temperature",
                                    fmt::format("{}", options.temperature),
                                    "--top-p",
                                    fmt::format("{}", options.top_p),
                                    "--seed",
                                    std::to_string(options.seed),
                                    "--precision",
                                    options.precision,
                                    "--device",
                                    device};
  if (!options.adapter.empty()) words.insert(words.end(), {"--adapter", options.adapter});
  if (!options.cache.empty()) words.insert(words.end(), {"--cache", options.cache});
  if (options.threads > 0) {
    words.insert(words.end(), {"--threads", std::to_string(options.threads)});
  }
  if (const int code = run_cell_program(device, words); code != 0) return code;
  const Json answer = parse_json(read_file(answered), answered.string());
  const auto ids = json_get<std::vector<std::uint32_t>>(answer, "ids", "answer");
  const std::string text = decode_tokens(paths, model, ids);
  if (!options.json) {
    print_text((options.chat ? "" : options.prompt) + text + "\n");
    return kDone;
  }
  print_json({{"model", options.model},
              {"adapter", options.adapter.empty() ? Json(nullptr) : Json(options.adapter)},
              {"prompt", options.prompt},
              {"text", text},
              {"finish", json_get<std::string>(answer, "finish", "answer")},
              {"prompt_ids", prompt.ids},
              {"ids", ids}});
  return kDone;
}

}  // namespace

void add_generate(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<GenerateCommand>();
  CLI::App* command = parent.add_subcommand(
      "generate", "Let a model go on from a prompt, to look at what it learnt");
  command->add_option("--model", options->model, "Checkpoint folder, or a hub id in the cache")
      ->required();
  command->add_option("--adapter", options->adapter, "Adapter folder in PEFT's format");
  command->add_option("--prompt", options->prompt, "What to go on from")->required();
  CLI::Option* chat = command->add_flag("--chat", options->chat,
                                        "The prompt is a user's message, by the chat template");
  command
      ->add_option("--chat-template", options->chat_template,
                   "With --chat: a Jinja file in place of the model's template")
      ->needs(chat);
  command->add_option("--max-new-tokens", options->max_new_tokens, "Most that are made")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: the likeliest token each time")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  command
      ->add_option("--top-p", options->top_p,
                   "Draw among the likeliest tokens that have this share together")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of what is drawn")->capture_default_str();
  command->add_option("--precision", options->precision, "How the base is kept")
      ->check(CLI::IsMember({"nf4", "nf4-single", "bf16", "fp16", "fp32"}))
      ->capture_default_str();
  command->add_option("--device", options->device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--cache", options->cache, "Cache of quantised bases");
  command->add_option("--threads", options->threads, "CPU threads; default: all")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros generate --model configs/models/kjv-qwen2 --prompt "And it came to pass"
  poros generate --model MODEL --adapter out/adapter --chat --prompt "Who are you?" --temperature 0.7
)");
  command->callback(
      [&invocation, options] { invocation.run = [options] { return generate(*options); }; });
}

}  // namespace poros
