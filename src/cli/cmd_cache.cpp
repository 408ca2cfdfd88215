// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "model/nf4_cache.hpp"
#include "model/open_base.hpp"

namespace poros {
namespace {

struct CacheOptions {
  std::filesystem::path cache;  // empty: the user's
  std::vector<std::string> entries;
  double unused_days = -1;
  bool json = false;

  [[nodiscard]] std::filesystem::path folder() const {
    return cache.empty() ? default_cache_folder() : cache;
  }
};

std::string entries_text(const std::vector<CacheEntryInfo>& entries) {
  TextTable table{{"entry", "precision", "size", "last used", "state"}, {}, "llr"};
  double total = 0;
  for (const CacheEntryInfo& entry : entries) {
    table.rows.push_back({entry.folder.filename().string(), entry.precision,
                          bytes_text(static_cast<double>(entry.bytes)), entry.last_used,
                          entry.fault.empty() ? "good" : entry.fault});
    total += static_cast<double>(entry.bytes);
  }
  return table.text() +
         fmt::format("\nentries: {}, together {}\n", entries.size(), bytes_text(total));
}

Json entries_json(const std::vector<CacheEntryInfo>& entries) {
  Json list = Json::array();
  for (const CacheEntryInfo& entry : entries) list.push_back(to_json(entry));
  return list;
}

int list(const CacheOptions& options) {
  const std::filesystem::path folder = options.folder();
  const std::vector<CacheEntryInfo> entries = list_cache(folder);
  const std::vector<CacheEntryInfo> unfinished = unfinished_builds(folder);
  if (options.json) {
    print_json({{"cache", folder.string()},
                {"entries", entries_json(entries)},
                {"unfinished", entries_json(unfinished)}});
    return kDone;
  }
  print_text(fmt::format("{}\n\n", folder.string()) + entries_text(entries));
  if (!unfinished.empty()) {
    print_text(
        "\nNot finished (a build removes what is left over, ten minutes after it stopped):\n\n" +
        entries_text(unfinished));
  }
  return kDone;
}

int verify(const CacheOptions& options) {
  const std::filesystem::path folder = options.folder();
  std::vector<std::filesystem::path> chosen;
  for (const std::string& name : options.entries) {
    chosen.push_back(child_path(folder, name));
    if (!std::filesystem::is_directory(chosen.back())) {
      fail(Fault::input, "{}: there is no such cache entry; see: poros cache list",
           chosen.back().string());
    }
  }
  if (options.entries.empty()) {
    for (const CacheEntryInfo& entry : list_cache(folder)) chosen.push_back(entry.folder);
  }
  Json results = Json::array();
  bool good = true;
  for (const std::filesystem::path& entry : chosen) {
    const std::string fault = verify_cache_entry(entry);
    good = good && fault.empty();
    results.push_back({{"entry", entry.filename().string()}, {"fault", fault}});
    if (!options.json) {
      print_text(
          fmt::format("{}: {}\n", entry.filename().string(), fault.empty() ? "good" : fault));
      flush_stdout();  // an entry may take minutes
    }
  }
  if (options.json) print_json({{"cache", folder.string()}, {"entries", results}});
  return good ? kDone : kFailed;
}

int prune(const CacheOptions& options) {
  const std::filesystem::path folder = options.folder();
  const std::vector<CacheEntryInfo> removed = prune_cache(folder, options.unused_days);
  if (options.json) {
    print_json({{"cache", folder.string()}, {"removed", entries_json(removed)}});
  } else if (removed.empty()) {
    print_text("nothing to remove\n");
  } else {
    print_text("removed:\n\n" + entries_text(removed));
  }
  return kDone;
}

}  // namespace

void add_cache(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<CacheOptions>();
  CLI::App* command = parent.add_subcommand("cache", "The cache of quantised bases");
  command->require_subcommand(1);
  command->footer(R"(Examples:
  poros cache list
  poros cache verify                      read every byte against its checksum
  poros cache prune --unused-days 30

The cache lies in $POROS_CACHE_DIR, else $XDG_CACHE_HOME/poros, else ~/.cache/poros. Entries are
made from checkpoints and can be deleted. Exit code 1: verify found damage.
)");
  const auto add = [&](const char* name, const char* text, int (*work)(const CacheOptions&)) {
    CLI::App* sub = command->add_subcommand(name, text);
    sub->add_option("--cache", options->cache, "Another cache folder");
    sub->add_flag("--json", options->json, "Print one JSON object");
    sub->callback([&invocation, options, work] {
      invocation.run = [options, work] { return work(*options); };
    });
    return sub;
  };
  add("list", "What is in it", &list);
  add("verify", "Read every byte against its checksum", &verify)
      ->add_option("ENTRY", options->entries, "Names from the list; default: all");
  add("prune", "Remove damaged and left-over entries", &prune)
      ->add_option("--unused-days", options->unused_days, "Also entries not used for so many days")
      ->check(CLI::Range(0.0, 36500.0));
}

}  // namespace poros
