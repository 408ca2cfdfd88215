// SPDX-License-Identifier: Apache-2.0
// Stopping and killing the driver, and two drivers at once.
#include <fstream>
#include <iterator>
#include <random>

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "base/files.hpp"
#include "campaign/campaign.hpp"
#include "driver_fixture.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

const Json kSlow{{"poros", {{"step_s", 0.02}}}, {"resident", {{"step_s", 0.02}}}};

TEST_F(DriverTest, SignalsEndTheRunInOrderAndTheSameCommandGoesOn) {
  set_cells(kSlow);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) {
    const std::size_t before = calls().size();
    const pid_t driver = start();
    ASSERT_TRUE(within(10, [&] { return calls().size() > before; }));
    ::usleep(100'000);
    ::kill(driver, number);
    EXPECT_EQ(wait_for(driver), 75);
    EXPECT_EQ(survivors(), 0);
    const Receipt last = receipts("attempt").back();
    EXPECT_EQ(last.fields.at("status"), "error");
    EXPECT_EQ(last.fields.at("reason"), "drained");
    EXPECT_TRUE(receipts("cell").empty());
  }
  const std::string log = text_of(root_ / "driver.log");
  EXPECT_NE(log.find("stopped by SIGINT: 0 of 4 passes are done; to go on:"), std::string::npos)
      << log;
  EXPECT_NE(log.find("__drive " + spec_.string()), std::string::npos);
  EXPECT_EQ(drive().exit_code, 0);
  expect_whole(2, 2);
  EXPECT_EQ(artifact("poros").passes.at(0).at("attempt"), 4);  // three were drained
}

TEST_F(DriverTest, ASecondDriverIsRefusedAndSaysWhoIsAtWork) {
  set_cells({{"poros", {{"mode", "hang"}}}});
  const pid_t first = start();
  ASSERT_TRUE(within(10, [&] { return !calls().empty(); }));
  const std::string journal = read_file(dir_ / "results.jsonl");
  const ProcessResult second = drive();
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_NE(second.err.find("pid " + std::to_string(first)), std::string::npos) << second.err;
  EXPECT_EQ(drive({"--fresh"}).exit_code, 2);
  EXPECT_EQ(read_file(dir_ / "results.jsonl"), journal);

  ASSERT_TRUE(within(5, [&] { return fs::exists(dir_ / "live" / "0.json"); }));
  const Json status = campaign_status(dir_);
  EXPECT_EQ(status.at("driver").at("state"), "running");
  EXPECT_EQ(status.at("driver").at("pid"), first);
  EXPECT_EQ(status.at("counts").at("running"), 1);
  EXPECT_EQ(status.at("running").at(0).at("method"), "poros");

  ::kill(first, SIGKILL);
  EXPECT_EQ(wait_for(first), 128 + SIGKILL);
  EXPECT_TRUE(within(5, [&] { return survivors() == 0; }));
  EXPECT_EQ(campaign_status(dir_).at("driver").at("state"), "killed");
  set_cells(Json::object());
  const ProcessResult after = drive();  // a dead holder is no holder
  EXPECT_EQ(after.exit_code, 0) << after.err;
  expect_whole(2, 2);
}

TEST_F(DriverTest, KillingTheDriverAtAnyMomentLosesAtMostThePassInFlight) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  write_spec("[poros, resident]", 4);
  set_cells({{"poros", {{"step_s", 0.003}}}, {"resident", {{"step_s", 0.003}}}});
  std::vector<std::string> acknowledged;
  int kills = 0;
  for (int round = 0; round < 40; ++round) {
    const pid_t driver = start();
    ::usleep(static_cast<useconds_t>(random() % 400'000));
    ::kill(driver, SIGKILL);
    const int code = wait_for(driver);
    EXPECT_TRUE(within(5, [&] { return survivors() == 0; }));
    // What was acknowledged before is still there, byte for byte.
    std::vector<std::string> now;
    if (fs::exists(dir_ / "results.jsonl")) {
      for (const Receipt& receipt : receipts()) now.push_back(to_line(receipt));
    }
    ASSERT_GE(now.size(), acknowledged.size());
    for (std::size_t i = 0; i < acknowledged.size(); ++i) EXPECT_EQ(now[i], acknowledged[i]);
    acknowledged = now;
    if (code == 0) break;
    ++kills;
  }
  const ProcessResult last = drive();
  EXPECT_EQ(last.exit_code, 0) << last.out << last.err;
  EXPECT_GE(kills, 2);
  expect_whole(2, 4);
  EXPECT_EQ(parity().at("bitwise_exact"), true);
  forget_calls();
  EXPECT_EQ(drive().exit_code, 0);
  EXPECT_TRUE(calls().empty());
}

}  // namespace
}  // namespace poros::testing
