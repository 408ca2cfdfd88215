// SPDX-License-Identifier: Apache-2.0
// Which group goes to which rank, and when its passes may run.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "base/files.hpp"
#include "campaign/coordinator.hpp"
#include "campaign/selection.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {
namespace fs = std::filesystem;

class Scheduling : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "poros-scheduling.XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    std::ofstream(root_ / "spec.yaml") << R"(spec_id: scheduling
hardware:
  - gpu_name: A100
  - gpu_name: B300
models:
  - {model_id: org/small, param_count_b: 1}
  - {model_id: org/large, param_count_b: 70}
methods: [poros, resident]
training: {n_passes: 2, steps: 10, warmup_steps: 1}
)";
    plan_.emplace(make_plan(read_spec(root_ / "spec.yaml")));
    ASSERT_EQ(plan_->groups.size(), 4U);
    journal_.emplace(JournalWriter::open(root_ / kJournalName));
  }
  void TearDown() override {
    journal_.reset();
    fs::remove_all(root_);
  }

  Coordinator::Start start() const {
    Coordinator::Start start;
    start.passes_left = 16;
    start.groups.resize(plan_->groups.size());
    return start;
  }
  static Json hello(Coordinator& coordinator, int rank, const std::string& type,
                    const std::string& uuid, const std::string& host = "n1") {
    Placement placement;
    placement.host = host;
    placement.gpu_type = type;
    placement.gpu_uuid = uuid;
    placement.local_size = 2;
    return coordinator.handle(rank, {{"ask", "hello"}, {"placement", to_json(placement)}});
  }
  /// Model and GPU type of the group that the rank gets, else "wait" or "end".
  std::string next(Coordinator& coordinator, int rank, bool returned = false) const {
    const Json reply = coordinator.handle(rank, {{"ask", "next"}, {"returned", returned}});
    if (!reply.contains("group")) return reply.contains("wait") ? "wait" : "end";
    const ComparisonGroup& group = plan_->groups.at(reply.at("group").get<std::size_t>());
    const PlannedCell& cell = plan_->cells[group.cells.front()];
    return cell.spec.model.model_id + " " + cell.spec.hardware.gpu_name;
  }
  Json fault(Coordinator& coordinator, int rank, const std::string& uuid,
             const std::string& reason) const {
    return coordinator.handle(rank, {{"ask", "receipt"},
                                     {"receipt",
                                      {{"kind", "attempt"},
                                       {"key", plan_->cells.front().key},
                                       {"fields",
                                        {{"purpose", "timed"},
                                         {"pass", 0},
                                         {"attempt", 1},
                                         {"status", reason.empty() ? "ok" : "error"},
                                         {"reason", reason},
                                         {"gpu_uuid", uuid}}},
                                       {"artifact_path", ""},
                                       {"artifact_sha256", ""}}}});
  }

  fs::path root_;
  std::optional<CampaignPlan> plan_;
  std::optional<JournalWriter> journal_;
};

TEST_F(Scheduling, TheLongestGroupOfTheRanksTypeComesFirst) {
  Coordinator coordinator(*plan_, *journal_, start(), 2);
  hello(coordinator, 0, "NVIDIA A100-SXM4-80GB", "GPU-a");
  hello(coordinator, 1, "NVIDIA B300", "GPU-b");
  EXPECT_EQ(next(coordinator, 0), "org/large A100");
  EXPECT_EQ(next(coordinator, 1), "org/large B300");
  EXPECT_EQ(next(coordinator, 0), "org/small A100");
  EXPECT_EQ(next(coordinator, 0), "end");  // what is left is for the other type
  EXPECT_EQ(next(coordinator, 1), "org/small B300");
  EXPECT_EQ(next(coordinator, 1), "end");
  EXPECT_TRUE(coordinator.unmatched().empty());
}

TEST_F(Scheduling, AGroupGoesOnOnTheGpuThatHasBegunIt) {
  Coordinator::Start begun = start();
  for (std::size_t i = 0; i < plan_->groups.size(); ++i) {
    const CellSpec& cell = plan_->cells[plan_->groups[i].cells.front()].spec;
    const bool large_a100 = cell.model.model_id == "org/large" && cell.hardware.gpu_name == "A100";
    if (large_a100) begun.groups[i].begun_on = "GPU-a2";
  }
  Coordinator coordinator(*plan_, *journal_, begun, 2);
  hello(coordinator, 0, "A100", "GPU-a1");
  EXPECT_EQ(next(coordinator, 0), "org/small A100");  // the other rank may have that GPU
  hello(coordinator, 1, "A100", "GPU-a2");
  EXPECT_EQ(next(coordinator, 0), "wait");
  EXPECT_EQ(next(coordinator, 1), "org/large A100");

  Coordinator elsewhere(*plan_, *journal_, begun, 1);
  hello(elsewhere, 0, "A100", "GPU-a1");
  EXPECT_EQ(next(elsewhere, 0), "org/large A100");  // nobody has the GPU: it begins again
}

