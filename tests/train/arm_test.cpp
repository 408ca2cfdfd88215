// SPDX-License-Identifier: Apache-2.0
// The parts of poros-cell that stand between the trainer and a record.
#include <cmath>
#include <limits>
#include <new>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "train/arm/evaluate.hpp"
#include "train/arm/failure.hpp"
#include "train/arm/host.hpp"
#include "train/arm/record.hpp"

namespace poros {
namespace {

template <typename Thrown>
Failure failure_of(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (...) {
    return describe_failure("the plan asks for 5.0 MiB");
  }
}

TEST(Failure, RefusedMemoryIsOomAndSaysWhatWasAsked) {
  for (const Failure& failure :
       {failure_of(std::bad_alloc()), failure_of(OutOfMemory("no host memory for the arena")),
        failure_of(c10::OutOfMemoryError({"f", "f.cpp", 1}, "CUDA out of memory")),
        failure_of(c10::Error({"f", "f.cpp", 1},
                              "DefaultCPUAllocator: can't allocate memory: you tried to allocate "
                              "1000 bytes. Error code 12"))}) {
    EXPECT_EQ(failure.status, "oom");
    EXPECT_NE(failure.message.find("asks for 5.0 MiB"), std::string::npos) << failure.message;
  }
}

TEST(Failure, EverythingElseIsAnErrorWithItsReason) {
  EXPECT_EQ(failure_of(Error(Fault::input, "x")).reason, "bad_input");
  EXPECT_EQ(failure_of(Error(Fault::io, "x")).reason, "io");
  EXPECT_EQ(failure_of(Error(Fault::environment, "x")).reason, "environment");
  EXPECT_EQ(failure_of(Error(Fault::run, "x")).reason, "failed");
  EXPECT_EQ(failure_of(c10::Error({"f", "f.cpp", 1}, "shape mismatch")).status, "error");
  EXPECT_EQ(failure_of(std::runtime_error("boom")).message, "boom");
  EXPECT_EQ(failure_of(7).status, "error");
  const Failure skipped = failure_of(Skipped("no_cuda", "none here"));
  EXPECT_EQ(skipped.status, "skipped");
  EXPECT_EQ(skipped.reason, "no_cuda");
}

TEST(Record, MedianLeavesOutTheWarmUp) {
  EXPECT_EQ(median_after({9, 9, 1, 3, 2}, 2), 2.0);
  EXPECT_EQ(median_after({9, 1, 4, 3, 2}, 1), 2.5);
  EXPECT_EQ(median_after({9, 9}, 2), std::nullopt);
  EXPECT_EQ(median_after({}, 0), std::nullopt);
}

TEST(Host, TellsMachineAndAge) {
  EXPECT_FALSE(cpu_model_name().empty());
  EXPECT_GT(host_memory_mb().value_or(0), 100.0);
  if (const auto age = process_age_s()) {
    EXPECT_LT(*age, 600.0);
  }
}

Json rows(const char* text) {
  return parse_json(text, "tokens.json");
}

TEST(EvaluationTokens, RowsBecomeDocumentsPaddedToTheLongest) {
  const TokenFile tokens =
      tokens_from_json(rows(R"({"input_ids": [[5, 6, 7], [8, 9]]})"), 10, "tokens.json");
  EXPECT_EQ(tokens.rows, 2);
  EXPECT_EQ(tokens.seq_len, 3);
  EXPECT_EQ(tokens.ids, (std::vector<std::uint32_t>{5, 6, 7, 8, 9, 0}));
  constexpr std::uint8_t S = TokenFile::kSupervised, D = TokenFile::kDocumentStart,
                         P = TokenFile::kPadding;
  EXPECT_EQ(tokens.flags, (std::vector<std::uint8_t>{D, S, S, D, S, P}));
}

TEST(EvaluationTokens, RefusesWhatIsNoListOfIds) {
  for (const char* bad :
       {R"({})", R"([])", R"({"input_ids": []})", R"({"input_ids": 3})", R"({"input_ids": [[1]]})",
        R"({"input_ids": [[1, "2"]]})", R"({"input_ids": [[1, 2.5]]})",
        R"({"input_ids": [[1, -2]]})", R"({"input_ids": [[1, 10]]})",
        R"({"input_ids": [[1, 2], 3]})", R"({"input_ids": [[1, 18446744073709551616]]})"}) {
    EXPECT_THROW(static_cast<void>(tokens_from_json(rows(bad), 10, "tokens.json")), Error) << bad;
  }
}

}  // namespace
}  // namespace poros
