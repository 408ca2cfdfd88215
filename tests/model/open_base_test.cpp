// SPDX-License-Identifier: Apache-2.0
// From a model folder to the slabs that the trainer reads.
#include "model/open_base.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "kernels/nf4.hpp"
#include "model/convert.hpp"
#include "model/safetensors.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> layer_of(const BaseStore& base, std::int64_t layer) {
  std::vector<std::byte> slab(base.layout(layer).bytes);
  base.read_layer(layer, slab.data());
  return slab;
}

/// Values of a tensor of the slab, dequantised where it is NF4.
std::vector<float> values_of(const LayerLayout& layout, const std::string& name,
                             const std::byte* slab) {
  const TensorPlace& t = layout.find(name);
  std::vector<float> values(static_cast<std::size_t>(t.rows * t.cols));
  if (t.storage != Storage::nf4) {
    const TensorType type = t.storage == Storage::fp32   ? TensorType::f32
                            : t.storage == Storage::bf16 ? TensorType::bf16
                                                         : TensorType::f16;
    (void)convert_values(type, slab + t.offset, t.rows * t.cols, Storage::fp32, values.data());
    return values;
  }
  Nf4View view;
  view.codes = reinterpret_cast<const std::uint8_t*>(slab + t.offset);
  if (t.double_quantised) {
    view.q = reinterpret_cast<const std::uint8_t*>(slab + t.absmax_offset);
    view.nested_absmax = reinterpret_cast<const float*>(slab + t.nested_absmax_offset);
    view.offset = t.nested_offset;
  } else {
    view.absmax = reinterpret_cast<const float*>(slab + t.absmax_offset);
  }
  nf4_dequantise_fp32(view, 0, t.rows * t.cols, values.data());
  return values;
}

std::vector<float> checkpoint_values(const Checkpoint& checkpoint, const std::string& name) {
  const Checkpoint::Found found = checkpoint.at(name);
  std::vector<float> values(static_cast<std::size_t>(found.tensor->elements()));
  (void)convert_values(found.tensor->type, found.file->read(*found.tensor).data(),
                       found.tensor->elements(), Storage::fp32, values.data());
  return values;
}

class OpenBase : public testing::TestWithParam<const char*> {};

