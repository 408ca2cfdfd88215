// SPDX-License-Identifier: Apache-2.0
// The parts of a cell's driver side that need no process.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "cell/environment.hpp"
#include "cell/oom.hpp"
#include "cell/redact.hpp"
#include "cell/watchdog.hpp"

namespace {

using poros::CellEvent;
using poros::CellProgress;
using poros::EventReader;
using poros::Redactor;

TEST(Redactor, NamesOfSecrets) {
  for (const char* name : {"HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "db_password",
                           "GOOGLE_APPLICATION_CREDENTIALS", "Cookie", "SSH_AUTH_SOCK"}) {
    EXPECT_TRUE(poros::is_secret_name(name)) << name;
  }
  for (const char* name : {"PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}) {
    EXPECT_FALSE(poros::is_secret_name(name)) << name;
  }
}

TEST(Redactor, FindsAValueAsItIsUrlEncodedAndInBase64) {
  const Redactor redactor({{"HF_TOKEN", "s3cr/t+value"}, {"PATH", "/usr/bin"}, {"A_KEY", "short"}});
  EXPECT_EQ(redactor.redact("a s3cr/t+value b"), "a [redacted:HF_TOKEN] b");
  EXPECT_EQ(redactor.redact("s3cr%2Ft%2Bvalue"), "[redacted:HF_TOKEN]");
  EXPECT_EQ(redactor.redact("czNjci90K3ZhbHVl"), "[redacted:HF_TOKEN]");  // base64 by coreutils
  EXPECT_EQ(redactor.redact("/usr/bin short"), "/usr/bin short");
  const poros::Json json{{"x s3cr/t+value", {1, "s3cr/t+value"}}, {"n", nullptr}};
  EXPECT_EQ(redactor.redact_json(json),
            (poros::Json{{"x [redacted:HF_TOKEN]", {1, "[redacted:HF_TOKEN]"}}, {"n", nullptr}}));
}

TEST(Redactor, PasswordsOfUrlsInAnyVariable) {
  const Redactor redactor({{"HTTPS_PROXY", "http://me:pw-of-proxy@proxy:3128"},
                           {"MIRRORS", "https://a/x, ftp://u:second:pw@b/y https://no-colon@c/"},
                           {"PLAIN", "http://host:8080/path@1"}});
  EXPECT_EQ(redactor.redact("say pw-of-proxy and second:pw and no-colon and 8080/path"),
            "say [redacted:HTTPS_PROXY] and [redacted:MIRRORS] and no-colon and 8080/path");
}

TEST(Redactor, LongerSecretWinsWhereOneBeginsWithTheOther) {
  const Redactor redactor({{"A_TOKEN", "abcdef"}, {"B_TOKEN", "abcdefghi"}});
  EXPECT_EQ(redactor.redact("-abcdefghi-abcdef-"), "-[redacted:B_TOKEN]-[redacted:A_TOKEN]-");
}

TEST(Redactor, StreamGivesTheSameTextWhereverItIsCut) {
  const Redactor redactor({{"A_TOKEN", "abcabcabd"}, {"B_TOKEN", "abcabc"}});
  const std::string text = "xabcabcabcabdyabcabcabcabczabcab";
  const std::string whole = redactor.redact(text);
  EXPECT_EQ(whole.find("abcabc"), std::string::npos);
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      std::string pending, out;
      for (const std::string& part :
           {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        pending += part;
        out += redactor.take(pending, false);
      }
      out += redactor.take(pending, true);
      EXPECT_EQ(out, whole) << first << " " << second;
    }
  }
}

TEST(EventReader, ReadsEventsCutAnywhereAndCountsTheRest) {
  const std::string text =
      "{\"event\":\"phase\",\"phase\":\"load\"}\n"
      "{\"event\":\"step\",\"step\":3,\"steps\":25,\"loss\":2.5,\"s_per_step\":0.5}\n"
      "garbage\n"
      "{\"event\":\"phase\",\"phase\":\"nonsense\"}\n"
      "{\"event\":\"heartbeat\"}\n" +
      std::string(10'000, 'x') + "\n{\"event\":\"step\",\"step\":4,\"steps\":25,\"loss\":null}\n";
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, text.size()}) {
    EventReader reader;
    std::string kinds;
    for (std::size_t at = 0; at < text.size(); at += size) {
      reader.feed(
          std::string_view(text).substr(at, size), [&](CellEvent event, const CellProgress&) {
            kinds += event == CellEvent::phase ? 'p' : (event == CellEvent::step ? 's' : 'h');
          });
    }
    EXPECT_EQ(kinds, "pshs");
    EXPECT_EQ(reader.malformed(), 3);
    EXPECT_EQ(reader.progress().step, 4);
    EXPECT_EQ(reader.progress().phase, "load");
    EXPECT_FALSE(reader.progress().loss.has_value());
  }
}

