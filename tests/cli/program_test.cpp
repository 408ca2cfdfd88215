// SPDX-License-Identifier: Apache-2.0
// The program `poros` from outside: exit codes, what goes to stdout and stderr, what is created.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "../spec/spec_attacks.hpp"
#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/subprocess.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

const std::string kDemo = POROS_SOURCE_DIR "/configs/bench/demo_cpu.yaml";

/// An empty folder that is the program's working folder, home and cache.
class Program : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "poros-cli-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    home_ = name;
  }
  void TearDown() override { fs::remove_all(home_); }

  ProcessResult run(std::vector<std::string> arguments,
                    std::map<std::string, std::string> environment = {}) const {
    environment["HOME"] = environment["POROS_CACHE_DIR"] = home_.string();
    std::vector<std::string> argv = {"env", "-C", home_.string(), POROS_PROGRAM};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return run_process(argv, 30, environment);
  }
  [[nodiscard]] bool nothing_was_created() const { return fs::is_empty(home_); }

  fs::path home_;
};

TEST_F(Program, StartsInMilliseconds) {
  double best_s = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double start_s = monotonic_s();
    const ProcessResult result = run({"--version"});
    best_s = std::min(best_s, monotonic_s() - start_s);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_TRUE(result.out.starts_with("poros 0.")) << result.out;
  }
  EXPECT_LT(best_s, 0.25);
}

TEST_F(Program, HelpNamesPurposeExamplesAndExitCodes) {
  const ProcessResult top = run({"--help"});
  EXPECT_EQ(top.exit_code, 0);
  EXPECT_EQ(top.err, "");
  for (const char* text : {"Examples:", "Exit codes:", "75", "bench", "schema"}) {
    EXPECT_NE(top.out.find(text), std::string::npos) << text;
  }
  for (const std::vector<std::string>& command : {std::vector<std::string>{"bench"},
                                                  {"bench", "run"},
                                                  {"bench", "plan"},
                                                  {"bench", "status"},
                                                  {"bench", "show"},
                                                  {"bench", "logs"},
                                                  {"bench", "gather"},
                                                  {"bench", "report"},
                                                  {"schema"},
                                                  {"fetch"},
                                                  {"prepare"},
                                                  {"check"},
                                                  {"cache"}}) {
    std::vector<std::string> arguments = command;
    arguments.emplace_back("--help");
    const ProcessResult help = run(arguments);
    EXPECT_EQ(help.exit_code, 0) << command.back();
    EXPECT_NE(help.out.find("Example"), std::string::npos) << command.back();
  }
}

TEST_F(Program, WithoutACommandItShowsHelpAndFails) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"bench"}, {"schema"}, {"cache"}}) {
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.out.find("Usage: poros"), std::string::npos) << result.out;
  }
}

TEST_F(Program, WrongUseExitsWithTwoAndSaysWhatWasMeant) {
  struct Case {
    std::vector<std::string> arguments;
    const char* message;
  };
  for (const Case& wrong : {
           Case{{"bnech"}, "\"bnech\" is not known to \"poros\"; did you mean \"bench\"?"},
           Case{{"bench", "paln", "x"}, "did you mean \"plan\"?\nSee: poros bench --help"},
           Case{{"bench", "plan", kDemo, "--jsno"}, "did you mean \"--json\"?"},
           Case{{"bench", "plan"}, "SPEC is required\nSee: poros bench plan --help"},
           Case{{"bench", "plan", kDemo, kDemo}, "is not known to \"poros bench plan\""},
           Case{{"bench", "run", kDemo, "--passes", "many"}, "many"},
           Case{{"bench", "run", kDemo, "--passes", "0"},
                "--passes: 0 is out of range; expected an integer from 1 to 1000"},
           Case{{"bench", "run", kDemo, "--resume", "--fresh"}, "--resume excludes --fresh"},
           Case{{"bench", "plan", "/no/such/file"}, "/no/such/file"},
           Case{{"bench", "plan", "/tmp"}, "/tmp"},
           Case{{"bench", "status", "no-such-campaign"}, "no-such-campaign"},
           Case{{"bench", "show", "no-such-campaign", "1f3a"}, "no-such-campaign"},
           Case{{"bench", "gather", "no-such-campaign"}, "no-such-campaign"},
           Case{{"bench", "report", "no-such-campaign"}, "no-such-campaign"},
           Case{{"bench", "report", "no-such-campaign", "-o", "out/reports"}, "no-such-campaign"},
           Case{{"schema", "specs"}, "did you mean \"spec\"?"},
           Case{{"check", "no such model"}, "no such model"},
           Case{{"check", "./no-such-model"}, "no-such-model"},
           Case{{"cache", "verify", "../x"}, "../x"},
       }) {
    const ProcessResult result = run(wrong.arguments);
    EXPECT_EQ(result.exit_code, 2) << wrong.message;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(result.err.starts_with("poros: error: ")) << result.err;
    EXPECT_NE(result.err.find(wrong.message), std::string::npos) << result.err;

    std::vector<std::string> arguments = wrong.arguments;
    arguments.emplace_back("--json");
    if (wrong.arguments[1] == "verify" || wrong.arguments.back() == "--jsno") continue;
    const ProcessResult json = run(arguments);
    EXPECT_EQ(json.exit_code, 2);
    EXPECT_TRUE(parse_json(json.err, "stderr")["error"].is_string());
  }
  EXPECT_TRUE(nothing_was_created());
}

