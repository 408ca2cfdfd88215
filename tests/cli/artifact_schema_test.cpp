// SPDX-License-Identifier: Apache-2.0
#include "cli/artifact_schema.hpp"

#include <set>

#include <gtest/gtest.h>

#include "base/files.hpp"
#include "receipts/run_artifact.hpp"

namespace poros {
namespace {

TEST(ArtifactSchema, NamesEveryFieldOfTheRecordAndNoOther) {
  const Json record = to_json(RunArtifact{});
  std::set<std::string> written, described;
  for (const auto& [name, value] : record.items()) written.insert(name);
  for (const ArtifactField& field : artifact_fields()) {
    EXPECT_TRUE(described.insert(field.name).second) << field.name;
  }
  EXPECT_EQ(described, written);
}

TEST(ArtifactSchema, TypesAndNullsAreThoseOfTheRecord) {
  const Json record = to_json(RunArtifact{});
  for (const ArtifactField& field : artifact_fields()) {
    const Json& value = record[field.name];
    if (value.is_null()) {
      EXPECT_TRUE(field.nullable) << field.name;
      continue;
    }
    const std::string type = field.type;
    EXPECT_FALSE(field.nullable) << field.name;
    EXPECT_EQ(value.is_string(), type == "string") << field.name;
    EXPECT_EQ(value.is_boolean(), type == "boolean") << field.name;
    EXPECT_EQ(value.is_object(), type == "object") << field.name;
    EXPECT_EQ(value.is_array(), type == "array" || type == "numbers" || type == "texts")
        << field.name;
    EXPECT_EQ(value.is_number_integer(), type == "integer") << field.name;
  }
}

TEST(ArtifactSchema, CommittedDocumentIsWhatTheProgramPrints) {
  EXPECT_EQ(read_file(POROS_SOURCE_DIR "/docs/artifact.md"), artifact_markdown())
      << "run: build/bin/poros schema artifact > docs/artifact.md";
}

}  // namespace
}  // namespace poros
