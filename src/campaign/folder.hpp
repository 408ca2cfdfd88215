// SPDX-License-Identifier: Apache-2.0
// Where things lie in a campaign folder. Paths that go into records are relative to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace poros {

class CampaignFolder {
 public:
  explicit CampaignFolder(std::filesystem::path dir) : dir_(std::move(dir)) {}

  [[nodiscard]] const std::filesystem::path& dir() const { return dir_; }
  [[nodiscard]] std::filesystem::path operator/(const std::string& relative) const {
    return dir_ / relative;
  }
  [[nodiscard]] std::filesystem::path spec() const { return dir_ / "spec.json"; }
  [[nodiscard]] std::filesystem::path journal() const { return dir_ / "results.jsonl"; }
  [[nodiscard]] std::filesystem::path inputs() const { return dir_ / "inputs"; }
  [[nodiscard]] std::filesystem::path live() const { return dir_ / "live"; }

  /// "artifacts/<key>/2.1.json", or parity0.1.json for a parity pass.
  [[nodiscard]] static std::string pass_file(const std::string& key, const std::string& purpose,
                                             std::int64_t pass, std::int64_t attempt) {
    return "artifacts/" + key + "/" + stem(purpose, pass, attempt) + ".json";
  }
  /// "logs/<key>/2.1.log"
  [[nodiscard]] static std::string log_file(const std::string& key, const std::string& purpose,
                                            std::int64_t pass, std::int64_t attempt) {
    return "logs/" + key + "/" + stem(purpose, pass, attempt) + ".log";
  }
  /// "artifacts/<group key>/parity.1.json"
  [[nodiscard]] static std::string parity_file(const std::string& group, std::int64_t number) {
    return "artifacts/" + group + "/parity." + std::to_string(number) + ".json";
  }

 private:
  static std::string stem(const std::string& purpose, std::int64_t pass, std::int64_t attempt) {
    return (purpose == "parity" ? "parity" : "") + std::to_string(pass) + "." +
           std::to_string(attempt);
  }

  std::filesystem::path dir_;
};

}  // namespace poros