TEST_F(Program, EveryBrokenSpecExitsWithTwoAndCreatesNothing) {
  for (const SpecAttack& attack : kSpecAttacks) {
    const std::string file = POROS_SOURCE_DIR "/tests/attacks/spec/" + std::string(attack.file);
    for (const char* command : {"run", "plan"}) {
      const ProcessResult result = run({"bench", command, file});
      EXPECT_EQ(result.exit_code, 2) << attack.file;
      EXPECT_EQ(result.out, "") << attack.file;
      const std::string place =
          fmt::format("poros: error: {}:{}:{}: ", file, attack.line, attack.column);
      EXPECT_TRUE(result.err.starts_with(place)) << result.err;
      EXPECT_NE(result.err.find(attack.what), std::string::npos) << result.err;
    }
    ASSERT_TRUE(nothing_was_created()) << attack.file;
  }
}

TEST_F(Program, ValuesOfARunThatMeanNothingAreRefused) {
  for (const auto& [option, value] :
       std::vector<std::pair<std::string, std::string>>{{"--max-hours", "nan"},
                                                        {"--max-hours", "inf"},
                                                        {"--max-hours", "-1"},
                                                        {"--max-failures", "0"},
                                                        {"--shard-name", ""},
                                                        {"--output-dir", ""},
                                                        {"--until-stable", "0"}}) {
    EXPECT_EQ(run({"bench", "matrix", kDemo, option, value, "--dry-run"}).exit_code, 2)
        << option << " " << value;
  }
}

TEST_F(Program, PlanAndDryRunListTheCellsAndCreateNothing) {
  const ProcessResult plan = run({"bench", "plan", kDemo});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_NE(plan.out.find("4 cells in 1 comparison group, 2 passes each"), std::string::npos);
  EXPECT_EQ(run({"bench", "run", kDemo, "--dry-run"}).out, plan.out);

  const Json json = parse_json(run({"bench", "plan", kDemo, "--json"}).out, "stdout");
  ASSERT_EQ(json["cells"].size(), 4U);
  EXPECT_EQ(json["tokens_per_step"], 512);
  EXPECT_EQ(json["cells"][0]["method"], "poros");
  EXPECT_EQ(json["cells"][0]["key"].get<std::string>().size(), 64U);
  EXPECT_EQ(json["cells"][0]["group"], json["cells"][3]["group"]);

  const ProcessResult changed = run({"bench", "run", kDemo, "--dry-run", "--json", "--passes", "7",
                                     "--output-dir", "elsewhere", "--resume"});
  EXPECT_EQ(changed.exit_code, 0) << changed.err;
  const Json other = parse_json(changed.out, "stdout");
  EXPECT_EQ(other["n_passes"], 7);
  EXPECT_EQ(other["output_dir"], "elsewhere");
  EXPECT_EQ(other["cells"], json["cells"]);
  EXPECT_EQ(other["spec_sha256"], json["spec_sha256"]);
  EXPECT_TRUE(nothing_was_created());
}

