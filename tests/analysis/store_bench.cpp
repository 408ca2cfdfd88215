// SPDX-License-Identifier: Apache-2.0
// store_bench: how long journal, store and report take at campaign scale. Prints a line a measure
// and fails where a size is over its bound or content is lost; times are for reading, not for
// tests.
#include <cstdio>

#include <fmt/format.h>
#include <sys/resource.h>

#include "analysis/report.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "campaign_fixture.hpp"
#include "receipts/hdf5_store.hpp"
#include "receipts/journal.hpp"
#include "temp_folder.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

class Stopwatch {
 public:
  explicit Stopwatch(std::string what) : what_(std::move(what)), start_(monotonic_s()) {}
  ~Stopwatch() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    fmt::print("{:58} {:8.2f} s   peak RSS so far {:6.0f} MiB\n", what_, monotonic_s() - start_,
               static_cast<double>(usage.ru_maxrss) / 1024);
    std::fflush(stdout);
  }

 private:
  std::string what_;
  double start_;
};

testing::FixtureOptions cells(int models, int passes, int steps) {
  testing::FixtureOptions options;
  options.models.clear();
  for (int model = 1; model <= models; ++model) {
    options.models.push_back(fmt::format("synthetic/model{:04}-{}b", model, 1 + model % 72));
  }
  options.hardware = {"NVIDIA A100-SXM4-80GB"};
  options.passes = passes;
  options.steps = steps;
  options.incidents = false;
  return options;
}

void need(bool condition, const char* what) {
  if (!condition) fail(Fault::run, "{}", what);
}

void report_of_2000_cells() {
  const testing::TempFolder folder;
  testing::write_campaign(folder.path(), cells(400, 3, 25));
  {
    const Stopwatch watch("report of 2,000 cells, 3 passes of 25 steps");
    write_report(folder.path(), folder.path(), true, true);
  }
  const auto bytes = fs::file_size(folder / "report.html");
  fmt::print("{:58} {:8.2f} MB\n", "  its size", static_cast<double>(bytes) * 1e-6);
  need(bytes <= 5'000'000, "the report is larger than 5 MB");
}

void gather_of_10000_cells() {
  const testing::TempFolder folder;
  {
    const Stopwatch watch("making 10,000 cells (not the product's work)");
    testing::write_campaign(folder.path(), cells(2000, 1, 200));
  }
  {
    const Stopwatch watch("gather of 10,000 cells with 200-step series");
    need(gather(folder.path()).cells.size() == 10'000, "cells are missing");
  }
  fmt::print("{:58} {:8.2f} MB\n", "  size of campaign.h5",
             static_cast<double>(fs::file_size(folder / kStoreFile)) * 1e-6);
  const Stopwatch watch("opening its journal (22,000 receipts) for writing");
  auto journal = JournalWriter::open(folder / kJournalName);
  need(journal.receipts().size() == 22'000, "receipts are missing");
}

}  // namespace
}  // namespace poros

int main() {
  try {
    poros::report_of_2000_cells();
    poros::gather_of_10000_cells();
  } catch (const poros::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return poros::kFailed;
  }
}
