// SPDX-License-Identifier: Apache-2.0
#include "receipts/receipt.hpp"

#include <gtest/gtest.h>

#include "base/sha256.hpp"

namespace poros {
namespace {

Receipt sample() {
  Receipt receipt;
  receipt.seq = 4;
  receipt.epoch = 2;
  receipt.kind = "cell";
  receipt.key = std::string(64, 'c');
  receipt.fields = {{"method", "poros"}, {"s_per_step", 0.1}, {"oom", false}, {"reason", nullptr}};
  receipt.artifact_path = "poros_qwen2.5-7b_nf4.json";
  receipt.artifact_sha256 = std::string(64, 'd');
  return receipt;
}

TEST(Receipt, SurvivesItsLine) {
  const Receipt before = sample();
  const std::string line = to_line(before);
  EXPECT_EQ(line.back(), '\n');
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const Receipt after = receipt_from_line(line, "t");
  EXPECT_EQ(after.seq, 4);
  EXPECT_EQ(after.epoch, 2);
  EXPECT_EQ(after.kind, "cell");
  EXPECT_EQ(after.key, before.key);
  EXPECT_EQ(after.fields, before.fields);
  EXPECT_EQ(after.artifact_path, before.artifact_path);
  EXPECT_EQ(after.artifact_sha256, before.artifact_sha256);
  EXPECT_EQ(to_line(after), line);
}

// The hash can be checked with any JSON tool: sorted keys, no blanks, `sha256` taken out.
TEST(Receipt, HashIsOverTheCanonicalTextWithoutIt) {
  Receipt receipt;
  receipt.kind = "attempt";
  receipt.key = "k";
  const std::string text =
      R"({"artifact_path":"","artifact_sha256":"","epoch":0,"key":"k","kind":"attempt","seq":0,"v":1})";
  EXPECT_NE(to_line(receipt).find("\"sha256\":\"" + sha256_hex(text) + "\""), std::string::npos);
}

TEST(Receipt, EveryFlippedBitIsSeen) {
  const std::string line = to_line(sample());
  for (std::size_t i = 0; i + 1 < line.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = line;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_THROW((void)receipt_from_line(damaged, "t"), Error) << "byte " << i << " bit " << bit;
    }
  }
}

TEST(Receipt, OtherTextForTheSameValueIsRefused) {
  std::string line = to_line(sample());
  line.insert(1, " ");
  EXPECT_THROW((void)receipt_from_line(line, "t"), Error);
}

TEST(Receipt, BytesThatAreNotUtf8AreReplacedBeforeHashing) {
  Receipt receipt = sample();
  receipt.fields["error_message"] = "bad \xff\xfe bytes";
  const Receipt after = receipt_from_line(to_line(receipt), "t");
  EXPECT_EQ(after.fields.at("error_message"), "bad \xEF\xBF\xBD\xEF\xBF\xBD bytes");
}

TEST(Receipt, FieldsCantTakeTheReceiptsOwnNames) {
  Receipt receipt = sample();
  receipt.fields["seq"] = 9;
  EXPECT_THROW((void)to_line(receipt), Error);
}

TEST(Receipt, RefusesNumbersThatAreNotFinite) {
  Receipt receipt = sample();
  receipt.fields["loss"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW((void)to_line(receipt), Error);
}

TEST(Receipt, ScalarFieldsLeaveOutListsObjectsAndOwnNames) {
  const Json fields = scalar_fields({{"v", 1},
                                     {"key", "k"},
                                     {"method", "poros"},
                                     {"loss", nullptr},
                                     {"passes", {1, 2}},
                                     {"device", {{"a", 1}}}});
  EXPECT_EQ(fields, (Json{{"method", "poros"}, {"loss", nullptr}}));
}

TEST(Receipt, RefusesAnotherVersion) {
  Json json = parse_json(to_line(sample()), "t");
  json["v"] = 2;
  json.erase("sha256");
  json["sha256"] = sha256_hex(dump_json(json));
  EXPECT_THROW((void)receipt_from_line(dump_json(json), "t"), Error);
}

}  // namespace
}  // namespace poros