TEST_F(Program, SchemaIsTheCommittedDocument) {
  const ProcessResult result = run({"schema", "spec"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, read_file(POROS_SOURCE_DIR "/docs/spec.md"));
  const Json schema = parse_json(run({"schema", "spec", "--json"}).out, "stdout");
  EXPECT_EQ(schema["title"], "Poros Bench spec");
}

TEST_F(Program, OutputDoesNotDependOnTheLocale) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"schema", "spec"}, {"bench", "plan", kDemo}}) {
    const ProcessResult plain = run(arguments, {{"LC_ALL", "C"}});
    const ProcessResult german = run(arguments, {{"LC_ALL", "de_DE.UTF-8"}});
    EXPECT_EQ(plain.out, german.out);
    EXPECT_EQ(german.exit_code, 0);
  }
}

TEST_F(Program, AFullDiskIsAnError) {
  const ProcessResult result =
      run_process({"sh", "-c", "exec \"$0\" schema spec > /dev/full", POROS_PROGRAM}, 30);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("No space left on device"), std::string::npos) << result.err;
}

TEST_F(Program, EvalIsTheTrainersBesideIt) {
  const fs::path copy = home_ / "poros";
  const std::string model = (home_ / "a model").string();
  fs::copy_file(POROS_PROGRAM, copy);
  fs::create_directory(model);
  const ProcessResult missing =
      run_process({copy.string(), "eval", "--model", model, "--tokens", "t"}, 30);
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_TRUE(missing.err.starts_with("poros: error: ")) << missing.err;
  EXPECT_NE(missing.err.find("poros-cell"), std::string::npos) << missing.err;

  std::ofstream(home_ / "poros-cell") << "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 7\n";
  fs::permissions(home_ / "poros-cell", fs::perms::owner_all);
  const ProcessResult result =
      run_process({copy.string(), "eval", "--model", model, "--tokens", "t", "--adapter", "d",
                   "--compare", "--threads", "3", "--device", "cpu", "--json"},
                  30);
  EXPECT_EQ(result.out, "<eval><--model><" + model +
                            "><--tokens><t><--precision><nf4><--device><cpu><--adapter><d>"
                            "<--threads><3><--compare><--json>");
  EXPECT_EQ(result.exit_code, 7);
}

