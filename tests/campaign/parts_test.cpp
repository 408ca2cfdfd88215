// SPDX-License-Identifier: Apache-2.0
// Parts of the campaign layer that need no process.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "campaign/attempt.hpp"
#include "campaign/hub.hpp"
#include "campaign/ledger.hpp"
#include "campaign/live.hpp"
#include "campaign/parity_run.hpp"
#include "campaign/plan.hpp"
#include "campaign/summary.hpp"
#include "cell/protocol.hpp"

namespace poros {
namespace {
namespace fs = std::filesystem;
using End = CellOutcome::End;

TEST(Plan, PassesOfAGroupAreInterleaved) {
  std::string order;
  for (const PassSlot& slot : interleaved_passes({"g", {0, 1, 4}}, 2)) {
    order += std::to_string(slot.cell) + "." + std::to_string(slot.pass) + " ";
  }
  EXPECT_EQ(order, "0.0 1.0 4.0 0.1 1.1 4.1 ");
}

Receipt attempt_receipt(std::int64_t seq, std::int64_t pass, std::int64_t attempt,
                        const char* status, const char* reason) {
  Receipt receipt;
  receipt.seq = seq;
  receipt.kind = "attempt";
  receipt.key = "k";
  receipt.fields = {{"purpose", "timed"}, {"pass", pass},     {"attempt", attempt},
                    {"status", status},   {"reason", reason}, {"cell_build", "b"}};
  return receipt;
}

TEST(Ledger, TheLastAttemptCounts) {
  Ledger ledger({attempt_receipt(0, 0, 1, "error", "lost"), attempt_receipt(1, 1, 1, "ok", ""),
                 attempt_receipt(2, 0, 2, "ok", "")});
  EXPECT_EQ(ledger.attempts("k", "timed", 0), 2);
  EXPECT_EQ(ledger.attempts("k", "timed", 1), 1);
  EXPECT_EQ(ledger.attempts("k", "parity", 0), 0);
  EXPECT_EQ(ledger.attempts("other", "timed", 0), 0);
  EXPECT_EQ(ledger.last_attempt("k", "timed", 0)->status, "ok");
  EXPECT_EQ(ledger.passes("k", "timed").size(), 2U);
  EXPECT_EQ(ledger.cell("k"), nullptr);
  AttemptEntry entry;
  entry.status = "error";
  for (const char* reason : {"lost", "drained", "timeout"}) {
    entry.reason = reason;
    EXPECT_EQ(entry.counts(), entry.reason == "timeout");
  }
}

/// status/reason that the end of a process gives.
std::string judged(End end, int code, bool has_result, const std::string& record_status = "ok",
                   const std::function<void(CellOutcome&)>& change = {}) {
  CellOutcome outcome;
  outcome.end = end;
  outcome.code = code;
  if (change) change(outcome);
  PassRecord record;
  record.status = record_status;
  judge_outcome(outcome, has_result, {}, record);
  return record.status + "/" + record.reason;
}

TEST(Attempt, HandshakeRules) {
  EXPECT_EQ(judged(End::exited, 0, true), "ok/");
  EXPECT_EQ(judged(End::exited, 0, true, "oom"), "oom/");
  EXPECT_EQ(judged(End::exited, 0, false), "error/no_result");
  EXPECT_EQ(judged(End::exited, 1, true), "error/exit_code");
  EXPECT_EQ(judged(End::exited, 1, true, "oom"), "oom/");
  EXPECT_EQ(judged(End::exited, 1, false), "error/exit_code");
  EXPECT_EQ(judged(End::exited, kCellSkipped, true, "skipped"), "skipped/");
  EXPECT_EQ(judged(End::exited, kCellSkipped, true, "ok"), "error/exit_code");
  EXPECT_EQ(judged(End::exited, kCellSkipped, false), "error/exit_code");
  EXPECT_EQ(judged(End::signalled, SIGSEGV, false), "error/signal");
  EXPECT_EQ(judged(End::signalled, SIGSEGV, true), "error/signal");
  EXPECT_EQ(judged(End::start_failed, 0, false), "error/start_failed");
  EXPECT_EQ(judged(End::lost, 0, false), "error/lost");
  EXPECT_EQ(judged(End::lost, 0, true), "error/lost");
  EXPECT_EQ(
      judged(End::signalled, SIGKILL, false, "ok", [](CellOutcome& o) { o.oom_killed = true; }),
      "oom/killed");
  EXPECT_EQ(
      judged(End::signalled, SIGTERM, false, "ok", [](CellOutcome& o) { o.deadline = "step"; }),
      "error/timeout");
  EXPECT_EQ(judged(End::signalled, SIGKILL, false, "ok", [](CellOutcome& o) { o.stopped = true; }),
            "error/drained");
  // Runtimes that end a process for want of memory without a handler.
  const auto said = [](const char* text) { return [text](CellOutcome& o) { o.log_tail = text; }; };
  EXPECT_EQ(judged(End::signalled, SIGABRT, false, "ok",
                   said("terminate called after throwing an instance of 'std::bad_alloc'\n")),
            "oom/");
  EXPECT_EQ(judged(End::exited, 1, false, "ok", said("Traceback:\n  x = y\nMemoryError\n")),
            "oom/");
  EXPECT_EQ(
      judged(End::signalled, SIGABRT, false, "ok", said("memory allocation of 8 bytes failed")),
      "oom/");
  EXPECT_EQ(judged(End::signalled, SIGABRT, false, "ok", said("an assertion failed")),
            "error/signal");
  EXPECT_EQ(judged(End::signalled, SIGSEGV, false, "ok", said("\nMemoryError")), "error/signal");
  EXPECT_EQ(judged(End::exited, 0, true, "ok", said("a warning: \nMemoryError was caught")), "ok/");
  // It was asked to stop but was just done.
  EXPECT_EQ(judged(End::exited, 0, true, "ok", [](CellOutcome& o) { o.stopped = true; }), "ok/");
}

TEST(Attempt, NamesOfGpus) {
  EXPECT_TRUE(is_same_gpu("RTX 3090", "NVIDIA GeForce RTX 3090"));
  EXPECT_TRUE(is_same_gpu("NVIDIA H200", "nvidia-h200"));
  EXPECT_FALSE(is_same_gpu("RTX 3090", "NVIDIA GeForce RTX 5090"));
  EXPECT_FALSE(is_same_gpu("RTX 3090", ""));
  EXPECT_TRUE(is_same_gpu("rtx3090", "NVIDIA GeForce RTX 3090"));
  EXPECT_TRUE(is_same_gpu("NVIDIA A100 80GB", "NVIDIA A100-SXM4-80GB"));
  EXPECT_FALSE(is_same_gpu("NVIDIA A100 80GB", "NVIDIA A100-PCIE-40GB"));
  EXPECT_FALSE(is_same_gpu("NVIDIA A10", "NVIDIA A100-SXM4-80GB"));
  EXPECT_FALSE(is_same_gpu("L4", "NVIDIA L40S"));
  EXPECT_FALSE(is_same_gpu("H200", "NVIDIA GH200 480GB"));
  EXPECT_FALSE(is_same_gpu("RTX 3090", "NVIDIA GeForce RTX 3090 Ti"));
  EXPECT_TRUE(is_same_gpu("日本", "日本"));
}

TEST(Hub, FindsTheSnapshotOfARevision) {
  std::string pattern = (fs::temp_directory_path() / "poros-hub.XXXXXX").string();
  const fs::path home = ::mkdtemp(pattern.data());
  const fs::path repository = home / "hub" / "models--org--name";
  fs::create_directories(repository / "refs" / "refs" / "pr");
  fs::create_directories(repository / "snapshots" / "abc123");
  std::ofstream(repository / "refs" / "main") << "abc123\n";
  std::ofstream(repository / "refs" / "refs" / "pr" / "1") << "abc123";
  std::ofstream(repository / "snapshots" / "abc123" / "config.json") << "{}";
  ::setenv("HF_HOME", home.c_str(), 1);
  ::unsetenv("HF_HUB_CACHE");
  for (const char* revision : {"main", "abc123", "refs/pr/1"}) {
    EXPECT_EQ(hub_snapshot("org/name", revision), repository / "snapshots" / "abc123") << revision;
  }
  for (const char* revision : {"other", "../snapshots/abc123", "/etc/passwd", ".."}) {
    EXPECT_THROW(static_cast<void>(hub_snapshot("org/name", revision)), Error) << revision;
  }
  EXPECT_THROW(static_cast<void>(hub_snapshot("org/missing", "main")), Error);
  fs::remove_all(home);
}

TEST(Live, DurationsForPeople) {
  EXPECT_EQ(duration_text(0.04), "0.0 s");
  EXPECT_EQ(duration_text(9.9), "9.9 s");
  EXPECT_EQ(duration_text(59.4), "59 s");
  EXPECT_EQ(duration_text(200), "3 min 20 s");
  EXPECT_EQ(duration_text(7500), "2 h 5 min");
}

TEST(Live, ATerminalShowsOneLineAndAFilePlainOnes) {
  for (const bool terminal : {true, false}) {
    std::FILE* out = std::tmpfile();
    {
      LiveView live({}, out, terminal);
      live.set_passes(4, 4);
      live.begin({"k", "poros", "kjv", "nf4", "timed", 0, 2, 1, 25});
      live.event({"train", 5, 25, 4.25, 0.5, 812.0});
      ::usleep(250'000);
      live.tick();
      live.set_passes(4, 3);
      live.end("poros kjv nf4 pass 1/2: ok", 12, true);
      EXPECT_DOUBLE_EQ(live.eta_s().value_or(0), 36);
    }
    std::string text(static_cast<std::size_t>(std::ftell(out)), '\0');
    std::rewind(out);
    ASSERT_EQ(std::fread(text.data(), 1, text.size(), out), text.size());
    std::fclose(out);
    const std::string line = "\rporos kjv nf4 pass 1/2 | step 5/25 | loss 4.250 | 0.5 s/step";
    EXPECT_EQ(text.find(line) != std::string::npos, terminal) << text;
    EXPECT_EQ(text.find('\x1b') != std::string::npos, terminal);
    EXPECT_NE(text.find("[1/4] poros kjv nf4 pass 1/2: ok\n"), std::string::npos) << text;
  }
}

TEST(Parity, RecordTellsMeasuredFromUnmeasured) {
  PlannedCell a, b;
  a.spec.method = "poros";
  b.spec.method = "resident";
  a.key = "ka";
  b.key = "kb";
  ParityEvidence evidence;
  evidence.a = &a;
  evidence.b = &b;
  evidence.failure = "poros: timeout";
  const Json failed = parity_record({}, evidence);
  EXPECT_EQ(failed.at("status"), "error");
  EXPECT_TRUE(failed.at("bitwise_exact").is_null());
  EXPECT_TRUE(failed.at("parity_loss_max_diff").is_null());
  EXPECT_NE(parity_line(failed).find("not measured: poros: timeout"), std::string::npos);

  evidence.failure.clear();
  evidence.hashes =
      HashComparison{.equal = false, .steps = 2, .hashes = 9, .first = HashDifference{}};
  evidence.hashes->first->step = 3;
  evidence.hashes->first->kind = "gradient";
  evidence.dumps["loss"].max_abs = 0;
  evidence.dumps["exp_avg"].max_abs = 2e-9;
  evidence.dumps["exp_avg_sq"].max_abs = 1e-9;
  evidence.dumps["weight"].max_abs = INFINITY;
  const Json differs = parity_record({}, evidence);
  EXPECT_EQ(differs.at("bitwise_exact"), false);
  EXPECT_EQ(differs.at("parity_loss_max_diff"), 0.0);
  EXPECT_EQ(differs.at("parity_moment_max_diff"), 2e-9);
  EXPECT_TRUE(differs.at("parity_weight_max_diff").is_null());  // not a number
  EXPECT_TRUE(differs.at("parity_gradient_max_diff").is_null());
  EXPECT_EQ(differs.at("first_difference_step"), 3);
  EXPECT_NO_THROW(static_cast<void>(dump_json(differs)));
}

TEST(Summary, ExitCodes) {
  CampaignResult result;
  result.artifacts.resize(3);
  result.artifacts[0].status = "oom";
  result.artifacts[1].status = "skipped";
  EXPECT_EQ(exit_code_of(result), 0);
  result.parity = {Json{{"bitwise_exact", true}}};
  EXPECT_EQ(exit_code_of(result), 0);
  for (const Json& exact : {Json(false), Json(nullptr)}) {
    result.parity = {Json{{"bitwise_exact", exact}}};
    EXPECT_EQ(exit_code_of(result), 1);
  }
  result.parity.clear();
  result.artifacts[2].status = "error";
  EXPECT_EQ(exit_code_of(result), 1);
  result.stopped = true;
  EXPECT_EQ(exit_code_of(result), 75);
}

TEST(Summary, ColumnsAreAligned) {
  EXPECT_EQ(aligned({{"a", "b", "c"}, {"long", "x", "10"}, {"\u00fc", "y", "5"}}),
            "a     b   c\nlong  x  10\n\u00fc     y   5\n");
}

}  // namespace
}  // namespace poros
