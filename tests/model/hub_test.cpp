// SPDX-License-Identifier: Apache-2.0
#include "model/hub.hpp"

#include <cstdlib>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

class Hub : public testing::Test {
 protected:
  Hub() {
    ::unsetenv("HF_HUB_CACHE");
    ::setenv("HF_HOME", home_.path().c_str(), 1);
    repository_ = home_.path() / "hub" / "models--Org--Model-1.5B";
    fs::create_directories(repository_ / "snapshots" / commit_);
    fs::create_directories(repository_ / "refs");
    write_file_durably(repository_ / "refs" / "main", commit_ + "\n");
  }
  test::TemporaryFolder home_;
  fs::path repository_;
  std::string commit_ = "0123456789abcdef0123456789abcdef01234567";
};

TEST_F(Hub, FindsARevisionByNameAndByCommit) {
  const fs::path expected = repository_ / "snapshots" / commit_;
  EXPECT_EQ(resolve_model("Org/Model-1.5B", "main", "/nowhere"), expected);
  EXPECT_EQ(resolve_model("Org/Model-1.5B", commit_, "/nowhere"), expected);
  ::setenv("HF_HUB_CACHE", (home_.path() / "hub").c_str(), 1);
  ::setenv("HF_HOME", "/nowhere", 1);
  EXPECT_EQ(resolve_model("Org/Model-1.5B", "main", "/nowhere"), expected);
}

TEST_F(Hub, SaysWhereItLooked) {
  try {
    (void)resolve_model("Org/Other", "main", "/nowhere");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::input);
    EXPECT_NE(std::string(error.what()).find("models--Org--Other"), std::string::npos);
  }
  EXPECT_THROW((void)resolve_model("Org/Model-1.5B", "v2", "/"), Error);
}

TEST_F(Hub, NoNameLeavesTheCache) {
  write_file_durably(repository_ / "refs" / "bad", "../../../../etc");
  for (const char* revision : {"../main", "..", "", "/etc", "a//b", "bad", "x\ny"}) {
    EXPECT_THROW((void)resolve_model("Org/Model-1.5B", revision, "/"), Error) << revision;
  }
  for (const char* id : {"../x", "/abs", "a/b/c", "./m", "..", ".", "a b", "~/m", "a/../b"}) {
    EXPECT_FALSE(is_hub_id(id)) << id;
  }
  EXPECT_TRUE(is_hub_id("gpt2"));
}

TEST_F(Hub, PathsAreTakenFromTheSpecsFolder) {
  fs::create_directories(home_.path() / "models" / "m");
  EXPECT_EQ(resolve_model("./models/m", "main", home_.path()), home_.path() / "models" / "m");
  EXPECT_EQ(resolve_model("../models/m", "main", home_.path() / "specs"),
            home_.path() / "models" / "m");
  EXPECT_THROW((void)resolve_model("./models/none", "main", home_.path()), Error);
}

}  // namespace
}  // namespace poros