TEST_P(OpenBase, HoldsEveryTensorOfTheCheckpoint) {
  const test::TemporaryFolder cache;
  const fs::path model = test::golden(GetParam());
  const Checkpoint checkpoint(model);
  for (const char* precision : {"fp32", "bf16", "nf4", "nf4-single"}) {
    const auto base = open_base(model, precision, cache.path());
    const Architecture& a = base->architecture();
    std::set<std::string> seen = {a.embed_name, a.final_norm_name, a.head_name};
    for (std::int64_t layer = 0; layer < a.layer_count(); ++layer) {
      const LayerLayout& layout = base->layout(layer);
      const std::vector<std::byte> slab = layer_of(*base, layer);
      for (const TensorPlace& place : layout.tensors) {
        const std::string name = a.layer_prefix + std::to_string(layer) + "." + place.name;
        ASSERT_TRUE(seen.insert(name).second) << name;
        EXPECT_EQ(place.offset % 256, 0U);
        const std::vector<float> expected = checkpoint_values(checkpoint, name);
        const std::vector<float> found = values_of(layout, place.name, slab.data());
        ASSERT_EQ(found.size(), expected.size()) << name;
        if (place.storage != Storage::nf4) {
          EXPECT_EQ(found, expected) << name;
          continue;
        }
        // Half the widest gap between NF4 values times the block's largest value, and the error of
        // that value's own 8 bits.
        for (std::size_t block = 0; block < found.size(); block += 64) {
          float largest = 0;
          const std::size_t end = std::min(found.size(), block + 64);
          for (std::size_t i = block; i < end; ++i) {
            largest = std::max(largest, std::abs(expected[i]));
          }
          for (std::size_t i = block; i < end; ++i) {
            ASSERT_LE(std::abs(found[i] - expected[i]), 0.2 * largest) << name << " " << i;
          }
        }
      }
    }
    std::set<std::string> all;
    for (const std::string& name : checkpoint.names()) all.insert(name);
    EXPECT_EQ(seen, all) << precision;
    const EndTensor embedding = base->embedding();
    const std::vector<float> expected = checkpoint_values(checkpoint, a.embed_name);
    std::vector<float> found(expected.size());
    const TensorType type = embedding.storage == Storage::fp32 ? TensorType::f32 : TensorType::bf16;
    (void)convert_values(type, embedding.data, static_cast<std::int64_t>(found.size()),
                         Storage::fp32, found.data());
    EXPECT_EQ(found, expected);
    EXPECT_EQ(base->head().data == embedding.data, a.tied_embeddings);
    EXPECT_EQ(base->final_norm().cols, a.hidden);
    EXPECT_TRUE(base->weights().starts_with("pretrained@"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpenBase,
                         testing::Values("arch_llama", "arch_mistral", "arch_qwen2", "arch_qwen3",
                                         "arch_gemma2", "arch_gemma3_text", "arch_phi3",
                                         "arch_qwen3_moe", "arch_mixtral", "llama_bf16"),
                         [](const auto& test) { return fs::path(test.param).filename().string(); });

/// Bytes of a layer without what may differ: nothing. Equal layouts, equal bytes.
void expect_same_layers(const BaseStore& a, const BaseStore& b) {
  for (std::int64_t layer = 0; layer < a.architecture().layer_count(); ++layer) {
    const LayerLayout& x = a.layout(layer);
    const LayerLayout& y = b.layout(layer);
    ASSERT_EQ(x.bytes, y.bytes);
    for (std::size_t t = 0; t < x.tensors.size(); ++t) {
      EXPECT_EQ(x.tensors[t].nested_offset, y.tensors[t].nested_offset) << x.tensors[t].name;
    }
    EXPECT_EQ(layer_of(a, layer), layer_of(b, layer)) << layer;
  }
}

TEST(OpenBaseQuantised, BitsandbytesCheckpointEqualsOwnQuantisation) {
  const test::TemporaryFolder cache;
  const auto own = open_base(test::golden("llama_bf16"), "nf4", cache.path());
  const auto theirs = open_base(test::golden("llama_nf4_dq1"), "nf4", cache.path());
  expect_same_layers(*own, *theirs);
  const auto own_single = open_base(test::golden("llama_bf16"), "nf4-single", cache.path());
  const auto theirs_single = open_base(test::golden("llama_nf4_dq0"), "nf4-single", cache.path());
  expect_same_layers(*own_single, *theirs_single);
  // Asked for as nf4, a checkpoint keeps the scales that it has.
  const auto kept = open_base(test::golden("llama_nf4_dq0"), "nf4", cache.path());
  expect_same_layers(*own_single, *kept);
}

TEST(OpenBaseQuantised, ExpertsThatWereLeftIn16BitStaySo) {
  const test::TemporaryFolder cache;
  for (const char* name : {"nf4_qwen3_moe", "nf4_mixtral"}) {
    const auto base = open_base(test::golden(name), "nf4", cache.path());
    int quantised = 0, plain = 0;
    for (const TensorPlace& place : base->layout(0).tensors) {
      if (place.name.find("experts") != std::string::npos) {
        EXPECT_EQ(place.storage, Storage::bf16) << place.name;
        ++plain;
      } else if (place.name.ends_with("_proj.weight")) {
        EXPECT_EQ(place.storage, Storage::nf4) << place.name;
        ++quantised;
      }
    }
    EXPECT_EQ(quantised, 4);
    EXPECT_EQ(plain, 12);
    layer_of(*base, 1);
  }
}

TEST(OpenBaseQuantised, OtherPrecisionsAreRefused) {
  const test::TemporaryFolder cache;
  EXPECT_THROW(open_base(test::golden("llama_nf4_dq1"), "bf16", cache.path()), Error);
  EXPECT_THROW(open_base(test::golden("llama_nf4_dq1"), "nf4-single", cache.path()), Error);
  EXPECT_THROW(open_base(test::golden("llama_bf16"), "int3", cache.path()), Error);
}

TEST(Cache, SecondStartBuildsNothing) {
  const test::TemporaryFolder cache;
  std::int64_t parts = 0;
  const BuildProgress count = [&](std::int64_t, std::int64_t total) {
    ++parts;
    EXPECT_EQ(total, 5);
  };
  (void)open_base(test::golden("llama_bf16"), "nf4", cache.path(), count);
  EXPECT_EQ(parts, 5);  // two layers, embedding, norm, head
  (void)open_base(test::golden("llama_bf16"), "nf4", cache.path(), count);
  EXPECT_EQ(parts, 5);
  const auto entries = list_cache(cache.path());
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].fault, "");
  EXPECT_EQ(entries[0].precision, "nf4");
  EXPECT_EQ(verify_cache_entry(entries[0].folder), "");
}

fs::path only_entry(const fs::path& cache) {
  const auto entries = list_cache(cache);
  EXPECT_EQ(entries.size(), 1U);
  return entries.at(0).folder;
}

void flip_byte(const fs::path& file, std::int64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(offset);
  const char byte = static_cast<char>(stream.get() ^ 0x40);
  stream.seekp(offset);
  stream.put(byte);
}

TEST(Cache, DamagedPartIsNoticedAndPutRight) {
  const test::TemporaryFolder cache;
  const fs::path model = test::golden("llama_bf16");
  std::vector<std::byte> sound;
  {
    const auto base = open_base(model, "nf4", cache.path());
    sound = layer_of(*base, 1);
  }
  const fs::path entry = only_entry(cache.path());
  const CacheIndex index = read_cache_index(entry);
  flip_byte(entry / "base.bin", static_cast<std::int64_t>(index.layers[1].offset) + 100);
  flip_byte(entry / "base.bin", static_cast<std::int64_t>(index.end_parts[0].offset) + 7);
  EXPECT_NE(verify_cache_entry(entry), "");
  const auto base = open_base(model, "nf4", cache.path());
  EXPECT_EQ(layer_of(*base, 1), sound);
  base->embedding();
  EXPECT_EQ(verify_cache_entry(entry), "");
}

TEST(Cache, DamagedIndexOrShortFileIsBuiltAgain) {
  const test::TemporaryFolder cache;
  const fs::path model = test::golden("llama_bf16");
  (void)open_base(model, "nf4", cache.path());
  const fs::path entry = only_entry(cache.path());
  const auto rebuilt = [&] {
    int parts = 0;
    const auto base =
        open_base(model, "nf4", cache.path(), [&](std::int64_t, std::int64_t) { ++parts; });
    layer_of(*base, 0);
    EXPECT_EQ(only_entry(cache.path()), entry);
    EXPECT_EQ(verify_cache_entry(entry), "");
    return parts > 0;
  };
  flip_byte(entry / "index.json", 300);
  EXPECT_TRUE(rebuilt());
  fs::resize_file(entry / "base.bin", 5000);
  EXPECT_TRUE(rebuilt());
  fs::remove(entry / "index.json");
  EXPECT_TRUE(rebuilt());
  EXPECT_FALSE(rebuilt());
}

TEST(Cache, ChangedCheckpointIsAnotherEntry) {
  const test::TemporaryFolder cache, model;
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy_file(test::golden("llama_bf16") / file, model.path() / file);
  }
  const std::string before = open_base(model.path(), "nf4", cache.path())->weights();
  const auto size = static_cast<std::int64_t>(fs::file_size(model.path() / "model.safetensors"));
  flip_byte(model.path() / "model.safetensors", size - 2);
  const std::string after = open_base(model.path(), "nf4", cache.path())->weights();
  EXPECT_NE(before, after);
  EXPECT_EQ(list_cache(cache.path()).size(), 2U);
}

