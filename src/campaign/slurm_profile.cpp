// SPDX-License-Identifier: Apache-2.0
#include "campaign/slurm_profile.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <system_error>
#include <type_traits>

#include <pwd.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "campaign/attempt.hpp"
#include "campaign/slurm_profile_table.hpp"
#include "spec/section_reader.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMaxText = 1024;  // [bytes]

bool is_word(std::string_view text, std::string_view more) {
  constexpr std::string_view kMarks = "_.:@/+=,-";
  return !text.empty() && text.size() <= kMaxText && std::ranges::all_of(text, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kMarks.find(c) != kMarks.npos ||
           more.find(c) != more.npos;
  });
}

bool is_memory(std::string_view text) {
  if (text.size() > 1 && std::string_view("KMGT").find(text.back()) != std::string_view::npos) {
    text.remove_suffix(1);
  }
  return !text.empty() && text.size() < 16 &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

bool has_control(std::string_view text) {
  return std::ranges::any_of(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

/// What the form asks for, or empty when the text has it.
std::string missing_form(SlurmForm form, std::string_view text) {
  switch (form) {
    case SlurmForm::word:
      if (is_word(text, "") && (text[0] != '-' || text.starts_with("--"))) return {};
      return "a name of letters, digits and _.:@/+=,-";
    case SlurmForm::constraint:
      if (is_word(text, "&|*()[]!")) return {};
      return "node features, joined by & or |";
    case SlurmForm::memory:
      return is_memory(text) ? "" : "a whole number with K, M, G or T, such as 64G";
    case SlurmForm::path:
      if (text.size() <= kMaxText && text.starts_with('/') && !has_control(text)) return {};
      return "an absolute path";
    case SlurmForm::shell_line:
      if (!text.empty() && text.size() <= kMaxText && !has_control(text)) return {};
      return "one line of shell text";
  }
  return {};
}

std::string user_name() {
  const passwd* entry = ::getpwuid(::getuid());
  return entry == nullptr ? std::to_string(::getuid()) : entry->pw_name;
}

template <typename S>
SchemaKey schema_key_of(const ProfileField<S>& field) {
  SchemaKey key;
  key.name = field.name;
  key.rule = field.rule;
  std::visit(
      [&](auto member) {
        using T = std::decay_t<decltype(std::declval<S>().*member)>;
        if constexpr (std::is_same_v<T, bool>) key.type = KeyType::boolean;
        if constexpr (std::is_same_v<T, std::int64_t>) key.type = KeyType::integer;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) key.type = KeyType::text_list;
        if (field.rule.duration) key.type = KeyType::duration;
      },
      field.member);
  return key;
}

class ProfileReader : public SectionReader {
 public:
  using SectionReader::SectionReader;

  /// Fills a section. `more` are the keys whose values are mappings, read elsewhere.
  template <typename S>
  void fill(S& section, const YamlNode& node, const std::vector<ProfileField<S>>& fields,
            const std::string& shown, const std::vector<std::string>& more = {}) {
    if (node.kind != YamlNode::Kind::map) {
      add(node.place, shown + ": expected a mapping with keys such as \"" +
                          std::string(fields.front().name) + "\"");
      return;
    }
    std::vector<std::string> names = more;
    for (const ProfileField<S>& field : fields) names.emplace_back(field.name);
    for (const auto& [key, value] : node.entries) {
      const auto field = std::ranges::find_if(
          fields, [&key = key](const ProfileField<S>& known) { return key.text == known.name; });
      if (field != fields.end()) {
        read_field(section, *field, value, prefixed(shown, key.text));
      } else if (std::ranges::find(more, key.text) == more.end()) {
        const std::string near = nearest(key.text, names);
        add(key.place,
            fmt::format("unknown key \"{}\"; expected one of: {}{}",
                        printable(prefixed(shown, key.text)), fmt::join(names, ", "),
                        near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)));
      }
    }
    for (const ProfileField<S>& field : fields) {
      if (field.rule.required && find_entry(node, field.name) == nullptr) {
        add(node.place, fmt::format("key \"{}\" is missing", prefixed(shown, field.name)));
      }
    }
  }

 private:
  static std::string prefixed(const std::string& shown, const std::string& name) {
    return shown.empty() ? name : shown + "." + name;
  }

  template <typename S>
  void read_field(S& section, const ProfileField<S>& field, const YamlNode& node,
                  const std::string& path) {
    const Json value = read_value(schema_key_of(field), node, path);
    if (value.is_null()) return;
    std::vector<std::string> texts;
    if (value.is_string()) texts = {value.get<std::string>()};
    if (value.is_array()) texts = value.get<std::vector<std::string>>();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string missing = missing_form(field.form, texts[i]);
      if (missing.empty() || !field.rule.choices.empty()) continue;
      const Place place = value.is_array() ? node.items[i].place : node.place;
      add(place,
          fmt::format("{}: \"{}\" does not fit; expected {}", path, printable(texts[i]), missing));
    }
    if (!clean()) return;
    std::visit([&](auto member) { set_member(section.*member, value); }, field.member);
  }
};

void replace_user(std::string& path) {
  for (std::size_t at = 0; (at = path.find("%u", at)) != path.npos;) {
    path.replace(at, 2, user_name());
  }
}

