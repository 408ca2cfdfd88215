// SPDX-License-Identifier: Apache-2.0
// Adapters merged into their models. That transformers computes the same with the result is shown
// by tests/peft/merge_export_test.py.
#include "model/merge.hpp"

#include <cmath>
#include <cstring>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "kernels/dtype.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "model/convert.hpp"
#include "model/safetensors.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

std::vector<float> values(const fs::path& folder, const std::string& name) {
  const Checkpoint checkpoint(folder);
  const Checkpoint::Found found = checkpoint.at(name);
  const std::string raw = found.file->read(*found.tensor);
  std::vector<float> all(static_cast<std::size_t>(found.tensor->elements()));
  EXPECT_TRUE(convert_values(found.tensor->type, raw.data(), found.tensor->elements(),
                             Storage::fp32, all.data()));
  return all;
}

std::string bytes(const fs::path& folder, const std::string& name) {
  const Checkpoint checkpoint(folder);
  const Checkpoint::Found found = checkpoint.at(name);
  return found.file->read(*found.tensor);
}

class Merge : public testing::Test {
 protected:
  /// An adapter with random B for a golden.
  void make_adapter(const std::string& model, LoraSpec lora) {
    options_.model_dir = test::golden(model);
    options_.adapter_dir = folder_.path() / "adapter";
    options_.out_dir = folder_.path() / "out";
    options_.cache_dir = folder_.path() / "cache";
    options_.threads = 2;
    const Architecture architecture = read_architecture(read_model_config(options_.model_dir));
    adapter_ = initial_adapter(architecture, lora, "test", 5);
    float value = 0;
    for (LoraWeights& weights : adapter_.weights) {
      for (float& b : weights.b) b = 0.1F * std::sin(value += 0.7F);
    }
    fs::create_directories(options_.adapter_dir);
    write_adapter(options_.adapter_dir, adapter_);
  }

  /// W + scale * B A in double precision.
  [[nodiscard]] double expected(const std::vector<float>& w, std::size_t place, std::int64_t row,
                                std::int64_t column) const {
    const LoraPlace& p = adapter_.places[place];
    double sum = 0;
    for (std::int64_t k = 0; k < p.rank; ++k) {
      sum += static_cast<double>(
                 adapter_.weights[place].b[static_cast<std::size_t>(row * p.rank + k)]) *
             adapter_.weights[place].a[static_cast<std::size_t>(k * p.in + column)];
    }
    return w[static_cast<std::size_t>(row * p.in + column)] + p.scale * sum;
  }

  void expect_merged(const std::vector<float>& w, std::size_t place, double tolerance) {
    const LoraPlace& p = adapter_.places[place];
    const std::string name = "model.layers." + std::to_string(p.layer) + "." + p.linear + ".weight";
    const std::vector<float> got = values(options_.out_dir, name);
    ASSERT_EQ(got.size(), static_cast<std::size_t>(p.in * p.out)) << name;
    double moved = 0;
    for (std::int64_t row = 0; row < p.out; ++row) {
      for (std::int64_t column = 0; column < p.in; ++column) {
        const auto i = static_cast<std::size_t>(row * p.in + column);
        const double wanted = expected(w, place, row, column);
        ASSERT_NEAR(got[i], wanted, tolerance * std::abs(wanted) + 1e-7) << name << " " << i;
        moved = std::max(moved, std::abs(wanted - static_cast<double>(w[i])));
      }
    }
    EXPECT_GT(moved, 0.01) << name;
  }

  test::TemporaryFolder folder_;
  MergeOptions options_;
  Adapter adapter_;
};

LoraSpec patterned() {
  LoraSpec lora;
  lora.rank = 4;
  lora.alpha = 12;
  lora.use_rslora = true;
  lora.target_modules = {"q_proj", "down_proj"};
  lora.rank_pattern = {{"down_proj", 7}};
  lora.alpha_pattern = {{"layers.1.self_attn.q_proj", 3}};
  return lora;
}

TEST_F(Merge, InFp32EqualsTheSum) {
  make_adapter("llama_bf16", patterned());
  options_.dtype = "fp32";
  const MergeReport report = merge_adapter(options_);
  EXPECT_EQ(report.merged, 4);
  EXPECT_EQ(report.tensors, 21);
  EXPECT_EQ(report.dequantised, 0);
  EXPECT_EQ(report.shards, 1);
  for (std::size_t place = 0; place < adapter_.places.size(); ++place) {
    const LoraPlace& p = adapter_.places[place];
    const std::vector<float> w = values(
        options_.model_dir, "model.layers." + std::to_string(p.layer) + "." + p.linear + ".weight");
    expect_merged(w, place, 1e-6);
  }
  EXPECT_EQ(values(options_.out_dir, "model.norm.weight"),
            values(options_.model_dir, "model.norm.weight"));
  EXPECT_EQ(read_model_config(options_.out_dir).json().at("dtype"), "float32");
}

TEST_F(Merge, KeepsTypeNamesAndAllOtherBytes) {
  make_adapter("llama_bf16", patterned());
  static_cast<void>(merge_adapter(options_));
  const Checkpoint before(options_.model_dir), after(options_.out_dir);
  EXPECT_EQ(before.names(), after.names());
  int changed = 0;
  for (const std::string& name : before.names()) {
    EXPECT_EQ(after.at(name).tensor->type, TensorType::bf16) << name;
    EXPECT_EQ(after.at(name).tensor->shape, before.at(name).tensor->shape) << name;
    changed += bytes(options_.model_dir, name) != bytes(options_.out_dir, name) ? 1 : 0;
  }
  EXPECT_EQ(changed, 4);
  EXPECT_EQ(read_model_config(options_.out_dir).json(),
            read_model_config(options_.model_dir).json());
  const LoraPlace& p = adapter_.places[0];
  const std::vector<float> w = values(
      options_.model_dir, "model.layers." + std::to_string(p.layer) + "." + p.linear + ".weight");
  expect_merged(w, 0, 1.0 / 256);  // half a unit of bf16's last place is 2^-9
}

