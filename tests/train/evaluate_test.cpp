// SPDX-License-Identifier: Apache-2.0
// `poros-cell eval` against transformers and peft (eval_figures.json, make_eval_figures.py).
#include "train/arm/evaluate.hpp"

#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "child.hpp"
#include "tiny_cell.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
const std::string kTests = POROS_SOURCE_DIR "/tests/";

Json eval(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv{POROS_CELL_PROGRAM, "eval"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  Child child(argv);
  EXPECT_EQ(child.wait(), kDone) << child.output();
  return parse_json(child.output(), "output of eval");
}

TEST(Eval, LossesEqualTheReferenceInFp32) {
  TinyCell tiny;
  const std::string path = kTests + "train/eval_figures.json";
  const Json figures = parse_json(read_file(path), path);
  ASSERT_EQ(figures.at("runs").size(), 2U);
  for (const Json& run : figures.at("runs")) {
    const fs::path tokens = tiny.folder() / "rows.json";
    write_file_durably(tokens, dump_json({{"input_ids", run.at("input_ids")}}));
    std::vector<std::string> arguments = {
        "--model",     kTests + "goldens/" + run.at("model").get<std::string>(),
        "--tokens",    tokens.string(),
        "--precision", "fp32",
        "--cache",     (tiny.folder() / "cache").string(),
        "--json"};
    if (run.at("adapted")) {
      arguments.insert(arguments.end(), {"--adapter", kTests + "train/eval_adapter"});
    }
    const Json result = eval(arguments);
    const auto expected = run.at("losses").get<std::vector<double>>();
    ASSERT_EQ(result.at("losses").size(), expected.size());
    double sum = 0;
    std::int64_t tokens_of_all = 0;
    for (std::size_t row = 0; row < expected.size(); ++row) {
      EXPECT_NEAR(result.at("losses")[row].get<double>(), expected[row], 1e-5)
          << run.at("model") << " row " << row << (run.at("adapted") ? " with adapter" : "");
      const auto predicted = static_cast<std::int64_t>(run.at("input_ids")[row].size()) - 1;
      sum += expected[row] * static_cast<double>(predicted);
      tokens_of_all += predicted;
    }
    EXPECT_EQ(result.at("tokens"), tokens_of_all);
    const double loss = result.at("loss");
    EXPECT_NEAR(loss, sum / static_cast<double>(tokens_of_all), 1e-5);
    EXPECT_NEAR(result.at("perplexity").get<double>(), std::exp(loss), 1e-9);
  }
}

TEST(Eval, OfAnUntrainedAdapterEqualsTheFirstStepsLoss) {
  TinyCell tiny;
  CellRequest request = tiny.request("resident", 2);
  const PassRecord record = tiny.run(request);
  ASSERT_EQ(record.status, "ok") << record.error_message;
  EvaluateOptions options;
  options.model_dir = request.model_dir;
  options.tokens_path = request.tokens_path;
  options.adapter_dir = request.adapter_dir;
  options.cache_dir = request.cache_dir;
  options.threads = 1;
  const Evaluation evaluation = evaluate(options);
  ASSERT_EQ(evaluation.losses.size(), 13U);
  EXPECT_EQ(evaluation.tokens, 13 * 30 - 3 * 4);
  // The first step trains on rows 0 to 3, which predict 30, 30, 30 and 26 tokens.
  const double first = (30 * *evaluation.losses[0] + 30 * *evaluation.losses[1] +
                        30 * *evaluation.losses[2] + 26 * *evaluation.losses[3]) /
                       116;
  EXPECT_NEAR(record.steps.loss[0], first, 1e-5);
}

TEST(Eval, ComparesWithTheBase) {
  TinyCell tiny;
  const std::string path = kTests + "train/eval_figures.json";
  const Json runs = parse_json(read_file(path), path).at("runs");
  const fs::path tokens = tiny.folder() / "rows.json";
  write_file_durably(tokens, dump_json({{"input_ids", runs[0].at("input_ids")}}));
  const std::vector<std::string> model = {
      "--model", kTests + "goldens/llama_bf16",  "--tokens", tokens.string(), "--precision", "fp32",
      "--cache", (tiny.folder() / "c").string(), "--json"};
  std::vector<std::string> both = model;
  both.insert(both.end(), {"--adapter", kTests + "train/eval_adapter", "--compare"});
  const Json base = eval(model), compared = eval(both);
  EXPECT_EQ(compared.at("base").at("loss"), base.at("loss"));
  EXPECT_EQ(compared.at("base").at("losses"), base.at("losses"));
  EXPECT_NE(compared.at("loss"), base.at("loss"));
  const double ratio = compared.at("perplexity_ratio"), difference = compared.at("loss_difference");
  EXPECT_NEAR(ratio, compared.at("perplexity").get<double>() / base.at("perplexity").get<double>(),
              1e-12);
  EXPECT_NEAR(std::log(ratio), difference, 1e-12);
  std::vector<std::string> alone = {POROS_CELL_PROGRAM, "eval", "--compare"};
  alone.insert(alone.end(), model.begin(), model.end());
  Child child(alone);
  EXPECT_EQ(child.wait(), kWrongInput);
  EXPECT_NE(child.output().find("--adapter"), std::string::npos) << child.output();
}

TEST(Eval, RefusesTokensThatAreNone) {
  TinyCell tiny;
  const fs::path tokens = tiny.folder() / "rows.json";
  for (const char* text : {"", "{}", R"({"input_ids": [[1, 128]]})", "POROSTOK"}) {
    write_file_durably(tokens, text);
    Child child({POROS_CELL_PROGRAM, "eval", "--model", (tiny.folder() / "model").string(),
                 "--tokens", tokens.string(), "--cache", (tiny.folder() / "cache").string()});
    EXPECT_EQ(child.wait(), kWrongInput) << text;
    EXPECT_NE(child.output().find("rows.json"), std::string::npos) << child.output();
  }
}

}  // namespace
}  // namespace poros
