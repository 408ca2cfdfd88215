// SPDX-License-Identifier: Apache-2.0
// poros-cell as its driver meets it: request in, events and record out, signals, broken input.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "cell/protocol.hpp"
#include "child.hpp"
#include "model/token_file.hpp"
#include "tiny_cell.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

/// Writes the request beside its result. @returns its path
std::string write_request(const CellRequest& request) {
  const fs::path path = request.result_path.string() + ".request";
  write_file_durably(path, dump_json(to_json(request)));
  return path.string();
}

std::vector<std::string> run_command(const CellRequest& request) {
  return {POROS_CELL_PROGRAM, "run", write_request(request)};
}

TEST(PorosCell, SaysItsVersion) {
  Child child({POROS_CELL_PROGRAM, "--version"});
  EXPECT_EQ(child.wait(), kDone);
  EXPECT_EQ(child.output().rfind("poros-cell ", 0), 0U) << child.output();
}

TEST(PorosCell, WrongUseExitsWith2) {
  const std::vector<std::vector<std::string>> commands = {
      {}, {"fly"}, {"run"}, {"run", "a", "b"}, {"eval"}, {"run", "/nowhere/request.json"}};
  for (std::vector<std::string> arguments : commands) {
    arguments.insert(arguments.begin(), POROS_CELL_PROGRAM);
    Child child(arguments);
    EXPECT_EQ(child.wait(), kWrongInput) << arguments.back();
    EXPECT_FALSE(child.output().empty()) << arguments.back();
  }
}

TEST(PorosCell, TellsPhasesAndStepsAsTheyHappen) {
  TinyCell tiny;
  CellRequest request = tiny.request("poros", 5);
  request.cell.training.warmup_steps = 2;
  tiny.finish(request);
  Child child(run_command(request));
  std::vector<std::string> seen;
  while (const auto event = child.next_event()) {
    const std::string kind = event->at("event");
    if (kind == "heartbeat") continue;
    if (kind == "phase") {
      seen.push_back(event->at("phase"));
      continue;
    }
    EXPECT_EQ(event->at("steps"), 5);
    EXPECT_GT(event->at("memory_mb").get<double>(), 1.0);
    EXPECT_TRUE(std::isfinite(event->at("loss").get<double>()));
    seen.push_back(std::to_string(event->at("step").get<int>()));
  }
  EXPECT_EQ(child.wait(), kDone) << child.output();
  EXPECT_EQ(seen, (std::vector<std::string>{"load", "quantise", "load", "warmup", "1", "2", "train",
                                            "3", "4", "5", "finish"}));
  const PassRecord record = TinyCell::record_of(request);
  EXPECT_EQ(record.status, "ok") << record.error_message;
  EXPECT_EQ(record.cell_key, request.cell_key);

  tiny.finish(request);  // again: the cache has the base now
  Child second(run_command(request));
  seen.clear();
  while (const auto event = second.next_event()) {
    if (event->at("event") == "phase") seen.push_back(event->at("phase"));
  }
  EXPECT_EQ(second.wait(), kDone);
  EXPECT_EQ(seen, (std::vector<std::string>{"load", "warmup", "train", "finish"}));
  EXPECT_EQ(TinyCell::record_of(request).steps.loss, record.steps.loss);
}

TEST(PorosCell, SigtermEndsAtTheNextStepBoundary) {
  TinyCell tiny;
  CellRequest request = tiny.request("resident", 100000);
  tiny.finish(request);
  Child child(run_command(request));
  int steps = 0;
  while (const auto event = child.next_event()) {
    if (event->at("event") == "step" && ++steps == 3) child.send_signal(SIGTERM);
  }
  EXPECT_EQ(child.wait(), kDone) << child.output();
  const PassRecord record = TinyCell::record_of(request);
  EXPECT_EQ(record.status, "error");
  EXPECT_EQ(record.reason, "drained");
  EXPECT_GE(record.steps.loss.size(), 3U);
  EXPECT_LT(record.steps.loss.size(), 100000U);
}

TEST(PorosCell, AReaderThatIsGoneChangesNothing) {
  TinyCell tiny;
  CellRequest request = tiny.request("resident", 3);
  tiny.finish(request);
  Child child(run_command(request), {.close_event_reader = true, .address_space_bytes = {}});
  EXPECT_EQ(child.wait(), kDone) << child.output();
  const PassRecord record = TinyCell::record_of(request);
  EXPECT_EQ(record.status, "ok") << record.error_message;
  EXPECT_EQ(record.steps.loss.size(), 3U);
}