std::vector<fs::path> profile_folders() {
  std::vector<fs::path> folders;
  if (const char* named = std::getenv("POROS_CLUSTERS"); named != nullptr && *named != '\0') {
    folders.emplace_back(named);
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    folders.push_back(fs::path(home) / ".config/poros/clusters");
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const fs::path bin = program.parent_path();
    folders.push_back((bin / "../share/poros/clusters").lexically_normal());
    // build/bin/poros of a checkout; a test build lies one folder deeper.
    folders.push_back((bin / "../../slurm/clusters").lexically_normal());
  }
  return folders;
}

}  // namespace

ClusterProfile parse_cluster_profile(std::string_view text, const std::string& origin) {
  const YamlNode root = parse_yaml(text, origin);
  ProfileReader reader(origin);
  ClusterProfile profile;
  profile.file = origin;
  reader.fill(profile, root, profile_fields(), "", {"container", "gpus"});
  if (const YamlNode* container = find_entry(root, "container")) {
    reader.fill(profile.container, *container, container_fields(), "container");
  }
  const YamlNode* gpus = find_entry(root, "gpus");
  if (gpus == nullptr || gpus->kind != YamlNode::Kind::map || gpus->entries.empty()) {
    reader.add(gpus == nullptr ? root.place : gpus->place,
               "gpus: expected a mapping from GPU type to its partition, such as \"A100\"");
  } else if (!reader.too_many(gpus->entries.size(), gpus->place, "gpus")) {
    for (const auto& [name, node] : gpus->entries) {
      ClusterGpu gpu;
      gpu.type = name.text;
      if (!is_valid_id(gpu.type)) {
        reader.add(name.place,
                   fmt::format("gpus: \"{}\" does not fit; expected the name of a GPU type such as "
                               "A100: letters, digits and ._-",
                               printable(gpu.type)));
      }
      reader.fill(gpu, node, gpu_fields(), "gpus." + printable(gpu.type));
      if (reader.clean() && gpu.time_s > gpu.max_time_s) {
        const YamlNode* given = find_entry(node, "time");
        if (given != nullptr) {
          reader.add(given->place, fmt::format("gpus.{}.time: longer than max_time", gpu.type));
        }
        gpu.time_s = gpu.max_time_s;
      }
      profile.gpus.push_back(std::move(gpu));
    }
  }
  reader.stop_on_issues();
  for (std::string* path : {&profile.scratch_dir, &profile.results_dir}) replace_user(*path);
  for (std::string& path : profile.container.bind) replace_user(path);
  return profile;
}

ClusterProfile read_cluster_profile(const fs::path& file) {
  return parse_cluster_profile(read_file(file, std::uint64_t{1} << 20), file.string());
}

fs::path find_cluster_profile(const std::string& name) {
  if (name.find('/') != name.npos || name.ends_with(".yaml")) return name;
  std::vector<std::string> searched;
  std::set<std::string> there;
  std::error_code error;
  for (const fs::path& folder : profile_folders()) {
    if (is_valid_id(name) && fs::is_regular_file(folder / (name + ".yaml"), error)) {
      return folder / (name + ".yaml");
    }
    searched.push_back(folder.string());
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().extension() == ".yaml") there.insert(entry.path().stem().string());
    }
  }
  const std::vector<std::string> names(there.begin(), there.end());
  const std::string near = nearest(name, names);
  fail(Fault::input, "there is no cluster profile \"{}\"{}; looked in {}; found there: {}",
       printable(name), near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near),
       fmt::join(searched, ", "),
       names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
}

const ClusterGpu* find_gpu(const ClusterProfile& profile, const std::string& gpu_name) {
  const ClusterGpu* found = nullptr;
  for (const ClusterGpu& gpu : profile.gpus) {
    // The longest name, so that "A10" is no "A100".
    const bool fits = is_same_gpu(gpu.type, gpu_name);
    if (fits && (found == nullptr || gpu.type.size() > found->type.size())) found = &gpu;
  }
  return found;
}

namespace {

template <typename S>
std::string section_markdown(const std::vector<ProfileField<S>>& fields) {
  static const S defaults{};
  std::vector<std::vector<std::string>> rows{{"key", "default", "meaning"}};
  for (const ProfileField<S>& field : fields) {
    const Json value =
        std::visit([&](auto member) { return member_json(defaults.*member); }, field.member);
    std::string shown = value.is_string() ? value.get<std::string>() : dump_json(value);
    if (value.is_array()) {
      shown = fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), ", "));
    }
    if (field.rule.duration) shown = fmt::format("{:g}s", value.get<double>());
    if (field.rule.required) shown = "required";
    rows.push_back({fmt::format("`{}`", field.name), shown, field.text});
  }
  return markdown_table(rows);
}

}  // namespace

std::string cluster_profile_markdown() {
  return "At the top:\n\n" + section_markdown(profile_fields()) +
         "\nBelow `gpus.<type>`, one mapping a GPU type:\n\n" + section_markdown(gpu_fields()) +
         "\nBelow `container`:\n\n" + section_markdown(container_fields());
}

}  // namespace poros
