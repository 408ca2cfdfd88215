// SPDX-License-Identifier: Apache-2.0
#include "train/arm/generate.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "train/arm/session.hpp"

namespace poros {
namespace {

void check(const GenerateOptions& options, const Architecture& architecture) {
  if (options.prompt.empty()) fail(Fault::input, "the prompt has no token");
  for (const std::uint32_t id : options.prompt) {
    if (static_cast<std::int64_t>(id) >= architecture.vocab) {
      fail(Fault::input, "the prompt's id {} is not below the vocabulary's size {}", id,
           architecture.vocab);
    }
  }
  if (static_cast<std::int64_t>(options.prompt.size()) >= architecture.max_positions) {
    fail(Fault::input, "the prompt's {} tokens fill the model's {} positions",
         options.prompt.size(), architecture.max_positions);
  }
  if (options.max_new_tokens < 1) fail(Fault::input, "max_new_tokens must be at least 1");
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    fail(Fault::input, "temperature {} must be a number from 0 on", options.temperature);
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    fail(Fault::input, "top_p {} must be above 0 and at most 1", options.top_p);
  }
}

SessionInput session_input(const GenerateOptions& options, std::int64_t positions) {
  SessionInput input;
  input.cell.method = "resident";
  input.cell.device = options.device;
  input.cell.precision = options.precision;
  input.cell.training.seq_len = std::max<std::int64_t>(2, positions);
  input.cell.training.batch_size = 1;
  input.cell.training.gradient_accumulation_steps = 1;
  input.cell.lora.dropout = 0;
  input.model_dir = options.model_dir;
  input.adapter_dir = options.adapter_dir;
  input.check_adapter = false;  // whatever it adapts, it is the one that was asked for
  input.cache_dir = options.cache_dir;
  input.threads = options.threads > 0
                      ? options.threads
                      : std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  return input;
}

/// In [0, 1). Not std::uniform_real_distribution, whose numbers are the library's own.
double uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

}  // namespace

std::uint32_t choose_token(std::span<const float> logits, double temperature, double top_p,
                           std::mt19937_64& random) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<std::uint32_t>(largest - logits.begin());
  std::vector<double> weight(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weight[i] = std::exp((static_cast<double>(logits[i]) - *largest) / temperature);
  }
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  std::vector<std::uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return weight[a] > weight[b]; });
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < top_p * total)) {
    kept += weight[order[count++]];
  }
  double left = uniform(random) * kept;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    left -= weight[order[i]];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

Generation generate(const GenerateOptions& options) {
  const Architecture architecture = read_architecture(read_model_config(options.model_dir));
  check(options, architecture);
  const auto begin = static_cast<std::int64_t>(options.prompt.size());
  const std::int64_t room = architecture.max_positions - begin;
  const std::int64_t most = std::min(options.max_new_tokens, room);
  Session session;
  open_session(
      session_input(options, begin + most), [](const char*) {}, session);
  std::vector<std::uint32_t> ids = options.prompt;
  std::mt19937_64 random(options.seed);
  Generation result;
  result.finish = most < options.max_new_tokens ? "context" : "length";
  for (std::int64_t step = 0; step < most; ++step) {
    const std::vector<float> logits = session.executor->logits(ids, true);
    if (!std::ranges::all_of(logits, [](float value) { return std::isfinite(value); })) {
      fail(Fault::run, "{}: the model gives logits that are no numbers after {} tokens",
           options.model_dir.string(), ids.size());
    }
    ids.push_back(choose_token(logits, options.temperature, options.top_p, random));
    if (std::ranges::find(options.stop_ids, ids.back()) != options.stop_ids.end()) {
      result.finish = "stop";
      break;
    }
  }
  result.ids.assign(ids.begin() + begin, ids.end());
  return result;
}

int generate_files(GenerateOptions options, const std::filesystem::path& prompt,
                   const std::filesystem::path& answer) {
  const std::string origin = prompt.string();
  const Json request = parse_json(read_file(prompt), origin);
  options.prompt = json_get<std::vector<std::uint32_t>>(request, "prompt", origin);
  options.stop_ids = json_get<std::vector<std::uint32_t>>(request, "stop_ids", origin);
  const Generation result = generate(options);
  write_file_durably(answer, dump_json({{"ids", result.ids}, {"finish", result.finish}}) + "\n");
  return kDone;
}

}  // namespace poros
