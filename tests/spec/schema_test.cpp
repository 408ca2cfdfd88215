// SPDX-License-Identifier: Apache-2.0
#include "spec/schema.hpp"

#include <set>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

TEST(Schema, DefaultsSatisfyTheirOwnRules) {
  for (const SchemaSection& section : schema_sections()) {
    std::set<std::string> names;
    for (const SchemaKey& key : section.keys) {
      EXPECT_TRUE(names.insert(key.name).second) << key.path();
      EXPECT_FALSE(key.text.empty()) << key.path();
      if (!key.rule.required) {
        EXPECT_EQ(complaint(key, key.default_value).value_or(""), "") << key.path();
      }
      EXPECT_EQ(&schema_key(key.path()), &key);
    }
  }
}

TEST(Schema, BoundsAreInclusiveOrNotAsTheTableSays) {
  const auto passes = [](const char* path, const Json& value) {
    return !complaint(schema_key(path), value).has_value();
  };
  EXPECT_TRUE(passes("lora.rank", 1) && passes("lora.rank", 65536));
  EXPECT_FALSE(passes("lora.rank", 0) || passes("lora.rank", 65537));
  EXPECT_TRUE(passes("lora.dropout", 0.0) && passes("lora.dropout", 0.999));
  EXPECT_FALSE(passes("lora.dropout", 1.0) || passes("lora.dropout", -1e-9));
  EXPECT_FALSE(passes("training.learning_rate", 0.0));
  EXPECT_TRUE(passes("training.learning_rate", 5e-324));
  EXPECT_FALSE(passes("training.seq_len", 1));
  EXPECT_TRUE(passes("training.seed", 4294967295) && !passes("training.seed", 4294967296));
  EXPECT_FALSE(passes("training.steps", 25.0));  // a number that is not an integer
  EXPECT_FALSE(passes("training.steps", nullptr));
  EXPECT_TRUE(passes("poros.sweep_rows", nullptr));
}

TEST(Schema, JsonSchemaHasEveryKey) {
  const Json schema = schema_json();
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["required"], (Json{"spec_id", "models"}));
  const Json& training = schema["properties"]["training"]["properties"];
  EXPECT_EQ(training["seq_len"]["minimum"], 2);
  EXPECT_EQ(training["seq_len"]["maximum"], 1048576);
  EXPECT_EQ(training["seq_len"]["default"], 512);
  EXPECT_EQ(training["seq_len"]["type"], "integer");
  EXPECT_EQ(training["learning_rate"]["exclusiveMinimum"], 0);
  EXPECT_EQ(schema["properties"]["device"]["enum"], (Json{"cuda", "cpu"}));
  EXPECT_EQ(schema["properties"]["poros"]["properties"]["sweep_rows"]["type"],
            (Json{"integer", "null"}));
  for (const SchemaSection& section : schema_sections()) {
    const Json* place = &schema;
    if (section.path == "models[]") {
      place = &schema["properties"]["models"]["items"];
    } else if (section.path == "peers.<method>") {
      place = &schema["properties"]["peers"]["properties"]["unsloth"];
    } else if (section.path == "training.dataset") {
      place = &training["dataset"]["anyOf"][1];
    } else if (section.path == "hardware") {
      place = &schema["properties"]["hardware"]["anyOf"][0];
    } else if (!section.path.empty()) {
      place = &schema["properties"][section.path];
    }
    for (const SchemaKey& key : section.keys) {
      EXPECT_EQ((*place)["properties"].contains(key.name), !key.rule.later) << key.path();
    }
  }
}

TEST(Schema, CommittedDocumentIsWhatTheProgramPrints) {
  EXPECT_EQ(read_file(POROS_SOURCE_DIR "/docs/spec.md"), schema_markdown())
      << "run: build/bin/poros schema spec > docs/spec.md";
}

TEST(Suggestion, NearestWord) {
  const std::vector<std::string> words = {"steps", "seed", "seq_len", "batch_size"};
  EXPECT_EQ(nearest("stesp", words), "steps");      // neighbours swapped
  EXPECT_EQ(nearest("Seq_Len", words), "seq_len");  // case
  EXPECT_EQ(nearest("batchsize", words), "batch_size");
  EXPECT_EQ(nearest("sed", words), "seed");
  EXPECT_EQ(nearest("gradient", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest(std::string(1000, 's'), words), "");
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  const std::size_t none = std::string_view::npos;
  EXPECT_EQ(find_invalid_utf8(""), none);
  EXPECT_EQ(find_invalid_utf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), none);
  EXPECT_EQ(find_invalid_utf8("a\xff"), 1U);
  EXPECT_EQ(find_invalid_utf8("a\xc3"), 1U);             // cut off
  EXPECT_EQ(find_invalid_utf8("\xc0\xaf"), 0U);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xe0\x80\xaf"), 0U);      // overlong
  EXPECT_EQ(find_invalid_utf8("\xed\xa0\x80"), 0U);      // surrogate
  EXPECT_EQ(find_invalid_utf8("\xf4\x90\x80\x80"), 0U);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\x80"), 0U);
}

}  // namespace
}  // namespace poros
