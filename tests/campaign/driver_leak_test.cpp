// SPDX-License-Identifier: Apache-2.0
// A thousand cells in one process: its descriptors and children stay as many as at the start.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/subprocess.hpp"
#include "cell/processes.hpp"
#include "made_campaign.hpp"
#include "other_program.hpp"
#include "receipts/journal.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

constexpr const char* kNotes = "POROS_LEAK_NOTES";

/// In the cell: notes how many descriptors and children the driver has at this moment.
void note_driver() {
  pid_t driver = 0;
  const std::vector<ProcessInfo> all = list_processes();
  for (const ProcessInfo& info : all) {
    if (info.pid == ::getppid()) driver = info.parent;  // the supervisor's parent
  }
  const auto children = std::count_if(all.begin(), all.end(), [&](const ProcessInfo& info) {
    return info.parent == driver;  // zombies are among them
  });
  std::error_code error;
  std::int64_t descriptors = 0;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", driver), error)) {
    static_cast<void>(entry);
    ++descriptors;
  }
  std::ofstream(std::getenv(kNotes), std::ios::app) << descriptors << " " << children << "\n";
}

std::int64_t median_of(std::vector<std::int64_t> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

TEST(DriverLeak, AThousandCellsLeaveNothingOpen) {
  const MadeCampaign made = make_campaign(1000, 8);
  ::setenv(kNotes, (made.root / "notes").c_str(), 1);
  const ProcessResult result =
      run_process({"/proc/self/exe", "__drive", made.spec().string(), made.dir().string()}, 240);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_journal(made.dir() / kJournalName).receipts.size(), 2000U);
  std::vector<std::int64_t> descriptors, children;
  std::ifstream notes(made.root / "notes");
  for (std::int64_t a = 0, b = 0; notes >> a >> b;) {
    descriptors.push_back(a);
    children.push_back(b);
  }
  fs::remove_all(made.root);
  ASSERT_EQ(descriptors.size(), 1000U);
  EXPECT_GT(descriptors.front(), 5);  // it was the driver that was looked at
  EXPECT_TRUE(std::all_of(children.begin(), children.end(), [](auto n) { return n == 1; }));
  // The child's ends of the four pipes and the live file may just be open for a moment.
  const std::vector<std::int64_t> first(descriptors.begin(), descriptors.begin() + 100);
  const std::vector<std::int64_t> last(descriptors.end() - 100, descriptors.end());
  EXPECT_EQ(median_of(first), median_of(last));
  EXPECT_LE(*std::max_element(descriptors.begin(), descriptors.end()), median_of(first) + 6);
}

}  // namespace
}  // namespace poros::testing

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "run") == 0) poros::testing::note_driver();
  if (const auto code = poros::testing::other_program(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
