// SPDX-License-Identifier: Apache-2.0
// Every file of tests/attacks/{safetensors,config,adapter} is refused as bad input, for its reason,
// without much memory. tests/attacks/make_model_attacks.py makes the files.
#include <functional>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/safetensors.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

long peak_kib() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

void expect_all_refused(const char* kind, const std::function<void(const fs::path&)>& read) {
  const fs::path folder = fs::path(POROS_SOURCE_DIR) / "tests" / "attacks" / kind;
  const Json expected = parse_json(read_file(folder / "expected.json"), "expected.json");
  ASSERT_GE(expected.size(), 25U);
  const long before = peak_kib();
  for (const auto& [name, reason] : expected.items()) {
    try {
      read(folder / name);
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::input) << name << ": " << error.what();
      EXPECT_NE(std::string(error.what()).find(reason.get<std::string>()), std::string::npos)
          << name << ": expected \"" << reason.get<std::string>() << "\", got: " << error.what();
    }
  }
  EXPECT_LT(peak_kib() - before, 64 * 1024) << "[KiB]";
}

TEST(Attacks, Safetensors) {
  expect_all_refused("safetensors", [](const fs::path& file) { const SafetensorsFile read(file); });
}

TEST(Attacks, Config) {
  expect_all_refused(
      "config", [](const fs::path& file) { (void)read_architecture(read_model_config(file)); });
}

TEST(Attacks, Adapter) {
  const Architecture llama = read_architecture(read_model_config(test::golden("arch_llama")));
  expect_all_refused("adapter", [&](const fs::path& folder) { (void)read_adapter(folder, llama); });
}

}  // namespace
}  // namespace poros