TEST_F(Program, EvalExportAndGenerateSayWhatIsWrong) {
  const std::string model = POROS_SOURCE_DIR "/tests/goldens/llama_bf16";
  const std::string adapter = POROS_SOURCE_DIR "/tests/train/eval_adapter";
  const std::string there = home_.string(), out = (home_ / "out").string();
  const struct {
    std::vector<std::string> arguments;
    std::string part;
  } cases[] = {
      {{"eval", "--model", model}, "either --tokens or --data"},
      {{"eval", "--model", model, "--tokens", "t", "--data", "d"}, "either --tokens or --data"},
      {{"eval", "--model", "/nowhere", "--tokens", "t"}, "/nowhere is not there"},
      {{"generate", "--model", model}, "--prompt is required"},
      {{"generate", "--model", model, "--prompt", "a", "--temperature", "-1"}, "--temperature"},
      {{"export", "--model", model, "--adapter", adapter, "-o", there}, "is there already"},
      {{"export", "--model", model, "--adapter", adapter, "-o", out + "/a/b"}, "no folder to put"},
      {{"export", "--model", model, "--adapter", there, "-o", out}, "adapter_config.json"},
      {{"export", "--model", there, "--adapter", adapter, "-o", out}, "config.json"},
      {{"export", "--model", model, "--adapter", adapter, "-o", out, "--max-shard-size", "5XB"},
       "--max-shard-size"},
      {{"export", "--model", model, "--adapter", adapter, "-o", out, "--max-shard-size", "GB"},
       "--max-shard-size"},
  };
  std::ofstream(home_ / "file") << "x";  // home_ is not empty
  for (const auto& test : cases) {
    const ProcessResult result = run(test.arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find(test.part), std::string::npos) << result.err;
  }
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Program, CheckPlansMemoryFromTheConfigAlone) {
  const std::string model = POROS_SOURCE_DIR "/configs/models/kjv-qwen2";
  const ProcessResult result = run({"check", model, "--device", "cpu", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = parse_json(result.out, "stdout");
  EXPECT_EQ(json["model_type"], "qwen2");
  EXPECT_EQ(json["layers"], 6);
  EXPECT_EQ(json["parameters"], 5478656);  // the model card's figure
  // r = 16 on the seven linears of six layers: 16 x the sum of in + out.
  EXPECT_EQ(json["arms"][0]["trainable_params"],
            16 * 6 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 704)));
  EXPECT_LT(json["arms"][1]["device_bytes"], json["arms"][0]["device_bytes"]);
  EXPECT_NE(run({"check", model}).out.find("qwen2: supported"), std::string::npos);

  // A rank on the command line counts everywhere.
  const Json wider = parse_json(run({"check", model, "--rank", "64", "--json"}).out, "stdout");
  EXPECT_EQ(wider["lora_parameters"], wider["arms"][0]["trainable_params"]);
  EXPECT_EQ(wider["lora_parameters"], 4 * json["lora_parameters"].get<std::int64_t>());

  std::ofstream(home_ / "config.json") << R"({"model_type": "gpt2", "n_layer": 12})";
  const ProcessResult unknown = run({"check", home_.string(), "--json"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_EQ(parse_json(unknown.out, "stdout")["supported"], false);
}

TEST_F(Program, FetchHasNothingToDoForPaths) {
  const ProcessResult result = run({"fetch", kDemo});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("nothing to fetch"), std::string::npos) << result.out;
  EXPECT_TRUE(nothing_was_created());
}

TEST_F(Program, PrepareFillsTheCacheThatCacheCommandsKnow) {
  const std::string campaign = (home_ / "campaign").string();
  const ProcessResult first = run({"prepare", kDemo, "--json", "-o", campaign});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Json inputs = parse_json(first.out, "stdout")["inputs"];
  ASSERT_EQ(inputs.size(), 1U);  // all arms share them
  EXPECT_TRUE(fs::exists(inputs[0]["tokens"].get<std::string>()));
  EXPECT_TRUE(fs::exists(inputs[0]["adapter"].get<std::string>() + "/adapter_model.safetensors"));
  const Json built = parse_json(first.out, "stdout")["bases"];
  ASSERT_EQ(built.size(), 1U);  // poros and resident share one
  EXPECT_EQ(built[0]["built"], true);
  // Again, now with a Python that would fail: nothing is made anew.
  const ProcessResult repeated =
      run({"prepare", kDemo, "--json", "-o", campaign}, {{"POROS_PYTHON", "/bin/false"}});
  const Json second = parse_json(repeated.out, "stdout");
  const Json again = second["bases"];
  EXPECT_EQ(again[0]["built"], false);
  EXPECT_EQ(again[0]["weights"], built[0]["weights"]);
  EXPECT_EQ(second["inputs"], inputs);

  const Json list = parse_json(run({"cache", "list", "--json"}).out, "stdout")["entries"];
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0]["precision"], "nf4");
  EXPECT_EQ(run({"cache", "verify"}).exit_code, 0);

  const fs::path data = fs::path(list[0]["folder"].get<std::string>()) / "base.bin";
  std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(100);
  file.put('\x55');
  file.put('\xaa');
  file.close();
  const ProcessResult damaged = run({"cache", "verify"});
  EXPECT_EQ(damaged.exit_code, 1) << damaged.out;
  EXPECT_EQ(run({"cache", "prune", "--unused-days", "-1"}).exit_code, 2);
  fs::resize_file(data, 1000);
  EXPECT_NE(run({"cache", "list"}).out.find("base.bin"), std::string::npos);
  EXPECT_EQ(run({"cache", "prune"}).exit_code, 0);
  EXPECT_EQ(parse_json(run({"cache", "list", "--json"}).out, "stdout")["entries"].size(), 0U);
}

}  // namespace
}  // namespace poros