TEST(Watchdog, LoadThenStepThenCell) {
  poros::Watchdog dog({.load_s = 10, .step_s = 2, .cell_s = 20}, 100);
  EXPECT_EQ(dog.expired(109.9), "");
  EXPECT_EQ(dog.expired(110), "load");
  CellProgress progress;
  progress.phase = "load";
  dog.observe(CellEvent::phase, progress, 105);
  EXPECT_EQ(dog.expired(110), "load");
  progress.phase = "train";
  dog.observe(CellEvent::phase, progress, 108);
  EXPECT_EQ(dog.expired(109.9), "");
  EXPECT_EQ(dog.expired(110), "step");
  progress.step = 1;
  dog.observe(CellEvent::step, progress, 109);
  EXPECT_DOUBLE_EQ(dog.next_deadline(), 111);
  dog.observe(CellEvent::heartbeat, progress, 110.5);
  EXPECT_EQ(dog.expired(111), "step");
  for (double now = 110; now < 120; ++now) dog.observe(CellEvent::step, progress, now);
  EXPECT_EQ(dog.expired(119.9), "");
  EXPECT_EQ(dog.expired(120), "cell");
}

TEST(OomCounter, AddsTheCountersOfBothCgroupVersions) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("poros-oom-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "memory.events") << "low 0\nhigh 4\noom 1\noom_kill 2\n";
  std::ofstream(folder / "memory.oom_control") << "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n";
  EXPECT_EQ(poros::OomCounter(
                {folder / "memory.events", folder / "memory.oom_control", folder / "missing"})
                .read(),
            7U);
  std::filesystem::remove_all(folder);
}

TEST(Environment, SnapshotIsAnAllowList) {
  const poros::Json snapshot = poros::environment_snapshot({{"OMP_NUM_THREADS", "2"},
                                                            {"CUDA_API_TOKEN", "canary"},
                                                            {"SLURM_JOB_ID", "7"},
                                                            {"HOME", "/home/somebody"},
                                                            {"NCCL_NET", "https://u:pw@host/x"}});
  EXPECT_EQ(snapshot.at("variables"),
            (poros::Json{
                {"OMP_NUM_THREADS", "2"}, {"SLURM_JOB_ID", "7"}, {"NCCL_NET", "https://host/x"}}));
  EXPECT_TRUE(snapshot.at("cpu_model").is_string() || snapshot.at("cpu_model").is_null());
  EXPECT_GT(snapshot.at("memory_mb").get<double>(), 100);
  EXPECT_GE(snapshot.at("cpu_cores").get<int>(), 1);
  EXPECT_EQ(snapshot.at("build").at("version"), "0.3.0");
}

TEST(Environment, UserinfoIsCutFromUrls) {
  EXPECT_EQ(poros::without_userinfo("a https://me:pw@h/p?q=a@b c"), "a https://h/p?q=a@b c");
  EXPECT_EQ(poros::without_userinfo("git@host:repo x://y"), "git@host:repo x://y");
}

}  // namespace
