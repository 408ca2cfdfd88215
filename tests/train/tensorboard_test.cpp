// SPDX-License-Identifier: Apache-2.0
// The file is read back record by record, by the formats' descriptions.
#include "train/tensorboard.hpp"

#include <cstring>
#include <filesystem>
#include <map>

#include <gtest/gtest.h>

namespace poros {
namespace {

namespace fs = std::filesystem;

template <typename T>
T number_at(const std::string& bytes, std::size_t at) {
  T value{};
  EXPECT_LE(at + sizeof value, bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);  // the tests' machines are little-endian
  return value;
}

std::uint32_t masked(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

std::uint64_t varint(const std::string& bytes, std::size_t& at) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(at++));
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) return value;
  }
}

/// A message as field number -> raw values (bytes of fixed numbers and texts, varints as 8 bytes).
std::multimap<std::uint64_t, std::string> message(const std::string& bytes) {
  std::multimap<std::uint64_t, std::string> fields;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint64_t key = varint(bytes, at);
    std::string value;
    if ((key & 7) == 0) {
      const std::uint64_t number = varint(bytes, at);
      value.assign(reinterpret_cast<const char*>(&number), sizeof number);
    } else {
      const std::size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint(bytes, at);
      value = bytes.substr(at, size);
      at += size;
    }
    fields.emplace(key >> 3, value);
  }
  return fields;
}

std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> found;
  for (std::size_t at = 0; at < file.size();) {
    const auto size = number_at<std::uint64_t>(file, at);
    EXPECT_EQ(number_at<std::uint32_t>(file, at + 8), masked(file.substr(at, 8)));
    found.push_back(file.substr(at + 12, size));
    EXPECT_EQ(number_at<std::uint32_t>(file, at + 12 + size), masked(found.back()));
    at += 16 + size;
  }
  return found;
}

TEST(Tensorboard, Crc32cIsTheOneOfRfc3720) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
}

TEST(Tensorboard, TheFileReadsBack) {
  std::string name = (fs::temp_directory_path() / "poros_tensorboard.XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  {
    TensorboardWriter writer(name);
    writer.scalars(3, {{"train/loss", 2.5}, {"train/learning_rate", 1e-4}});
    writer.scalars(300, {{"eval/loss", -0.125}});
  }
  const fs::path file = fs::directory_iterator(name)->path();
  EXPECT_EQ(file.filename().string().rfind("events.out.tfevents.", 0), 0U);
  const auto found = records(read_file(file));
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(message(found[0]).find(3)->second, "brain.Event:2");
  const auto scalars = [&](std::size_t i, std::int64_t step) {
    const auto event = message(found[i]);
    EXPECT_GT(number_at<double>(event.find(1)->second, 0), 1.7e9);
    EXPECT_EQ(number_at<std::int64_t>(event.find(2)->second, 0), step);
    std::map<std::string, float> values;
    const auto summary = message(event.find(5)->second);
    for (const auto& [field, bytes] : summary) {
      EXPECT_EQ(field, 1U);
      const auto value = message(bytes);
      values[value.find(1)->second] = number_at<float>(value.find(2)->second, 0);
    }
    return values;
  };
  EXPECT_EQ(scalars(1, 3),
            (std::map<std::string, float>{{"train/learning_rate", 1e-4F}, {"train/loss", 2.5F}}));
  EXPECT_EQ(scalars(2, 300), (std::map<std::string, float>{{"eval/loss", -0.125F}}));
  fs::remove_all(name);
}

}  // namespace
}  // namespace poros
