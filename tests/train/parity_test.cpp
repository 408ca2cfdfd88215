// SPDX-License-Identifier: Apache-2.0
// Parity: what one step's hashes and dumps say, and that a single flipped bit is found in its
// place.
#include "receipts/parity.hpp"

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/sha256.hpp"
#include "model/safetensors.hpp"
#include "train/dump.hpp"
#include "train/parity_hash.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

const char* const kNameA = "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight";
const char* const kNameB = "base_model.model.model.layers.10.self_attn.q_proj.lora_A.weight";

/// Two tensors with padding between them.
struct Buffers {
  std::vector<float> master = std::vector<float>(32), gradient = master, exp_avg = master,
                     exp_avg_sq = master;

  Buffers() {
    for (std::size_t i = 0; i < master.size(); ++i) {
      const auto value = static_cast<float>(i) + 1.0F;
      master[i] = value / 8;
      gradient[i] = -value / 16;
      exp_avg[i] = value / 1024;
      exp_avg_sq[i] = value * value;
    }
  }
  FlatParameters flat() {
    FlatParameters parameters{
        master.data(), gradient.data(), exp_avg.data(), exp_avg_sq.data(), {}};
    parameters.views = {{kNameB, 3, 4, 16}, {kNameA, 2, 3, 0}};
    return parameters;
  }
  StepHashes hashes(float loss = 2.5F, float norm = 0.5F) {
    return {parity_hash({&loss, 1}), parity_hash({&norm, 1}), parity_hashes(flat())};
  }
};

void flip_lowest_bit(float& value) {
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1U);
}

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "poros_parity.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_errno(Fault::io, name);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

TEST(ParityHash, IsTheBeginningOfTheSha256OfTheBytes) {
  const float values[] = {1.0F, -2.0F};
  // python3 -c "import hashlib,struct; print(hashlib.sha256(struct.pack('<2f',1,-2)).hexdigest())"
  EXPECT_EQ(parity_hash(values), "ee4ac73c2bd27756ab82780f27c73a7b");
  const float zero = 0.0F, negative_zero = -0.0F;
  EXPECT_NE(parity_hash({&zero, 1}), parity_hash({&negative_zero, 1}));
}

TEST(ParityHash, CoversEachTensorOfEachKindWithoutPadding) {
  Buffers buffers;
  const StepHashes before = buffers.hashes();
  for (const char* kind : kParityKinds) {
    ASSERT_EQ(before.tensors.at(kind).size(), 2U) << kind;
  }
  buffers.gradient[6] = 99;  // padding between the two tensors
  EXPECT_EQ(buffers.hashes().tensors, before.tensors);
  buffers.gradient[5] = 99;  // last element of the first tensor
  EXPECT_NE(buffers.hashes().tensors, before.tensors);
}

TEST(CompareHashes, EqualArms) {
  Buffers buffers;
  const std::vector<StepHashes> arm(3, buffers.hashes());
  const HashComparison result = compare_hashes(arm, arm);
  EXPECT_TRUE(result.equal);
  EXPECT_FALSE(result.first.has_value());
  EXPECT_EQ(result.steps, 3);
  EXPECT_EQ(result.hashes, 3 * (2 + 4 * 2));
}

TEST(CompareHashes, FindsOneFlippedBitOfOneGradient) {
  Buffers buffers;
  std::vector<StepHashes> a(3, buffers.hashes()), b = a;
  Buffers flipped;
  flip_lowest_bit(flipped.gradient[16 + 7]);
  flip_lowest_bit(flipped.master[16 + 7]);
  flip_lowest_bit(flipped.exp_avg[0]);
  b[1] = flipped.hashes();
  const HashComparison result = compare_hashes(a, b);
  EXPECT_FALSE(result.equal);
  ASSERT_TRUE(result.first.has_value());
  EXPECT_EQ(result.first->step, 2);
  EXPECT_EQ(result.first->kind, "gradient") << "the cause, not what follows from it";
  EXPECT_EQ(result.first->tensor, kNameB);
  EXPECT_EQ(result.first->hash_a, a[1].tensors.at("gradient").at(kNameB));
  EXPECT_EQ(result.first->hash_b, b[1].tensors.at("gradient").at(kNameB));
  EXPECT_EQ(result.steps, 1);
}

TEST(CompareHashes, OrderWithinAStepIsThatOfCauseAndEffect) {
  Buffers buffers;
  const std::vector<StepHashes> a(1, buffers.hashes(2.5F, 0.5F));
  const auto first_kind = [&](const StepHashes& other) {
    return compare_hashes(a, {other}).first->kind;
  };
  EXPECT_EQ(first_kind(buffers.hashes(2.25F, 0.25F)), "loss");
  EXPECT_EQ(first_kind(buffers.hashes(2.5F, 0.25F)), "grad_norm");
  Buffers moments;
  flip_lowest_bit(moments.exp_avg_sq[1]);
  flip_lowest_bit(moments.master[1]);
  EXPECT_EQ(first_kind(moments.hashes()), "exp_avg_sq");
}

TEST(CompareHashes, TensorsAreOrderedByLayerNumber) {
  Buffers buffers, other;
  flip_lowest_bit(other.gradient[0]);   // layer 2
  flip_lowest_bit(other.gradient[16]);  // layer 10
  EXPECT_EQ(compare_hashes({buffers.hashes()}, {other.hashes()}).first->tensor, kNameA);
}

