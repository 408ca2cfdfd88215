// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <fstream>
#include <map>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/subprocess.hpp"
#include "campaign/doctor.hpp"
#include "cell/environment.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
constexpr double kAnswer_s = 60;  // a Python that lies on a slow network file system

Finding row(std::string name, std::string value, Health health = Health::ok,
            std::string mend = "") {
  return {"software", std::move(name), std::move(value), health, std::move(mend)};
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// First line that a command prints, empty where there is none such or it fails.
std::string ask(const std::vector<std::string>& command) {
  try {
    const ProcessResult result = run_process(command, kAnswer_s);
    return result.exit_code == 0 ? first_line(result.out) : "";
  } catch (const Error&) {
    return "";
  }
}

void examine_program(const DoctorOptions& options, std::vector<Finding>& findings) {
  const BuildInfo& build = build_info();
  std::string value = build.version;
  if (!build.git_commit.empty()) {
    value += fmt::format(", commit {}{}", build.git_commit.substr(0, 12),
                         build.git_dirty ? " with local changes" : "");
  }
  findings.push_back(row("poros", value + ", " + build.compiler));
  const std::string said = ask({options.paths.cell_program.string(), "--version"});
  if (said.empty()) {
    findings.push_back(row("trainer", options.paths.cell_program.string() + " does not start",
                           Health::error, "scripts/bootstrap.sh builds it"));
  } else {
    findings.push_back(row("trainer", said));
  }
}

/// A program that only some campaigns need.
void examine_tool(const char* name, const std::vector<std::string>& command, const char* needed_for,
                  std::vector<Finding>& findings) {
  const std::string said = ask(command);
  findings.push_back(said.empty() ? row(name, "not found", Health::note, needed_for)
                                  : row(name, said));
}

/// name==version lines of the lists that scripts/bootstrap.sh installs.
std::map<std::string, std::string> pinned_versions(const fs::path& peers_dir,
                                                   std::initializer_list<const char*> lists) {
  std::map<std::string, std::string> pins;
  for (const char* list : lists) {
    std::ifstream file(peers_dir / ".." / ".." / "scripts" / "requirements" / list);
    for (std::string line; std::getline(file, line);) {
      const auto at = line.find("==");
      if (at == std::string::npos || line[0] == '#') continue;
      std::string version = line.substr(at + 2);
      version.erase(std::min(version.find_first_of(" ;#\r"), version.size()));
      pins[line.substr(0, at)] = version;
    }
  }
  return pins;
}

void examine_python(const DoctorOptions& options, std::vector<Finding>& findings) {
  const std::string& python = options.paths.python;
  const std::string said = ask({python, "-c",
                                "import platform, tokenizers; print(platform.python_version(), "
                                "'with tokenizers', tokenizers.__version__)"});
  if (said.empty()) {
    findings.push_back(row("Python", python + " has no tokenizers", Health::error,
                           "scripts/bootstrap.sh makes an environment; or set POROS_PYTHON"));
  } else {
    findings.push_back(row("Python", said));
  }
}

void examine_peers(const DoctorOptions& options, std::vector<Finding>& findings) {
  static constexpr std::array<const char*, 8> kLibraries{
      "torch", "transformers", "peft", "bitsandbytes", "accelerate", "unsloth", "trl", "datasets"};
  const std::string& python = options.paths.peers_python;
  if (python.empty()) {
    findings.push_back(row("peers", "no environment", Health::note,
                           "scripts/bootstrap.sh --peers installs peft and accelerate, --peers=all "
                           "unsloth too"));
    return;
  }
  std::string script = "import importlib.metadata as m, json\nfound = {}\nfor n in (";
  for (const char* name : kLibraries) script += fmt::format("'{}',", name);
  script +=
      "):\n    try: found[n] = m.version(n)\n    except m.PackageNotFoundError: pass\n"
      "print(json.dumps(found))";
  const Json found = Json::parse(ask({python, "-c", script}), nullptr, false);
  if (!found.is_object()) {
    findings.push_back(row("peers", python + " does not answer", Health::warn,
                           "scripts/bootstrap.sh --peers makes the environment again"));
    return;
  }
  const fs::path& peers_dir = options.paths.peers_dir;
  const auto without_unsloth = pinned_versions(peers_dir, {"base.txt", "peers-cpu.txt"});
  const auto with_unsloth =
      pinned_versions(peers_dir, {"base.txt", "peers-cpu.txt", "peers-unsloth.txt"});
  const bool has_unsloth = found.contains("unsloth");
  for (const char* name : kLibraries) {
    const bool needs_all = !without_unsloth.contains(name);
    const std::string command = needs_all || has_unsloth ? "scripts/bootstrap.sh --peers=all"
                                                         : "scripts/bootstrap.sh --peers";
    const auto& pins = needs_all || has_unsloth ? with_unsloth : without_unsloth;
    const auto pin = pins.find(name);
    if (!found.contains(name)) {
      if (pin == pins.end()) continue;
      findings.push_back(
          row(name, "not installed", Health::note, command + " installs " + pin->second));
      continue;
    }
    const std::string version = found.at(name).get<std::string>();
    Finding library = row(name, version);
    // "2.11.0+cu130" is 2.11.0 built for a CUDA.
    if (pin != pins.end() && version.substr(0, version.find('+')) != pin->second) {
      library.health = Health::warn;
      library.mend = fmt::format("the set that is known to work has {}: {}", pin->second, command);
    }
    findings.push_back(library);
  }
}

}  // namespace

void examine_software(const DoctorOptions& options, std::vector<Finding>& findings) {
  examine_program(options, findings);
  examine_tool("MPI", {"mpirun", "--version"}, "poros bench matrix over several ranks needs it",
               findings);
  examine_tool("Slurm", {"sinfo", "--version"}, "poros bench submit needs it", findings);
  examine_python(options, findings);
  examine_peers(options, findings);
}

}  // namespace poros
