// SPDX-License-Identifier: Apache-2.0
#include "base/json.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "base/clock.hpp"
#include "base/sha256.hpp"

namespace poros {
namespace {

std::string message_of(const std::string& text) {
  try {
    (void)parse_json(text, "file.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), kWrongInput);
    return error.what();
  }
  return "";
}

TEST(Json, KeysComeOutSorted) {
  EXPECT_EQ(dump_json(parse_json(R"({"b": 1, "a": [true, null, 2.5]})", "x")),
            R"({"a":[true,null,2.5],"b":1})");
}

TEST(Json, RefusesWhatTheLibraryLetsPass) {
  EXPECT_NE(message_of(R"({"a": 1, "a": 2})").find("duplicate key \"a\""), std::string::npos);
  EXPECT_NE(message_of("[1] x").find("not valid JSON"), std::string::npos);
  EXPECT_NE(message_of("{\"a\": 1e999}").find("file.json"), std::string::npos);
  EXPECT_NE(message_of(std::string(1000, '[')).find("nested deeper than 64"), std::string::npos);
  EXPECT_NE(message_of("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(message_of("NaN").find("not valid JSON"), std::string::npos);
  EXPECT_THROW((void)parse_json("[1,2,3]", "x", {.max_bytes = 3}), Error);
  EXPECT_TRUE(message_of(std::string(64, '[') + std::string(64, ']')).empty());
}

TEST(Json, SameKeyInSiblingObjectsIsNoDuplicate) {
  EXPECT_TRUE(message_of(R"([{"a": 1}, {"a": 2}, {"b": {"a": 1}, "a": 3}])").empty());
}

TEST(Json, NeverWritesNumbersThatAreNotFinite) {
  EXPECT_THROW((void)dump_json(Json{{"x", {1.0, std::numeric_limits<double>::quiet_NaN()}}}),
               Error);
  EXPECT_THROW((void)dump_json(Json(std::numeric_limits<double>::infinity())), Error);
}

TEST(Json, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(dump_json(Json(std::string("a\xff"
                                       "b"))),
            "\"a\xEF\xBF\xBD"
            "b\"");
}

TEST(Json, TypedReadsRefuseOtherTypesAndRanges) {
  const Json value = parse_json(R"({"n": 300, "s": "x", "f": 1.5, "neg": -1, "null": null})", "x");
  EXPECT_EQ(json_get<int>(value, "n", "x"), 300);
  EXPECT_THROW((void)json_get<std::uint8_t>(value, "n", "x"), Error);
  EXPECT_THROW((void)json_get<std::uint64_t>(value, "neg", "x"), Error);
  EXPECT_THROW((void)json_get<int>(value, "f", "x"), Error);
  EXPECT_THROW((void)json_get<double>(value, "s", "x"), Error);
  EXPECT_THROW((void)json_get<std::string>(value, "n", "x"), Error);
  EXPECT_THROW((void)json_get<int>(value, "missing", "x"), Error);
  EXPECT_THROW((void)json_get<int>(Json::array(), "n", "x"), Error);
  EXPECT_EQ(json_find<int>(value, "null", "x"), std::nullopt);
  EXPECT_EQ(json_find<int>(value, "missing", "x"), std::nullopt);
  EXPECT_EQ(json_find<double>(value, "f", "x"), 1.5);
}

TEST(Sha256, KnownAnswers) {  // FIPS 180-4 examples
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 pieces;
  pieces.update("a");
  pieces.update("bc");
  EXPECT_EQ(pieces.hex(), sha256_hex("abc"));
}

TEST(Duration, UnitsAndRefusals) {
  EXPECT_DOUBLE_EQ(parse_duration_s("90"), 90);
  EXPECT_DOUBLE_EQ(parse_duration_s("1.5h"), 5400);
  EXPECT_DOUBLE_EQ(parse_duration_s("500ms"), 0.5);
  EXPECT_DOUBLE_EQ(parse_duration_s("10m"), 600);
  for (const char* bad : {"", "s", "-1s", "nan", "inf", "1e400s", "5 s", "5sec", "0x10"}) {
    EXPECT_THROW((void)parse_duration_s(bad), Error) << bad;
  }
}

}  // namespace
}  // namespace poros
