// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "campaign/slurm_profile.hpp"

namespace poros {
namespace {

std::string complaint_about(const std::string& text) {
  try {
    static_cast<void>(parse_cluster_profile(text, "site.yaml"));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), kWrongInput);
    return error.what();
  }
  return "accepted";
}

TEST(Profile, EveryShippedOneIsRead) {
  int read = 0;
  for (const char* folder : {"/slurm/clusters", "/slurm/lab"}) {
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(POROS_SOURCE_DIR) + folder)) {
      if (entry.path().extension() != ".yaml") continue;
      EXPECT_FALSE(read_cluster_profile(entry.path()).gpus.empty()) << entry.path();
      ++read;
    }
  }
  EXPECT_GE(read, 3);
}

TEST(Profile, KeysReachTheirMembers) {
  const ClusterProfile profile = parse_cluster_profile(R"(cluster: site
launcher: mpirun
warn_s: 2m
requeue: false
max_restarts: 3
prologue: ["export A='b c'"]
scratch_dir: /scratch/%u
container: {image: /images/poros.sif, bind: [/data]}
gpus:
  A100: {partition: gpu, constraint: "a&b", gpus_per_node: 4, mem_per_gpu: 64G, time: 90m}
  "3090": {}
)",
                                                       "site.yaml");
  EXPECT_EQ(profile.launcher, "mpirun");
  EXPECT_EQ(profile.warn_s, 120);
  EXPECT_FALSE(profile.requeue);
  EXPECT_EQ(profile.max_restarts, 3);
  EXPECT_EQ(profile.prologue, std::vector<std::string>{"export A='b c'"});
  EXPECT_EQ(profile.scratch_dir.find('%'), std::string::npos);
  EXPECT_EQ(profile.container.image, "/images/poros.sif");
  EXPECT_EQ(profile.container.options, std::vector<std::string>{"--nv"});
  ASSERT_EQ(profile.gpus.size(), 2u);
  EXPECT_EQ(profile.gpus[0].type, "A100");
  EXPECT_EQ(profile.gpus[0].constraint, "a&b");
  EXPECT_EQ(profile.gpus[0].gpus_per_node, 4);
  EXPECT_EQ(profile.gpus[0].time_s, 5400);
  EXPECT_EQ(profile.gpus[1].max_nodes, 1);
}

TEST(Profile, FaultsAreNamedWithTheirPlace) {
  const std::string gpus = "gpus: {A100: {}}\n";
  const struct {
    std::string text, expected;
  } cases[] = {
      {gpus, "site.yaml:1:1: key \"cluster\" is missing"},
      {"cluster: x\n", "site.yaml:1:1: gpus: expected a mapping"},
      {"cluster: x\ngpus: [A100]\n", "site.yaml:2:7: gpus: expected a mapping"},
      {"cluster: x\nacount: y\n" + gpus, "site.yaml:2:1: unknown key \"acount\""},
      {"cluster: x\nacount: y\n" + gpus, "did you mean \"account\"?"},
      {"cluster: x\nlauncher: prun\n" + gpus, "site.yaml:2:11: launcher: \"prun\""},
      {"cluster: x\naccount: \"a b\"\n" + gpus, "site.yaml:2:10: account: \"a b\" does not fit"},
      {"cluster: x\naccount: \"a;b\"\n" + gpus, "does not fit; expected a name"},
      {"cluster: x\naccount: \"$(id)\"\n" + gpus, "does not fit"},
      {"cluster: x\nqos: \"-x\"\n" + gpus, "site.yaml:2:6: qos"},
      {"cluster: x\nwarn_s: 1s\n" + gpus, "site.yaml:2:9: warn_s: 1 is out of range"},
      {"cluster: x\nexclude_nodes: [n1, \"n2 n3\"]\n" + gpus, "site.yaml:2:21: exclude_nodes"},
      {"cluster: x\nscratch_dir: tmp\n" + gpus, "expected an absolute path"},
      {"cluster: x\nprologue: [\"a\\nb\"]\n" + gpus, "site.yaml:2:12: prologue"},
      {"cluster: x\ngpus:\n  A100: {mem_per_gpu: lots}\n", "site.yaml:3:23: gpus.A100.mem_per_gpu"},
      {"cluster: x\ngpus:\n  A100: {nodes: 2}\n", "unknown key \"gpus.A100.nodes\""},
      {"cluster: x\ngpus:\n  A100: {time: 2d, max_time: 1d}\n", "longer than max_time"},
      {"cluster: x\ngpus:\n  \"a/b\": {}\n", "site.yaml:3:3: gpus: \"a/b\" does not fit"},
      {"cluster: x\ngpus:\n  A100: {partition: \"p\", constraint: \"a`id`\"}\n", "does not fit"},
      {"cluster: &a x\n" + gpus, "site.yaml:1:10"},
  };
  for (const auto& one : cases) {
    EXPECT_NE(complaint_about(one.text).find(one.expected), std::string::npos)
        << one.text << "->\n"
        << complaint_about(one.text) << "\nexpected: " << one.expected;
  }
}

TEST(Profile, AllFaultsOfAFileAreSeenAtOnce) {
  const std::string text =
      complaint_about("cluster: x\nqos: \"a b\"\nfoo: 1\ngpus: {A100: {bar: 2}}\n");
  EXPECT_NE(text.find(":2:6:"), std::string::npos) << text;
  EXPECT_NE(text.find(":3:1:"), std::string::npos) << text;
  EXPECT_NE(text.find("gpus.A100.bar"), std::string::npos) << text;
}

TEST(Profile, AGpuIsFoundByTheNamesThatPeopleAndDriversUse) {
  const ClusterProfile profile =
      parse_cluster_profile("cluster: x\ngpus: {A10: {}, A100: {}, \"3090\": {}}\n", "x");
  const auto type = [&](const char* name) {
    const ClusterGpu* gpu = find_gpu(profile, name);
    return gpu == nullptr ? "none" : gpu->type;
  };
  EXPECT_EQ(type("NVIDIA A100-SXM4-80GB"), "A100");
  EXPECT_EQ(type("NVIDIA A10"), "A10");
  EXPECT_EQ(type("NVIDIA GeForce RTX 3090"), "3090");
  EXPECT_EQ(type("NVIDIA B300"), "none");
}

TEST(Profile, AnUnknownNameSaysWhatThereIs) {
  ::setenv("POROS_CLUSTERS", (std::string(POROS_SOURCE_DIR) + "/slurm/clusters").c_str(), 1);
  EXPECT_EQ(find_cluster_profile("workstation").filename(), "workstation.yaml");
  try {
    static_cast<void>(find_cluster_profile("four_type"));
    FAIL() << "found";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean \"four_types\""), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(static_cast<void>(find_cluster_profile("..")), Error);
  ::unsetenv("POROS_CLUSTERS");
}

TEST(Profile, TheDocumentationNamesEveryKey) {
  const std::string text = cluster_profile_markdown();
  const std::string page = read_file(std::string(POROS_SOURCE_DIR) + "/docs/slurm.md");
  EXPECT_NE(page.find(text), std::string::npos) << "docs/slurm.md should hold:\n" << text;
  for (const char* key : {"warn_s", "requeue", "mixed_partition", "gpus_per_node", "image"}) {
    EXPECT_NE(text.find("`" + std::string(key) + "`"), std::string::npos) << key;
  }
}

}  // namespace
}  // namespace poros
