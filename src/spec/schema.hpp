// SPDX-License-Identifier: Apache-2.0
// The one schema of the spec. Each key stands once, in schema_table.cpp, with its type, range, text
// and unit; defaults are those of the structs in spec.hpp. Validation, error messages, spec.json,
// cell keys, `poros schema spec` and docs/spec.md all come from here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace poros {

enum class KeyType { text, integer, number, boolean, duration, text_list, integer_map, number_map };

/// What a text must look like beyond its type.
enum class TextForm { any, id, model, dataset, revision, module };

/// What a value must satisfy, and what the key counts for.
struct KeyRule {
  std::optional<double> min = {}, max = {};
  bool above_min = false, below_max = false;  // the bound itself is excluded
  std::vector<std::string> choices = {};
  TextForm form = TextForm::any;
  bool required = false;
  bool counts = true;  // part of cell keys and of the spec's hash; false: labels, passes, timeouts
  bool later = false;  // known, but refused in a spec: its work is not there yet
  bool duration = false;
  std::string keyword = {};  // a list may be this one word instead, which means the empty list
};

struct SchemaKey {
  std::string section;  // "", "training", "models[]", "peers.<method>", ...
  std::string name;
  KeyType type = KeyType::text;
  bool nullable = false;  // null means: not set
  KeyRule rule;
  Json default_value;  // null: not set
  std::string unit, text;

  /// "training.steps"
  [[nodiscard]] std::string path() const;
};

/// A mapping of the spec and its keys, in the order in which they are documented.
struct SchemaSection {
  std::string path, text;
  std::vector<SchemaKey> keys;

  /// nullptr when the section has no such key.
  [[nodiscard]] const SchemaKey* find(const std::string& name) const;
  /// A JSON object with the default of every key.
  [[nodiscard]] Json defaults() const;
};

/// Keys that people may know from elsewhere and that are refused with a sentence of their own.
struct RefusedKey {
  std::string path;    // "poros.fused_lora"
  std::string reason;  // completes 'key "..." '
};

[[nodiscard]] const std::vector<SchemaSection>& schema_sections();
/// The top of a config for `poros train` (spec/train_config.hpp).
[[nodiscard]] const SchemaSection& train_section();
/// @throws Error(Fault::run) when there is no such section.
[[nodiscard]] const SchemaSection& schema_section(const std::string& path);
/// By whole path, e.g. "training.n_passes". @throws Error(Fault::run) when there is no such key.
[[nodiscard]] const SchemaKey& schema_key(const std::string& path);
/// nullptr when the key is simply unknown.
[[nodiscard]] const RefusedKey* find_refused_key(const std::string& path);

/// The three methods that have a mapping of their own below `peers`.
[[nodiscard]] const std::vector<std::string>& peer_methods();

/// "an integer from 1 to 4096", "one of: cuda, cpu": completes "expected ...".
[[nodiscard]] std::string expectation(const SchemaKey& key);

/// Checks a value's type, range, words and form; returns what is wrong, without the expectation, or
/// nullopt. Numbers of type `number` and `duration` are doubles in JSON, durations in seconds.
[[nodiscard]] std::optional<std::string> complaint(const SchemaKey& key, const Json& value);

/// For people: Markdown, aligned so that it reads well on a terminal. docs/spec.md is this text.
[[nodiscard]] std::string schema_markdown();

/// The table of one section, without its title; keys that are not available yet are left out.
/// @param counts with the column that says whether a key counts
/// @param without keys that are left out
[[nodiscard]] std::string section_table(const SchemaSection& section, bool counts,
                                        const std::vector<std::string>& without = {});

/// For programs: a JSON Schema (draft 2020-12) of a spec file.
[[nodiscard]] Json schema_json();

/// The JSON Schema of one mapping; of training.dataset also the forms that a spec may use.
[[nodiscard]] Json section_schema(const std::string& path);
[[nodiscard]] Json dataset_schema();

}  // namespace poros