TEST(Cache, ConcurrentBuildersDoNotCollide) {
  const test::TemporaryFolder cache;
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 1;
      try {
        const auto base = open_base(test::golden("llama_bf16"), "nf4", cache.path());
        layer_of(*base, 1);
        code = 0;
      } catch (const std::exception&) {
      }
      ::_exit(code);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(verify_cache_entry(only_entry(cache.path())), "");
  for (const auto& item : fs::directory_iterator(cache.path())) {
    EXPECT_FALSE(item.path().filename().string().starts_with(".building")) << item.path();
  }
}

TEST(Cache, PruneRemovesWhatIsDamagedOrUnused) {
  const test::TemporaryFolder cache;
  (void)open_base(test::golden("llama_bf16"), "nf4", cache.path());
  (void)open_base(test::golden("llama_bf16"), "bf16", cache.path());
  EXPECT_TRUE(prune_cache(cache.path(), 30).empty());
  fs::path damaged;
  for (const auto& entry : list_cache(cache.path())) {
    if (entry.precision == "bf16") damaged = entry.folder;
  }
  flip_byte(damaged / "index.json", 200);
  const auto removed = prune_cache(cache.path(), 30);
  ASSERT_EQ(removed.size(), 1U);
  EXPECT_EQ(removed[0].folder, damaged);
  EXPECT_FALSE(fs::exists(damaged));
  const fs::path kept = only_entry(cache.path());
  const struct timespec old[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (kept / "index.json").c_str(), old, 0), 0);
  EXPECT_TRUE(prune_cache(cache.path(), -1).empty());
  EXPECT_EQ(prune_cache(cache.path(), 30).size(), 1U);
  EXPECT_TRUE(list_cache(cache.path()).empty());
}

