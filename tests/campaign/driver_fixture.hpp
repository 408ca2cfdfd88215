// SPDX-License-Identifier: Apache-2.0
// A campaign of fake cells in a temporary folder, driven by this very test program as a process of
// its own: `driver_test __drive SPEC DIR [--retry] [--fresh] [--passes N]`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/types.h>

#include "base/json.hpp"
#include "base/subprocess.hpp"
#include "receipts/receipt.hpp"
#include "receipts/run_artifact.hpp"

namespace poros::testing {

class DriverTest : public ::testing::Test {
 protected:
  static void TearDownTestSuite();
  void SetUp() override;
  void TearDown() override;

  /// Writes the spec; `changes` replaces whole top-level keys ("methods", "training", ...).
  void write_spec(const std::string& methods = "[poros, resident]", int passes = 2, int steps = 20,
                  const std::string& more = "");
  /// {method: {settings}}, see fake_cell.hpp.
  void set_cells(const Json& settings);

  /// Runs the driver to its end.
  ProcessResult drive(const std::vector<std::string>& flags = {});
  /// Starts it; its output goes to driver.log.
  pid_t start(const std::vector<std::string>& flags = {});
  /// Waits for a child; its exit code, or 128 + signal.
  static int wait_for(pid_t child);

  [[nodiscard]] std::vector<std::string> calls() const;  // of the fake cell, in order
  void forget_calls() const;
  [[nodiscard]] std::vector<Receipt> receipts() const;
  [[nodiscard]] std::vector<Receipt> receipts(const std::string& kind) const;
  [[nodiscard]] RunArtifact artifact(const std::string& method) const;
  [[nodiscard]] Json parity() const;  // the last parity record
  /// Every record is there, unaltered, and each pass has exactly one attempt that counts.
  void expect_whole(std::size_t cells, std::size_t passes) const;
  /// Processes of this test that are left, this one apart.
  [[nodiscard]] int survivors() const;

  std::filesystem::path root_, dir_, spec_;
};

template <typename Condition>
bool within(double seconds, const Condition& condition);

/// main()'s part of `__drive`.
int drive_main(int argc, char** argv);

}  // namespace poros::testing

#include <chrono>
#include <thread>

template <typename Condition>
bool poros::testing::within(double seconds, const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}