TEST(PorosCell, WithoutAGpuACudaCellIsSkippedWithExitCode3) {
  TinyCell tiny;
  CellRequest request = tiny.request("resident", 3);
  request.cell.device = "cuda";
  tiny.finish(request);
  Child child(run_command(request));
  EXPECT_EQ(child.wait(), kCellSkipped);
  EXPECT_EQ(TinyCell::record_of(request).reason, "no_cuda");
}

TEST(PorosCell, BrokenRequestsExitWith2AndLeaveNoResult) {
  TinyCell tiny;
  CellRequest request = tiny.request("resident", 3);
  tiny.finish(request);
  const Json good = to_json(request);
  const fs::path path = tiny.folder() / "broken.json";
  std::vector<std::string> texts = {"", "[]", "{\"v\":1,\"v\":1}"};
  const auto with = [&](const char* key, const Json& value) {
    Json changed = good;
    changed[key] = value;
    texts.push_back(dump_json(changed));
  };
  with("v", 99);
  with("cell_key", std::string(64, '0'));
  with("result_path", 7);
  with("cell", Json::object());
  for (const std::string& text : texts) {
    write_file_durably(path, text);
    Child child({POROS_CELL_PROGRAM, "run", path.string()});
    EXPECT_EQ(child.wait(), kWrongInput) << text.substr(0, 200) << "\n" << child.output();
    EXPECT_NE(child.output().find("broken.json"), std::string::npos) << child.output();
    EXPECT_FALSE(fs::exists(request.result_path));
  }
}

TEST(PorosCell, BrokenFilesEndAsAnErrorThatNamesThem) {
  TinyCell tiny;
  const auto expect_error = [&](CellRequest request, const std::string& named) {
    Child child(run_command(request));
    EXPECT_EQ(child.wait(), kDone) << child.output();
    const PassRecord record = TinyCell::record_of(request);
    EXPECT_EQ(record.status, "error");
    EXPECT_EQ(record.reason, "bad_input") << record.error_message;
    EXPECT_NE(record.error_message.find(named), std::string::npos) << record.error_message;
    EXPECT_TRUE(record.steps.loss.empty());
  };
  const auto fresh = [&] {
    CellRequest request = tiny.request("resident", 3);
    tiny.finish(request);
    return request;
  };
  CellRequest request = fresh();
  request.tokens_path = tiny.folder() / "missing.tokens";
  expect_error(request, "missing.tokens");

  request = fresh();  // content that is not what its name says
  request.tokens_path = tiny.folder() / (std::string(64, 'a') + ".tokens");
  fs::copy_file(tiny.folder() / "tiny.tokens", request.tokens_path);
  expect_error(request, std::string(64, 'a'));

  request = fresh();  // an adapter of another rank than the cell's
  request.cell.lora.rank = 8;
  request.cell_key = cell_key(request.cell);
  expect_error(request, request.adapter_dir.string());

  request = fresh();
  request.cell.training.seq_len = 16;
  request.cell_key = cell_key(request.cell);
  expect_error(request, "seq_len");

  request = fresh();
  fs::copy(request.model_dir, tiny.folder() / "cut");
  fs::resize_file(tiny.folder() / "cut" / "model.safetensors", 5000);
  request.model_dir = tiny.folder() / "cut";
  expect_error(request, "model.safetensors");
}

TEST(PorosCell, MemoryThatIsRefusedEndsAsOom) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer reserves terabytes of address space";
#endif
  TinyCell tiny;
  CellRequest request = tiny.request("resident", 3);
  // One row of a million tokens: the plan asks for far more than the limit leaves.
  TokenFile tokens;
  tokens.seq_len = 1 << 20;
  tokens.rows = 1;
  tokens.vocab = TinyCell::kVocab;
  tokens.note = "{}";
  tokens.ids.assign(static_cast<std::size_t>(tokens.seq_len), 1);
  tokens.flags.assign(tokens.ids.size(), TokenFile::kSupervised);
  tokens.flags[0] = TokenFile::kDocumentStart;
  request.tokens_path = tiny.folder() / "long.tokens";
  write_file_durably(request.tokens_path, token_file_bytes(tokens));
  request.cell.training.seq_len = tokens.seq_len;
  request.cell.training.gradient_accumulation_steps = 1;
  tiny.finish(request);
  Child child(run_command(request),
              {.close_event_reader = false, .address_space_bytes = std::size_t{3} << 30});
  EXPECT_EQ(child.wait(), kDone) << child.output();
  const PassRecord record = TinyCell::record_of(request);
  EXPECT_EQ(record.status, "oom") << record.error_message;
  EXPECT_NE(record.error_message.find("MiB of device memory"), std::string::npos)
      << record.error_message;
}

}  // namespace
}  // namespace poros
