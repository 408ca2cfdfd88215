// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.hpp"

#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

TensorToWrite tensor(const std::string& name, TensorType type, std::vector<std::int64_t> shape,
                     std::string content) {
  TensorToWrite t;
  t.name = name;
  t.type = type;
  t.shape = std::move(shape);
  t.write = [content = std::move(content)](const TensorToWrite::Sink& put) {
    const std::size_t half = content.size() / 2;  // in two pieces
    put(content.data(), half);
    put(content.data() + half, content.size() - half);
  };
  return t;
}

TEST(Safetensors, WrittenFileIsReadBack) {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "x.safetensors";
  std::string bytes(24, '\0');
  std::iota(bytes.begin(), bytes.end(), 0);
  const std::string sha256 = write_safetensors(
      path, {tensor("b", TensorType::u8, {3}, "abc"), tensor("a", TensorType::f32, {2, 3}, bytes),
             tensor("c", TensorType::bf16, {}, "xy"), tensor("none", TensorType::f32, {0, 7}, "")});
  EXPECT_EQ(sha256, sha256_file(path));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().size(), 4U);
  const TensorInfo& a = file.tensors().at("a");
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(a.offset % 8, 0U);  // wide types first, from a multiple of 8
  EXPECT_EQ(file.read(a), bytes);
  EXPECT_EQ(file.read(file.tensors().at("b")), "abc");
  EXPECT_EQ(file.read(file.tensors().at("c")), "xy");
  EXPECT_EQ(file.tensors().at("none").elements(), 0);
  std::string part(4, '\0');
  file.read(a, 8, 4, part.data());
  EXPECT_EQ(part, bytes.substr(8, 4));
  EXPECT_THROW(file.read(a, 22, 4, part.data()), Error);
}

TEST(Safetensors, ReferenceWritersFileIsWrittenAgainByteForByte) {
  const test::TemporaryFolder folder;
  const SafetensorsFile source(test::golden("peft_llama_mts") / "adapter_model.safetensors");
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, info] : source.tensors()) {
    tensors.push_back(tensor(name, info.type, info.shape, source.read(info)));
  }
  write_safetensors(folder.path() / "copy", std::move(tensors));
  EXPECT_EQ(read_file(folder.path() / "copy"), read_file(source.path()));
}

TEST(Safetensors, WrongSizeLeavesNoFile) {
  const test::TemporaryFolder folder;
  EXPECT_THROW(write_safetensors(folder.path() / "x", {tensor("a", TensorType::f32, {4}, "short")}),
               Error);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Safetensors, FileThatShrinksGivesAnError) {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "x";
  write_safetensors(path, {tensor("a", TensorType::u8, {100000}, std::string(100000, 'x'))});
  const SafetensorsFile file(path);
  fs::resize_file(path, 5000);
  try {
    (void)file.read(file.tensors().at("a"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::io);
    EXPECT_NE(std::string(error.what()).find("truncated"), std::string::npos);
  }
}

TEST(Safetensors, NullMetadataIsTolerated) {
  const test::TemporaryFolder folder;
  const std::string header = R"({"__metadata__":null})";
  std::string content(8, '\0');
  content[0] = static_cast<char>(header.size());
  write_file_durably(folder.path() / "x", content + header);
  EXPECT_TRUE(SafetensorsFile(folder.path() / "x").tensors().empty());
}

TEST(Safetensors, PipesAndFoldersAreRefused) {
  const test::TemporaryFolder folder;
  EXPECT_THROW(SafetensorsFile(folder.path()), Error);
  EXPECT_THROW(SafetensorsFile("/dev/null"), Error);
  EXPECT_THROW(SafetensorsFile(folder.path() / "none"), Error);
}

/// A folder with two shards and an index.
class Sharded : public testing::Test {
 protected:
  Sharded() {
    write_safetensors(folder_.path() / "a.safetensors", {tensor("x", TensorType::u8, {2}, "xx"),
                                                         tensor("y", TensorType::u8, {1}, "y")});
    write_safetensors(folder_.path() / "b.safetensors", {tensor("z", TensorType::u8, {3}, "zzz")});
    index({{"x", "a.safetensors"}, {"y", "a.safetensors"}, {"z", "b.safetensors"}});
  }
  void index(const Json& map) {
    write_file_durably(folder_.path() / "model.safetensors.index.json",
                       dump_json({{"metadata", {{"total_size", 6}}}, {"weight_map", map}}));
  }
  void expect_refused(const std::string& reason) {
    try {
      const Checkpoint checkpoint(folder_.path());
      FAIL() << "accepted; expected: " << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::input) << error.what();
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  }
  test::TemporaryFolder folder_;
};

TEST_F(Sharded, TensorsOfAllShardsAreFound) {
  const Checkpoint checkpoint(folder_.path());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"x", "y", "z"}));
  EXPECT_EQ(checkpoint.files().size(), 2U);
  const auto z = checkpoint.at("z");
  EXPECT_EQ(z.file->read(*z.tensor), "zzz");
  EXPECT_FALSE(checkpoint.find("w"));
  EXPECT_THROW((void)checkpoint.at("w"), Error);
}

TEST_F(Sharded, WrongIndexesAreRefused) {
  index({{"x", "../a.safetensors"}});
  expect_refused("..");
  index({{"x", "/etc/passwd"}});
  expect_refused("passwd");
  index({{"x", "a.safetensors"}, {"z", "b.safetensors"}});
  expect_refused("\"y\" is not listed");
  index({{"x", "a.safetensors"}, {"y", "b.safetensors"}, {"z", "b.safetensors"}});
  expect_refused("is not listed for this file");
  index({{"x", "a.safetensors"}, {"y", "a.safetensors"}, {"w", "a.safetensors"}});
  expect_refused("listed in a.safetensors but not there");
  index({{"x", "c.safetensors"}});
  expect_refused("c.safetensors");
  index({{"x", 5}});
  expect_refused("is no file");
  index(Json::object());
  expect_refused("empty");
  index(Json::array());
  expect_refused("no weight_map");
  fs::remove(folder_.path() / "model.safetensors.index.json");
  expect_refused("neither model.safetensors");
}

}  // namespace
}  // namespace poros
