// SPDX-License-Identifier: Apache-2.0
// `poros doctor` from outside, on machines that are invented by a management library and variables.
#include <filesystem>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/json.hpp"
#include "base/subprocess.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
using Variables = std::map<std::string, std::string>;

struct Visit {
  int exit_code = -1;
  Json json;
  /// The finding of that name; null when there is none.
  [[nodiscard]] Json find(const std::string& name) const {
    for (const Json& finding : json.at("findings")) {
      if (finding.at("name") == name) return finding;
    }
    return nullptr;
  }
};

Visit visit(Variables variables, std::vector<std::string> arguments = {"--quick"}) {
  variables.emplace("POROS_CACHE_DIR", fs::temp_directory_path().string());
  variables.emplace("POROS_NVML_LIBRARY", "/nonexistent.so");
  std::vector<std::string> argv = {POROS_PROGRAM, "doctor", "--json"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const ProcessResult result = run_process(argv, 60, variables);
  EXPECT_EQ(result.err, "");
  return {result.exit_code, parse_json(result.out, "doctor")};
}

Variables with_gpu(const std::string& driver) {
  return {{"POROS_NVML_LIBRARY", FAKE_NVML},
          {"FAKE_NVML_GPUS", "GPU-1111,NVIDIA Fake,40960"},
          {"FAKE_NVML_DRIVER", driver}};
}

TEST(Doctor, SaysThatAMachineWithoutGpuRunsCpuCells) {
  const Visit found = visit({});
  EXPECT_EQ(found.find("driver").at("health"), "note");
  EXPECT_TRUE(found.find("memory").is_object());
  // The exit code is what the errors say, whatever this machine has.
  bool any = false;
  for (const Json& finding : found.json.at("findings")) any |= finding.at("health") == "error";
  EXPECT_EQ(found.json.at("can_run"), !any);
  EXPECT_EQ(found.exit_code, any ? 1 : 0);
}

TEST(Doctor, NamesADriverThatIsTooOld) {
  const Visit old = visit(with_gpu("535.104.05"));
  EXPECT_EQ(old.exit_code, 1);
  EXPECT_EQ(old.find("driver").at("health"), "error");
  EXPECT_NE(old.find("driver").at("mend").get<std::string>().find("R580"), std::string::npos);
  EXPECT_EQ(visit(with_gpu("580.65.06")).find("driver").at("health"), "ok");
  EXPECT_EQ(visit(with_gpu("590.1")).find("driver").at("health"), "ok");
}

TEST(Doctor, ShowsTheGpuAndWhoUsesIt) {
  Variables variables = with_gpu("580.65.06");
  variables["FAKE_NVML_BUSY"] = "77";
  const Visit found = visit(variables);
  const auto gpu = found.find("GPU 0").at("value").get<std::string>();
  EXPECT_NE(gpu.find("NVIDIA Fake, 42.9 GB, GPU-1111"), std::string::npos) << gpu;
  EXPECT_EQ(found.find("GPU 0 in use by").at("health"), "warn");
}

TEST(Doctor, FindsAPythonWithoutTokenizers) {
  const Visit found = visit({{"POROS_PYTHON", "/bin/false"}});
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_EQ(found.find("Python").at("health"), "error");
}

TEST(Doctor, FindsAFolderThatCantBeWritten) {
  if (::geteuid() == 0) GTEST_SKIP() << "root can write everywhere";
  const Visit found = visit({}, {"--quick", "--results", "/"});
  EXPECT_EQ(found.find("results").at("health"), "error");
}

TEST(Doctor, MeasuresTheDiskAndLeavesNothing) {
  const Visit found = visit({}, {"--results", fs::temp_directory_path().string()});
  const auto text = found.find("results").at("value").get<std::string>();
  EXPECT_TRUE(text.find(" GB/s") != std::string::npos ||
              text.find("not measured") != std::string::npos)
      << text;
}

}  // namespace
}  // namespace poros