TEST_F(Merge, ThreadsChangeNoByte) {
  make_adapter("arch_phi3", LoraSpec{});  // fused projections
  static_cast<void>(merge_adapter(options_));
  const std::string one = read_file(options_.out_dir / "model.safetensors");
  options_.threads = 5;
  options_.out_dir = folder_.path() / "again";
  static_cast<void>(merge_adapter(options_));
  EXPECT_TRUE(one == read_file(options_.out_dir / "model.safetensors"));
}

TEST_F(Merge, DequantisesAnNf4CheckpointFirst) {
  make_adapter("llama_nf4_dq1", patterned());
  options_.dtype = "fp32";
  const MergeReport report = merge_adapter(options_);
  EXPECT_EQ(report.dequantised, 14);
  EXPECT_FALSE(read_model_config(options_.out_dir).json().contains("quantization_config"));
  EXPECT_EQ(Checkpoint(options_.out_dir).names(), Checkpoint(test::golden("llama_bf16")).names());
  // The same values as the 16-bit checkpoint gives when it is quantised on the way.
  const fs::path first = options_.out_dir;
  options_.model_dir = test::golden("llama_bf16");
  options_.base = "nf4";
  options_.out_dir = folder_.path() / "again";
  EXPECT_EQ(merge_adapter(options_).dequantised, 14);
  for (const std::string& name : Checkpoint(first).names()) {
    EXPECT_EQ(values(first, name), values(options_.out_dir, name)) << name;
  }
  // And not those of the 16-bit checkpoint itself.
  const std::string plain = "model.layers.0.self_attn.v_proj.weight";
  EXPECT_NE(values(first, plain), values(options_.model_dir, plain));
}

TEST_F(Merge, ShardsHoldEachTensorOnce) {
  make_adapter("arch_mixtral", LoraSpec{});
  options_.max_shard_bytes = 50'000;
  const MergeReport report = merge_adapter(options_);
  EXPECT_GT(report.shards, 3);
  const fs::path index = options_.out_dir / "model.safetensors.index.json";
  const Json json = parse_json(read_file(index), index.string());
  EXPECT_EQ(json.at("metadata").at("total_size").get<std::uint64_t>(), report.bytes);
  EXPECT_EQ(static_cast<std::int64_t>(json.at("weight_map").size()), report.tensors);
  const Checkpoint checkpoint(options_.out_dir);  // checks the index against the files
  EXPECT_EQ(checkpoint.names(), Checkpoint(options_.model_dir).names());
  for (const auto& file : checkpoint.files()) {
    std::uint64_t held = 0;
    for (const auto& [name, tensor] : file->tensors()) held += tensor.bytes;
    EXPECT_TRUE(held <= options_.max_shard_bytes || file->tensors().size() == 1) << file->path();
  }
}

TEST_F(Merge, CopiesTheTokenizerAndNothingElse) {
  make_adapter("llama_bf16", patterned());
  const fs::path model = folder_.path() / "model";
  fs::copy(options_.model_dir, model);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                           "generation_config.json", "README.md", "optimizer.pt", "LICENSE"}) {
    write_file_durably(model / name, name);
  }
  options_.model_dir = model;
  static_cast<void>(merge_adapter(options_));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                           "generation_config.json", "LICENSE"}) {
    EXPECT_EQ(read_file(options_.out_dir / name), name);
  }
  EXPECT_FALSE(fs::exists(options_.out_dir / "README.md"));
  EXPECT_FALSE(fs::exists(options_.out_dir / "optimizer.pt"));
}

TEST_F(Merge, RemovesWhatAKilledOneLeft) {
  make_adapter("llama_bf16", patterned());
  const fs::path abandoned = folder_.path() / ".out.making-abcdef";
  const fs::path in_use = folder_.path() / ".out.making-ghijkl";
  const fs::path other = folder_.path() / ".out2.making-abcdef";
  for (const fs::path& folder : {abandoned, in_use, other}) {
    fs::create_directory(folder);
    write_file_durably(folder / "model.safetensors", "x");
  }
  const int held = ::open(in_use.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  static_cast<void>(merge_adapter(options_));
  ::close(held);
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(in_use));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::exists(options_.out_dir / "model.safetensors"));
}

TEST_F(Merge, LeavesNothingBehindWhenItFails) {
  make_adapter("llama_bf16", patterned());
  const auto refused = [&](const std::string& part) {
    try {
      static_cast<void>(merge_adapter(options_));
      ADD_FAILURE() << "was not refused: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_FALSE(fs::exists(options_.out_dir));
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      EXPECT_EQ(entry.path().string().find("making"), std::string::npos) << entry.path();
    }
  };
  options_.dtype = "int8";
  refused("expected bf16, fp16 or fp32");
  options_.dtype = "fp16";
  for (LoraWeights& weights : adapter_.weights) weights.b.assign(weights.b.size(), 3e6F);
  write_adapter(options_.adapter_dir, adapter_);
  refused("too large for fp16");
  options_.model_dir = test::golden("arch_qwen3");
  refused("lora_A");
}

}  // namespace
}  // namespace poros
