// SPDX-License-Identifier: Apache-2.0
// make_campaign DIR [key=value...]: writes a synthetic campaign and its campaign.h5 into DIR.
// Keys: models (a number), passes, steps, device, attack.
#include <cstdio>
#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "base/error.hpp"
#include "campaign_fixture.hpp"
#include "receipts/hdf5_store.hpp"

int main(int argc, char** argv) {
  using namespace poros;
  if (argc < 2) {
    std::fputs("usage: make_campaign DIR [key=value...]\n", stderr);
    return kWrongInput;
  }
  testing::FixtureOptions options;
  for (int i = 2; i < argc; ++i) {
    const std::string pair = argv[i];
    const std::size_t equals = pair.find('=');
    const std::string key = pair.substr(0, equals), value = pair.substr(equals + 1);
    if (key == "models") {
      options.models.clear();
      for (int model = 1; model <= std::stoi(value); ++model) {
        options.models.push_back(fmt::format("synthetic/model{:03}-{}b", model, 1 + model % 72));
      }
    } else if (key == "passes") {
      options.passes = std::stoi(value);
    } else if (key == "steps") {
      options.steps = std::stoi(value);
    } else if (key == "attack") {
      options.attack = value;
    } else if (key == "device") {
      options.device = value;
      options.models = {"demo/kjv-qwen2-5m"};
      options.hardware = {"cpu"};
      options.methods = {"poros", "resident", "peft", "unsloth"};
    } else {
      fmt::print(stderr, "unknown key {}\n", key);
      return kWrongInput;
    }
  }
  try {
    std::filesystem::create_directories(argv[1]);
    testing::write_campaign(argv[1], options);
    (void)gather(argv[1]);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  }
}
