// SPDX-License-Identifier: Apache-2.0
// What damage does to a campaign, as the person who types the command meets it.
//
// | damage                                  | exit | message                       | records      |
// |-----------------------------------------|------|-------------------------------|--------------|
// | journal of an ended run: cut, anywhere, | 2    | N records were acknowledged,  | file as it   |
// | or removed                              |      | K are there: the file was cut | was found    |
// | journal of a killed run: last record    | 0    | none; what the torn record    | all but the  |
// | cut, zeroed or scribbled to the end     |      | said is done again            | torn one     |
// | any journal: a byte flipped or zeroed,  | 2    | line and byte of the record   | file as it   |
// | a line missing, repeated or moved       |      |                               | was found    |
// | (but: the last line feed)               | 0    | none                          | all          |
// | n-th write, sync, rename or create that | 1    | file and error; run the same  | all that was |
// | fails: journal, lease, spec, inputs,    |      | command again                 | acknowledged |
// | records, requests, the log's creation   |      |                               |              |
// | the same: campaign.h5                   | 0    | the report could not be made  | all          |
// | the same: live/<rank>.json, what is     | 0    | none: nothing hangs on it     | all          |
// | written to a log                        |      |                               |              |
// | an old driver writes on after its       | 1    | another driver took this      | those of the |
// | campaign was taken over                 |      | campaign over: pid ...        | new driver   |
// | disk full, read-only folder             | see full_disk_test.cpp                              |
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "driver_fixture.hpp"
#include "other_program.hpp"
#include "receipts/journal.hpp"
#include "receipts/lease.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

class DriverDamage : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    write_spec("[poros, resident]", 1, 8, "parity: \"off\"\n");
  }
  [[nodiscard]] fs::path journal() const { return dir_ / kJournalName; }

  /// As if the last writer had been killed: its lease names a process that is gone.
  void make_lease_dead() const {
    const fs::path lease = dir_ / fmt::format("{}.lease.{}", kJournalName, lease_epoch());
    Json json = parse_json(read_file(lease), "lease");
    json["released"] = false;
    json["receipts"] = nullptr;
    json["pid_start"] = 1;
    write_file_durably(lease, dump_json(json) + "\n");
  }
  [[nodiscard]] std::int64_t lease_epoch() const { return view_lease(journal()).epoch; }

  /// The same command must refuse the journal, name the place, and leave it alone.
  void expect_refused(const std::string& text, const std::string& message) {
    write_file_durably(journal(), text);
    forget_calls();
    const ProcessResult result = drive();
    EXPECT_EQ(result.exit_code, kWrongInput) << result.out << result.err;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_TRUE(calls().empty());
    EXPECT_EQ(read_file(journal()), text);
  }
};

std::vector<std::size_t> line_ends(const std::string& text) {
  std::vector<std::size_t> ends;
  for (auto at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1)) {
    ends.push_back(at + 1);
  }
  return ends;
}

TEST_F(DriverDamage, AnEndedRunsJournalThatLostItsEndIsRefused) {
  ASSERT_EQ(drive().exit_code, 0);
  const std::string text = read_file(journal());
  const std::vector<std::size_t> ends = line_ends(text);
  ASSERT_EQ(ends.size(), 4U);  // two passes, two cells
  for (const std::size_t keep : {std::size_t{0}, std::size_t{100}, ends[0], ends[1] + 7, ends[2]}) {
    const auto kept =
        std::count_if(ends.begin(), ends.end(), [&](auto end) { return end <= keep; });
    expect_refused(text.substr(0, keep),
                   fmt::format("4 records were acknowledged when its last writer ended, {} are "
                               "there: the file was cut",
                               kept));
  }
  fs::remove(journal());
  const ProcessResult result = drive();
  EXPECT_EQ(result.exit_code, kWrongInput);
  EXPECT_NE(result.err.find("4 records were acknowledged"), std::string::npos) << result.err;
  write_file_durably(journal(), text);  // as the message asks: it is restored
  EXPECT_EQ(drive().exit_code, 0);
  EXPECT_EQ(read_file(journal()), text);
}

