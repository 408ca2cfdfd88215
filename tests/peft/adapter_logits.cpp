// SPDX-License-Identifier: Apache-2.0
// adapter_logits CASES.json: makes or reads adapters and computes logits, for
// adapter_logits_test.py.
//
// CASES.json is a list of objects: checkpoint (folder), ids (rows of token ids), adapter (folder),
// out (file), and either lora (settings: an adapter of them, with random A and B, is written to
// `adapter`) or again (a folder: the adapter that was read is written there). `out` gets
// {"logits": <file of float32>} or {"refused": "<message>"}.
#include <cstdio>
#include <random>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "executor_fixture.hpp"

namespace poros {
namespace {

LoraSpec spec_of(const Json& lora) {
  LoraSpec spec;
  spec.rank = lora.at("rank");
  spec.alpha = lora.at("alpha");
  spec.dropout = lora.value("dropout", 0.0);
  spec.use_rslora = lora.value("use_rslora", false);
  if (lora.contains("target_modules")) spec.target_modules = lora.at("target_modules");
  if (lora.contains("rank_pattern")) spec.rank_pattern = lora.at("rank_pattern");
  if (lora.contains("alpha_pattern")) spec.alpha_pattern = lora.at("alpha_pattern");
  return spec;
}

void make_adapter(const Json& test, const Architecture& architecture) {
  Adapter adapter = initial_adapter(architecture, spec_of(test.at("lora")), "test", 3);
  std::mt19937 generator(17);
  std::normal_distribution<float> normal(0.0F, 0.1F);
  for (LoraWeights& weights : adapter.weights) {
    for (float& value : weights.b) value = normal(generator);
  }
  write_adapter(test.at("adapter").get<std::string>(), adapter);
}

/// Logits [rows, length, vocab] of the adapter in the case's folder.
std::vector<float> logits(const Json& test) {
  const auto base = golden_base(test.at("checkpoint").get<std::string>(), "fp32");
  if (test.contains("lora")) make_adapter(test, base->architecture());
  const Adapter adapter = read_adapter(test.at("adapter").get<std::string>(), base->architecture());
  if (test.contains("again")) write_adapter(test.at("again").get<std::string>(), adapter);
  std::vector<float> all;
  const auto rows = test.at("ids").get<std::vector<std::vector<std::uint32_t>>>();
  RunSettings settings;
  settings.seq_len = static_cast<std::int64_t>(rows.at(0).size());
  const auto executor = make_executor(*base, adapter, settings);
  for (const auto& row : rows) {
    const std::vector<float> values = executor->logits(row);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

int run(const std::string& path) {
  for (const Json& test : parse_json(read_file(path), path)) {
    const auto out = test.at("out").get<std::string>();
    Json answer;
    try {
      const std::vector<float> values = logits(test);
      write_file_durably(out + ".f32",
                         std::string_view(reinterpret_cast<const char*>(values.data()),
                                          values.size() * sizeof(float)));
      answer = {{"logits", out + ".f32"}};
    } catch (const Error& error) {
      if (error.fault() != Fault::input) throw;
      answer = {{"refused", error.what()}};
    }
    write_file_durably(out, dump_json(answer));
  }
  return 0;
}

}  // namespace
}  // namespace poros

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("adapter_logits CASES.json\n", stderr);
    return 2;
  }
  try {
    return poros::run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "adapter_logits: %s\n", error.what());
    return 1;
  }
}