TEST(CompareHashes, MissingTensorsAndStepsAreDifferences) {
  Buffers buffers;
  const StepHashes full = buffers.hashes();
  StepHashes partial = full;
  partial.tensors["weight"].erase(kNameA);
  HashComparison result = compare_hashes({full}, {partial});
  ASSERT_FALSE(result.equal);
  EXPECT_EQ(result.first->kind, "weight");
  EXPECT_EQ(result.first->hash_b, "");
  result = compare_hashes({partial}, {full});
  ASSERT_FALSE(result.equal);
  EXPECT_EQ(result.first->hash_a, "");
  result = compare_hashes({full, full}, {full});
  ASSERT_FALSE(result.equal);
  EXPECT_EQ(result.first->kind, "steps");
  EXPECT_EQ(result.first->step, 2);
}

TEST(CompareHashes, NothingMeasuredIsNotEquality) {
  Buffers buffers;
  EXPECT_THROW(compare_hashes({}, {}), Error);
  EXPECT_THROW(compare_hashes({buffers.hashes()}, {}), Error);
  StepHashes no_moments = buffers.hashes();
  no_moments.tensors.erase("exp_avg");
  EXPECT_THROW(compare_hashes({no_moments}, {no_moments}), Error);
  EXPECT_THROW(compare_hashes({StepHashes{}}, {StepHashes{}}), Error);
}

TEST(CompareDumps, EqualDumpsDifferByNothing) {
  Folder a, b;
  Buffers buffers;
  dump_step(a.path, buffers.flat(), 2.5F, 0.5F);
  dump_step(b.path, buffers.flat(), 2.5F, 0.5F);
  const auto result = compare_dumps(a.path, b.path);
  ASSERT_EQ(result.size(), 6U);
  for (const auto& [kind, difference] : result) {
    EXPECT_EQ(difference.max_abs, 0.0) << kind;
    EXPECT_EQ(difference.unequal, 0) << kind;
    EXPECT_EQ(difference.tensor, "") << kind;
    EXPECT_EQ(difference.elements, kind == "loss" || kind == "grad_norm" ? 1 : 6 + 12) << kind;
  }
}

TEST(CompareDumps, SayHowMuchAndWhere) {
  Folder a, b;
  Buffers buffers, other;
  other.exp_avg[16 + 11] += 0.25F;
  other.exp_avg[2] -= 0.125F;
  flip_lowest_bit(other.gradient[4]);
  dump_step(a.path, buffers.flat(), 2.5F, 0.5F);
  dump_step(b.path, other.flat(), 2.75F, 0.5F);
  const auto result = compare_dumps(a.path, b.path);
  const DumpDifference& moment = result.at("exp_avg");
  EXPECT_EQ(moment.max_abs, 0.25);
  EXPECT_EQ(moment.tensor, kNameB);
  EXPECT_EQ(moment.index, 11);
  EXPECT_EQ(moment.a, buffers.exp_avg[27]);
  EXPECT_EQ(moment.b, other.exp_avg[27]);
  EXPECT_EQ(moment.unequal, 2);
  const DumpDifference& gradient = result.at("gradient");
  EXPECT_EQ(gradient.tensor, kNameA);
  EXPECT_EQ(gradient.index, 4);
  EXPECT_EQ(gradient.max_abs, std::abs(buffers.gradient[4] - other.gradient[4]));
  EXPECT_EQ(gradient.unequal, 1);
  EXPECT_EQ(result.at("loss").max_abs, 0.25);
  EXPECT_EQ(result.at("grad_norm").max_abs, 0.0);
  EXPECT_EQ(result.at("weight").unequal, 0);
}

TEST(CompareDumps, NotANumberIsAnInfiniteDifference) {
  Folder a, b;
  Buffers buffers, other;
  other.master[3] = std::numeric_limits<float>::quiet_NaN();
  other.master[4] += 1.0F;
  dump_step(a.path, buffers.flat(), 2.5F, 0.5F);
  dump_step(b.path, other.flat(), 2.5F, 0.5F);
  const DumpDifference weight = compare_dumps(a.path, b.path).at("weight");
  EXPECT_EQ(weight.max_abs, std::numeric_limits<double>::infinity());
  EXPECT_EQ(weight.index, 3);
}

TEST(CompareDumps, RefuseFoldersThatDoNotFit) {
  Folder a, b;
  Buffers buffers;
  dump_step(a.path, buffers.flat(), 2.5F, 0.5F);
  EXPECT_THROW(static_cast<void>(compare_dumps(a.path, b.path)), Error) << "an empty folder";
  FlatParameters fewer = buffers.flat();
  fewer.views.pop_back();
  dump_step(b.path, fewer, 2.5F, 0.5F);
  EXPECT_THROW(static_cast<void>(compare_dumps(a.path, b.path)), Error) << "a tensor is missing";
  EXPECT_THROW(static_cast<void>(compare_dumps(b.path, a.path)), Error) << "a tensor is left over";
  FlatParameters turned = buffers.flat();
  std::swap(turned.views[0].rows, turned.views[0].cols);
  dump_step(b.path, turned, 2.5F, 0.5F);
  EXPECT_THROW(static_cast<void>(compare_dumps(a.path, b.path)), Error) << "another shape";
}

}  // namespace
}  // namespace poros