TEST_F(DriverDamage, AKilledRunsTornTailCostsOneRecord) {
  ASSERT_EQ(drive().exit_code, 0);
  const std::string text = read_file(journal());
  const std::vector<std::size_t> ends = line_ends(text);
  const std::string kept = text.substr(0, ends[1]), last = text.substr(ends[1], ends[2] - ends[1]);
  const std::string half = last.substr(0, last.size() / 2);
  for (const std::string& tail :
       {half, half + std::string(512, '\0'), half + "\xff\x01{\"", std::string(4096, '\0')}) {
    write_file_durably(journal(), kept + tail);
    make_lease_dead();
    forget_calls();
    const ProcessResult result = drive();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("a run that did not end in order"), std::string::npos) << result.out;
    EXPECT_EQ(read_file(journal()).substr(0, kept.size()), kept);
    EXPECT_TRUE(calls().empty());  // what was lost are a cell's records, not its passes
    expect_whole(2, 1);
  }
}

// The journal that a driver has left, damaged at each byte in each way. No process is started: what
// the command does with a refusal or a torn tail is above and in journal_damage_test.cpp.
TEST_F(DriverDamage, EveryByte) {
  ASSERT_EQ(drive().exit_code, 0);
  const std::string text = read_file(journal());
  const std::vector<std::size_t> ends = line_ends(text);
  const auto outcome = [](const std::string& damaged) -> std::string {
    try {
      return std::to_string(parse_journal(damaged, "results.jsonl").receipts.size()) + " kept";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), kWrongInput);
      return error.what();
    }
  };
  std::size_t line = 0;
  for (std::size_t k = 0; k < text.size(); ++k) {
    if (k == ends[line]) ++line;
    const std::size_t begin = line == 0 ? 0 : ends[line - 1];
    const std::string place = fmt::format("results.jsonl: line {} (byte {})", line + 1, begin);
    const bool last_end = k + 1 == text.size();
    // A record that lacks only its line feed is whole.
    const std::string whole_before = std::to_string(line + (k + 1 == ends[line])) + " kept";
    ASSERT_EQ(outcome(text.substr(0, k)), whole_before) << "cut at " << k;
    std::string zeroed = text.substr(0, k);
    zeroed.resize(text.size(), '\0');
    ASSERT_EQ(outcome(zeroed), whole_before) << "zeroed from " << k;
    for (const char other :
         {static_cast<char>(text[k] ^ 1), static_cast<char>(text[k] ^ 0x80), '\0'}) {
      std::string damaged = text;
      damaged[k] = other;
      const std::string found = outcome(damaged);
      if (last_end) {
        ASSERT_EQ(found, "4 kept");
      } else {
        ASSERT_EQ(found.substr(0, place.size()), place) << "byte " << k << " as " << int{other};
      }
    }
  }
  // The command says the same of a few of them.
  const auto damaged = [&](std::size_t at, char with) {
    std::string copy = text;
    copy[at] = with;
    return copy;
  };
  expect_refused(damaged(10, 'X'), "results.jsonl: line 1 (byte 0)");
  expect_refused(damaged(ends[1] + 50, '\0'),
                 fmt::format("results.jsonl: line 3 (byte {})", ends[1]));
  expect_refused(damaged(ends[0] - 1, ' '), "results.jsonl: line 1 (byte 0)");
  expect_refused(text.substr(0, ends[0]) + text.substr(ends[1]), "a line is missing, repeated");
  expect_refused(text + text.substr(ends[2]), "a line is missing, repeated or moved");
}

/// A kind of call, see faulty_calls.cpp.
class DriverFaultyCalls : public DriverDamage, public ::testing::WithParamInterface<const char*> {};