TEST_F(Scheduling, AGpuThatFailsRepeatedlyIsSetAsideAndItsGroupGoesElsewhere) {
  Coordinator coordinator(*plan_, *journal_, start(), 2);
  hello(coordinator, 0, "A100", "GPU-a1");
  hello(coordinator, 1, "A100", "GPU-a2");
  EXPECT_EQ(next(coordinator, 0), "org/large A100");
  EXPECT_EQ(next(coordinator, 1), "org/small A100");
  EXPECT_EQ(fault(coordinator, 0, "GPU-a1", "lost").at("set_aside"), false);
  EXPECT_EQ(fault(coordinator, 0, "GPU-a1", "exit_code").at("set_aside"), false);  // the cell's
  EXPECT_EQ(fault(coordinator, 0, "GPU-a1", "lost").at("set_aside"), false);
  EXPECT_EQ(fault(coordinator, 1, "GPU-a2", "lost").at("set_aside"), false);
  EXPECT_EQ(fault(coordinator, 0, "GPU-a1", "start_failed").at("set_aside"), true);
  EXPECT_EQ(next(coordinator, 0, true), "end");
  EXPECT_EQ(next(coordinator, 1), "org/large A100");

  // What the receipts tell, the next run knows, unless it is asked to try again.
  Coordinator after(*plan_, *journal_, start(), 1);
  EXPECT_EQ(hello(after, 0, "A100", "GPU-a1").at("set_aside"), true);
  EXPECT_EQ(next(after, 0), "end");
  EXPECT_EQ(after.unmatched(), (std::vector<std::string>{"A100", "B300"}));
  Coordinator::Start again = start();
  again.forget_faults = true;
  Coordinator retried(*plan_, *journal_, again, 1);
  EXPECT_EQ(hello(retried, 0, "A100", "GPU-a1").at("set_aside"), false);
}

TEST_F(Scheduling, APassThatEndsWellClearsAGpu) {
  Coordinator coordinator(*plan_, *journal_, start(), 1);
  hello(coordinator, 0, "A100", "GPU-a1");
  fault(coordinator, 0, "GPU-a1", "lost");
  fault(coordinator, 0, "GPU-a1", "lost");
  fault(coordinator, 0, "GPU-a1", "");
  EXPECT_EQ(fault(coordinator, 0, "GPU-a1", "lost").at("set_aside"), false);
}

TEST_F(Scheduling, FailuresBeyondTheLimitEndTheRun) {
  Coordinator::Start limited = start();
  limited.max_failures = 2;
  Coordinator coordinator(*plan_, *journal_, limited, 1);
  hello(coordinator, 0, "A100", "GPU-a1");
  fault(coordinator, 0, "GPU-a1", "exit_code");
  fault(coordinator, 0, "GPU-a1", "drained");
  EXPECT_FALSE(coordinator.stopping());
  fault(coordinator, 0, "GPU-a1", "timeout");
  EXPECT_TRUE(coordinator.stopping());
  EXPECT_EQ(coordinator.failed_cells(), 2);
  EXPECT_EQ(next(coordinator, 0), "end");
}

TEST(AdmissionTest, MemoryOfAHostIsShared) {
  Admission admission;
  EXPECT_TRUE(admission.admit(0, {"n1", 100, 60, false}));
  EXPECT_FALSE(admission.admit(1, {"n1", 100, 60, false}));
  EXPECT_TRUE(admission.admit(1, {"n2", 100, 60, false}));
  EXPECT_TRUE(admission.admit(2, {"n1", 100, 40, false}));
  admission.release(0);
  EXPECT_TRUE(admission.admit(3, {"n1", 100, 60, false}));
  Admission alone;
  EXPECT_TRUE(alone.admit(0, {"n1", 100, 160, false}));  // nothing else to wait for
}

TEST(AdmissionTest, WhoWantsTheHostAloneGetsItsTurn) {
  Admission admission;
  EXPECT_TRUE(admission.admit(0, {"n1", 0, 0, false}));
  EXPECT_FALSE(admission.admit(1, {"n1", 0, 0, true}));
  EXPECT_FALSE(admission.admit(2, {"n1", 0, 0, false}));  // behind the one that waits
  admission.release(0);
  EXPECT_FALSE(admission.admit(2, {"n1", 0, 0, false}));
  EXPECT_TRUE(admission.admit(1, {"n1", 0, 0, true}));
  EXPECT_FALSE(admission.admit(2, {"n1", 0, 0, false}));
  admission.release(1);
  EXPECT_TRUE(admission.admit(2, {"n1", 0, 0, false}));
}

TEST_F(Scheduling, PartsOfAShardDivideEachTypeAmongThem) {
  std::vector<int> taken(plan_->cells.size(), 0);
  for (std::int64_t part = 0; part < 2; ++part) {
    const Selection selection(*plan_, {{}, {part, 2}});
    int groups = 0;
    for (const ComparisonGroup& group : plan_->groups) groups += selection.has_group(group);
    EXPECT_EQ(groups, 2);  // one of each type
    for (std::size_t i = 0; i < taken.size(); ++i) taken[i] += selection.has_cell(i) ? 1 : 0;
  }
  EXPECT_EQ(taken, std::vector<int>(plan_->cells.size(), 1));
}

}  // namespace
}  // namespace poros