TEST(Cache, ThreadsChangeNoByte) {
  const test::TemporaryFolder one, many;
  BaseRequest request;
  request.model = test::golden("llama_bf16");
  request.cache = one.path();
  request.threads = 1;
  const auto a = open_base(request);
  request.cache = many.path();
  request.threads = 7;
  const auto b = open_base(request);
  expect_same_layers(*a, *b);
}

TEST(Cache, FullOrForbiddenFolderLeavesNothing) {
  if (::geteuid() == 0) {
    // Permissions don't stop the superuser: a file where the folder should be does.
    const test::TemporaryFolder folder;
    const fs::path blocked = folder.path() / "cache";
    write_file_durably(blocked, "not a folder");
    EXPECT_THROW(open_base(test::golden("llama_bf16"), "nf4", blocked), Error);
    return;
  }
  const test::TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THROW(open_base(test::golden("llama_bf16"), "nf4", folder.path()), Error);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Synthetic, IsSeededFiniteAndOfPlausibleScale) {
  const test::TemporaryFolder cache;
  BaseRequest request;
  request.model = test::golden("arch_qwen2") / "config.json";
  request.synthetic = true;
  request.cache = cache.path();
  request.seed = 1;
  const auto first = open_base(request);
  request.threads = 3;
  const test::TemporaryFolder other_cache;
  request.cache = other_cache.path();
  const auto same = open_base(request);
  expect_same_layers(*first, *same);
  request.seed = 2;
  const auto other = open_base(request);
  EXPECT_NE(layer_of(*first, 0), layer_of(*other, 0));
  EXPECT_NE(layer_of(*first, 0), layer_of(*first, 1));
  EXPECT_EQ(first->weights(), "random(1)");
  for (const char* precision : {"nf4", "nf4-single", "bf16", "fp32"}) {
    request.precision = precision;
    const auto base = open_base(request);
    const std::vector<std::byte> slab = layer_of(*base, 0);
    for (const TensorPlace& place : base->layout(0).tensors) {
      const std::vector<float> values = values_of(base->layout(0), place.name, slab.data());
      double sum = 0, squares = 0;
      for (const float v : values) {
        ASSERT_TRUE(std::isfinite(v));
        sum += v;
        squares += static_cast<double>(v) * v;
      }
      const double n = static_cast<double>(values.size());
      const double mean = sum / n, deviation = std::sqrt(squares / n - mean * mean);
      EXPECT_NEAR(mean, place.name.ends_with("norm.weight") ? 1.0 : 0.0, 0.01) << place.name;
      EXPECT_GT(deviation, 0.012) << precision << " " << place.name;
      EXPECT_LT(deviation, 0.026) << precision << " " << place.name;
    }
  }
}

}  // namespace
}  // namespace poros