TEST_P(DriverFaultyCalls, NothingAcknowledgedIsLost) {
  const std::string kind = GetParam();
  const fs::path fired_file = root_ / "fired";
  write_spec("[resident]", 1, 8, "parity: \"off\"\n");
  int fired_count = 0;
  for (int n = 1;; ++n) {
    ASSERT_LT(n, 200);
    fs::remove_all(dir_);
    fs::remove(fired_file);
    const ProcessResult result =
        run_process({"/proc/self/exe", "__drive", spec_.string(), dir_.string()}, 60,
                    {{"LD_PRELOAD", POROS_FAULTY_CALLS},
                     {"POROS_FAULT", fmt::format("{} {} {}", kind, n, dir_.string())},
                     {"POROS_FAULT_FIRED", fired_file.string()}});
    if (!fs::exists(fired_file)) {
      EXPECT_EQ(result.exit_code, 0) << result.err;
      break;
    }
    ++fired_count;
    const std::string path = read_file(fired_file), said = result.out + result.err;
    SCOPED_TRACE(fmt::format("{} {}: {}", kind, n, path));
    const bool store = path.find("campaign.h5") != std::string::npos;
    const bool needless = path.find("/live/0.json") != std::string::npos ||
                          (kind == "write" && path.find("/logs/") != std::string::npos) ||
                          path.find("/.clock.") != std::string::npos;
    if (needless) {
      EXPECT_EQ(result.exit_code, 0) << said;
    } else if (store || result.exit_code == 0) {
      EXPECT_EQ(result.exit_code, 0) << said;
      EXPECT_NE(said.find("the report could not be made: "), std::string::npos) << said;
    } else {
      EXPECT_EQ(result.exit_code, kFailed) << said;
      EXPECT_NE(result.err.find("run the same command again"), std::string::npos) << said;
      EXPECT_NE(result.err.find(dir_.string()), std::string::npos) << said;
      const char* error = kind == "write" || kind == "create" ? "No space left" : "Input/output";
      EXPECT_NE(result.err.find(error), std::string::npos) << said;
    }
    // What the driver said is in the journal.
    const JournalContent before = read_journal(journal());
    const bool said_done = result.out.find("[1/1]") != std::string::npos;
    EXPECT_GE(before.receipts.size(), said_done ? 1U : 0U);
    std::vector<std::string> lines;
    for (const Receipt& receipt : before.receipts) lines.push_back(to_line(receipt));

    const ProcessResult again = drive();
    EXPECT_EQ(again.exit_code, 0) << again.out << again.err;
    expect_whole(1, 1);
    const std::vector<Receipt> after = receipts();
    ASSERT_GE(after.size(), lines.size());
    for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(to_line(after[i]), lines[i]);
    EXPECT_TRUE(fs::exists(dir_ / "campaign.h5"));
    for (const auto& entry : fs::directory_iterator(dir_)) {
      EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
    }
    if (HasFailure()) return;
  }
  EXPECT_GE(fired_count, kind == "rename" || kind == "create" ? 5 : 10);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DriverFaultyCalls,
                         ::testing::Values("write", "sync", "rename", "create"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_F(DriverDamage, AnOldDriverThatWakesUpAfterATakeoverStops) {
  write_spec("[poros, resident]", 2, 20, "parity: \"off\"\n");
  const Json slow{{"step_s", 0.05}};
  set_cells({{"poros", slow}, {"resident", slow}});
  const pid_t old_driver = start();
  ASSERT_TRUE(within(20, [&] { return receipts().size() == 1 && calls().size() == 2; }));
  ::kill(old_driver, SIGSTOP);
  // It sleeps on another host, for all that can be seen: no heartbeat for two minutes.
  const std::int64_t epoch = lease_epoch();
  const fs::path lease = dir_ / fmt::format("{}.lease.{}", kJournalName, epoch);
  Json json = parse_json(read_file(lease), "lease");
  json["host"] = "elsewhere";
  write_file_durably(lease, dump_json(json) + "\n");
  const timespec before{::time(nullptr) - 120, 0};
  const timespec times[2] = {before, before};
  ASSERT_EQ(::utimensat(AT_FDCWD, lease.c_str(), times, 0), 0);

  set_cells(Json::object());
  const ProcessResult result = drive();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_whole(2, 2);
  const std::string journal_text = read_file(journal());
  EXPECT_EQ(view_lease(journal()).epoch, epoch + 1);

  ::kill(old_driver, SIGCONT);
  EXPECT_EQ(wait_for(old_driver), kFailed);
  const std::string log = read_file(root_ / "driver.log");
  EXPECT_NE(log.find("another driver took this campaign over: pid"), std::string::npos) << log;
  EXPECT_EQ(read_file(journal()), journal_text);
  EXPECT_EQ(view_lease(journal()).epoch, epoch + 1);
  EXPECT_EQ(view_lease(journal()).state, LeaseState::released);
  EXPECT_EQ(read_journal(dir_ / fmt::format("results.{}.jsonl", epoch)).receipts.size(), 1U);
  expect_whole(2, 2);
}

}  // namespace
}  // namespace poros::testing

int main(int argc, char** argv) {
  if (const auto code = poros::testing::other_program(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
