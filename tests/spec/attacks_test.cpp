// SPDX-License-Identifier: Apache-2.0
// Broken specs: each is refused at the right place with the right words, quickly and in little
// memory.
#include <filesystem>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "spec/spec_reader.hpp"
#include "spec/yaml_tree.hpp"
#include "spec_attacks.hpp"

namespace poros {
namespace {

const std::filesystem::path kFolder = POROS_SOURCE_DIR "/tests/attacks/spec";

std::string refusal(const std::string& text) {
  try {
    static_cast<void>(parse_spec(text, "spec.yaml", "/specs"));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), kWrongInput);
    return error.what();
  }
  return "accepted";
}

long peak_rss_kb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

class SpecAttackTest : public testing::TestWithParam<SpecAttack> {};

TEST_P(SpecAttackTest, IsRefusedWithPlaceAndReason) {
  const SpecAttack& attack = GetParam();
  const std::string file = (kFolder / attack.file).string();
  try {
    static_cast<void>(read_spec(file));
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    const std::string first = message.substr(0, message.find('\n'));
    EXPECT_EQ(error.exit_code(), kWrongInput);
    EXPECT_TRUE(first.starts_with(fmt::format("{}:{}:{}: ", file, attack.line, attack.column)))
        << message;
    EXPECT_NE(first.find(attack.what), std::string::npos) << message;
    EXPECT_NE(first.find(attack.expected), std::string::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, SpecAttackTest, testing::ValuesIn(kSpecAttacks),
                         [](const auto& parameter) {
                           std::string name = parameter.param.file;
                           return name.substr(0, name.find('.'));
                         });

TEST(SpecAttacks, EveryFileIsInTheTable) {
  std::set<std::string> files, table;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".yaml") files.insert(entry.path().filename());
  }
  for (const SpecAttack& attack : kSpecAttacks) table.insert(attack.file);
  EXPECT_EQ(files, table);
  EXPECT_GE(files.size(), 30U);
}

TEST(SpecAttacks, OversizedFileIsRefused) {
  const std::string text = "spec_id: attack\n# " + std::string(std::size_t{1} << 20, 'x') + "\n";
  EXPECT_EQ(
      refusal(text),
      fmt::format("spec.yaml:1:1: the file has {} bytes; expected at most 1048576", text.size()));
}

TEST(SpecAttacks, HostileTextsTakeLittleTimeAndMemory) {
  const std::size_t megabyte = std::size_t{1} << 20;
  const auto repeated = [&](const std::string& part, const std::string& begin = "") {
    std::string text = begin;
    while (text.size() + part.size() < megabyte) text += part;
    return text;
  };
  const std::string texts[] = {
      repeated("["),
      repeated("{"),
      repeated("- "),
      repeated("? "),
      repeated(": "),
      repeated("a: "),
      repeated("["
               "\n"),
      repeated("[ #]\n"),
      repeated("'"),
      repeated("&a "),
      repeated("!"),
      repeated("\"a\", ", "a: ["),
      repeated("a, ", "a: ["),
      repeated("[a, "),
      repeated("a: b: "),
      repeated("x", "a: "),
      repeated("\n", "a: |\n"),
      repeated("x\n"),
      repeated("b, ", "methods: ["),
      repeated("- b\n", "methods:\n"),
      repeated("- {}\n", "models:\n"),
      repeated("k: 1\n"),
      repeated(" b"),
      repeated("é", "a: "),
  };
  const long before_kb = peak_rss_kb();
  for (const std::string& text : texts) {
    const double start_s = monotonic_s();
    const std::string message = refusal(text);
    EXPECT_NE(message, "accepted");
    EXPECT_LT(message.size(), 20000U);
    EXPECT_LT(monotonic_s() - start_s, 5.0) << text.substr(0, 20) << " -> " << message;
  }
  // The reader holds a tree of at most some dozen bytes a byte of text; walked aliases or a deep
  // scan would take hundreds of megabytes. AddressSanitizer keeps freed memory for a while.
#ifdef __SANITIZE_ADDRESS__
  const long limit_kb = 1024 * 1024;
#else
  const long limit_kb = 200 * 1024;
#endif
  EXPECT_LT(peak_rss_kb() - before_kb, limit_kb);
}

TEST(SpecAttacks, ManyDistinctKeysAreReportedInPart) {
  std::string text;
  for (int i = 0; i < 60000; ++i) text += fmt::format("k{}: 1\n", i);
  const double start_s = monotonic_s();
  const std::string message = refusal(text);
  EXPECT_LT(monotonic_s() - start_s, 10.0);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 20);
  EXPECT_NE(message.find("faults more"), std::string::npos);
}

TEST(SpecAttacks, AllFaultsOfAFileAreShownInItsOrder) {
  const std::string message = refusal(
      "spec_id: two faults\n"
      "models:\n"
      "  - model_id: org/model\n"
      "training:\n"
      "  seed: -1\n"
      "  stesp: 5\n");
  EXPECT_EQ(
      message,
      "spec.yaml:1:10: spec_id: \"two faults\" is not valid; expected 1 to 64 letters, digits, "
      "'.', '_' or '-', the first a letter or digit\n"
      "spec.yaml:5:9: training.seed: -1 is out of range; expected an integer from 0 to "
      "4294967295\n"
      "spec.yaml:6:3: unknown key \"training.stesp\"; expected one of: steps, seq_len, "
      "batch_size, gradient_accumulation_steps, seed, warmup_steps, n_passes, compute_dtype, "
      "packing, learning_rate, lr_scheduler, lr_warmup_steps, max_grad_norm, weight_decay, "
      "dataset; did you mean \"steps\"?");
}

TEST(SpecAttacks, RandomBytesNeverPassAndNeverCrash) {
  // A linear congruential generator: the same texts on every machine.
  std::uint32_t state = 12345;
  const auto next = [&] { return (state = state * 1664525U + 1013904223U) >> 16U; };
  const std::string alphabet = "[]{}:,-?&*!|>'\"%@`# \n\tab01._~\x80\xc3";
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    const std::size_t length = next() % 60;
    for (std::size_t i = 0; i < length; ++i) text += alphabet[next() % alphabet.size()];
    EXPECT_NE(refusal(text), "accepted") << text;
  }
}

TEST(SpecAttacks, EveryCutOfAGoodSpecEndsInRefusalOrASpec) {
  const std::string good =
      "spec_id: cut\n"
      "models:\n"
      "  - {model_id: org/model, display_name: \"M\\u00e9\"}\n"
      "methods: [poros, 'peft']\n"
      "training: {steps: 25, dataset: {path: a.txt, format: text}}\n"
      "timeouts: {load: 1.5h}\n";
  int accepted = 0;
  for (std::size_t length = 0; length <= good.size(); ++length) {
    if (refusal(good.substr(0, length)) == "accepted") ++accepted;
  }
  EXPECT_GE(accepted, 1);
  EXPECT_EQ(refusal(good), "accepted");
}

}  // namespace
}  // namespace poros
