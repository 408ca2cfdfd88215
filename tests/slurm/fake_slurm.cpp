// SPDX-License-Identifier: Apache-2.0
#include "fake_slurm.hpp"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace poros {
namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream out(path);
  out << text;
  if (!out.flush()) throw std::runtime_error("can't write " + path.string());
}

FakeSlurm::FakeSlurm() {
  std::string name = (fs::temp_directory_path() / "poros-slurm-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
  folder_ = name;
  fs::create_directories(folder());
  old_path_ = std::getenv("PATH");
  ::setenv("PATH", ((folder_ / "bin").string() + ":" + old_path_).c_str(), 1);
  ::setenv("POROS_LAUNCH_S", "0", 1);  // the fake launchers are there at once
  command(
      "sbatch",
      R"(n=$(cat "$state/n" 2>/dev/null || echo 100); n=$((n + 1)); echo $n >"$state/n"; echo $n)");
  command("squeue", R"(cat "$state/queue" 2>/dev/null; exit 0)");
  command("scontrol", "exit 0");
  command("scancel", "exit 0");
  command("sacct", "echo 'sacct: error: Slurm accounting storage is disabled' >&2; exit 1");
}

FakeSlurm::~FakeSlurm() {
  ::setenv("PATH", old_path_.c_str(), 1);
  std::error_code error;
  fs::remove_all(folder_, error);
}

void FakeSlurm::command(const std::string& name, const std::string& body) {
  const fs::path path = folder_ / "bin" / name;
  fs::create_directories(folder_ / "state");
  const std::string state = "'" + (folder_ / "state").string() + "'";
  write_text(path, "#!/bin/bash\nstate=" + state + "\nname=" + name + R"(
{ printf '%s\0' "$@"; printf '\1\0'; } >>"$state/$name.calls"
)" + body + "\n");
  fs::permissions(path, fs::perms::owner_all);
}

void FakeSlurm::remove(const std::string& name) {
  fs::remove(folder_ / "bin" / name);
  ::setenv("PATH", (folder_ / "bin").c_str(), 1);  // a real one must not be found either
}

std::vector<std::vector<std::string>> FakeSlurm::calls(const std::string& name) const {
  std::ifstream in(folder_ / "state" / (name + ".calls"), std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  std::vector<std::vector<std::string>> calls{{}};
  std::string word;
  while (std::getline(all, word, '\0')) {
    if (word == "\1") {
      calls.emplace_back();
    } else {
      calls.back().push_back(word);
    }
  }
  calls.pop_back();
  return calls;
}

fs::path write_spec(const fs::path& folder, const std::string& gpu_name, const std::string& name) {
  write_text(folder / name, "spec_id: s1\ndevice: cpu\nhardware: {gpu_name: \"" + gpu_name + R"("}
models: [{model_id: ./m1}, {model_id: ./m2}, {model_id: ./m3}]
methods: [poros, resident]
training: {steps: 8, warmup_steps: 2}
)");
  return folder / name;
}

fs::path write_profile(const fs::path& folder, const std::string& more) {
  write_text(folder / "site.yaml", "cluster: site\n" + more + R"(
gpus:
  A100: {partition: gpu, constraint: a100, gres: a100, gpus_per_node: 2, max_nodes: 4}
  B300: {partition: gpu, constraint: b300, gres: b300, gpus_per_node: 2}
)");
  return folder / "site.yaml";
}

}  // namespace poros
