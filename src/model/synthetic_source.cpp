// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "kernels/nf4.hpp"
#include "kernels/philox.hpp"
#include "model/base_source.hpp"
#include "model/workers.hpp"

namespace poros {
namespace {

constexpr float kDeviation = 0.02F;       // of weights: Hugging Face's usual initializer_range
constexpr std::int64_t kPiece = 1 << 20;  // values or bytes a task makes

/// Which random numbers: counter {index low, index high, layer, tensor << 2 | what}.
struct Draws {
  PhiloxKey key;
  std::uint32_t layer, tensor;
  [[nodiscard]] PhiloxCounter words(std::int64_t index, std::uint32_t what) const {
    const auto i = static_cast<std::uint64_t>(index);
    return philox4x32_10({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), layer,
                          tensor << 2 | what},
                         key);
  }
};

/// Uniform in (-1, 1), from 24 bits.
float uniform(std::uint32_t word) {
  return (static_cast<float>(word >> 8) + 0.5F) * 0x1p-23F - 1.0F;
}

void put(Storage storage, std::byte* at, std::int64_t i, float value) {
  if (storage == Storage::fp32) {
    std::memcpy(at + i * 4, &value, 4);
  } else if (storage == Storage::bf16) {
    const Bf16 bits = to_bf16(value);
    std::memcpy(at + i * 2, &bits, 2);
  } else {
    const F16 bits = to_f16(value);
    std::memcpy(at + i * 2, &bits, 2);
  }
}

class SyntheticSource final : public BaseSource {
 public:
  SyntheticSource(Architecture architecture, Precision precision, std::uint64_t seed, int threads)
      : architecture_(std::move(architecture)),
        precision_(std::move(precision)),
        seed_(seed),
        threads_(threads) {
    other_ = precision_.linears == Storage::nf4 ? Storage::bf16 : precision_.linears;
    if (other_ == Storage::bf16) {
      architecture_.embed_scale = rounded_to<Bf16>(architecture_.embed_scale);
    } else if (other_ == Storage::fp16) {
      architecture_.embed_scale = rounded_to<F16>(architecture_.embed_scale);
    }
  }

  const Architecture& architecture() const override { return architecture_; }
  const Precision& precision() const override { return precision_; }
  std::string weights() const override { return fmt::format("random({})", seed_); }

  std::string identity() const override {
    Sha256 shape;
    for (const End end : {End::embedding, End::head}) describe(shape, end_place(end));
    for (std::int64_t layer = 0; layer < architecture_.layer_count(); ++layer) {
      shape.update("layer\n");
      for (const TensorPlace& place : layout(layer).tensors) describe(shape, place);
    }
    shape.update(architecture_.norm_plus_one ? "1 + w" : "w");
    return weights() + " " + shape.hex();
  }

  LayerLayout layout(std::int64_t layer) const override {
    return lay_out(layer_tensors(architecture_, layer, precision_, other_));
  }

  void build_layer(std::int64_t layer, LayerLayout& layout, std::byte* slab) const override {
    std::memset(slab, 0, layout.bytes);
    for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
      TensorPlace& place = layout.tensors[t];
      const Draws random = draws(static_cast<std::uint32_t>(layer), t);
      if (place.storage == Storage::nf4) {
        fill_nf4(random, place, slab);
      } else {
        fill_values(random, place, 0, place.rows * place.cols, slab + place.offset);
      }
    }
  }

  TensorPlace end_place(End end) const override {
    TensorPlace place;
    place.name = end == End::embedding    ? architecture_.embed_name
                 : end == End::final_norm ? architecture_.final_norm_name
                                          : architecture_.head_name;
    place.storage = other_;
    place.rows = end == End::final_norm ? 1 : architecture_.vocab;
    place.cols = architecture_.hidden;
    place.double_quantised = false;
    return place;
  }

  void build_end(End end, std::int64_t begin, std::int64_t count, std::byte* into) const override {
    fill_values(draws(~std::uint32_t{0}, static_cast<std::size_t>(end)), end_place(end), begin,
                count, into);
  }

 private:
  static void describe(Sha256& hash, const TensorPlace& place) {
    hash.update(
        fmt::format("{} {} {} {}\n", place.name, name_of(place.storage), place.rows, place.cols));
  }

  Draws draws(std::uint32_t layer, std::size_t tensor) const {
    return {{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)},
            layer,
            static_cast<std::uint32_t>(tensor)};
  }

  /// Values [begin, begin + count): norms near 1 (gemma: near 0), all else uniform around 0.
  void fill_values(const Draws& random, const TensorPlace& place, std::int64_t begin,
                   std::int64_t count, std::byte* into) const {
    const bool norm = place.name.ends_with("norm.weight");
    const float centre = norm && !architecture_.norm_plus_one ? 1.0F : 0.0F;
    const float width = kDeviation * std::sqrt(3.0F);
    run_tasks((count + kPiece - 1) / kPiece, threads_, [&](std::int64_t task) {
      const std::int64_t end = std::min(count, (task + 1) * kPiece);
      PhiloxCounter words{};
      for (std::int64_t i = task * kPiece; i < end; ++i) {
        const std::int64_t at = begin + i;
        if (i == task * kPiece || at % 4 == 0) words = random.words(at / 4, 0);
        put(place.storage, into, i,
            centre + width * uniform(words[static_cast<std::size_t>(at % 4)]));
      }
    });
  }

  /// Codes are uniform, as NF4's are for normally distributed weights; block scales lie between
  /// 0.03 and 0.05, which gives values of standard deviation near kDeviation.
  void fill_nf4(const Draws& random, TensorPlace& place, std::byte* slab) const {
    const std::int64_t n = place.rows * place.cols, bytes = nf4_code_bytes(n);
    run_tasks((bytes + kPiece - 1) / kPiece, threads_, [&](std::int64_t task) {
      const std::int64_t end = std::min(bytes, (task + 1) * kPiece);
      for (std::int64_t i = task * kPiece; i < end; i += 16) {
        const PhiloxCounter words = random.words(i / 16, 1);
        std::memcpy(slab + place.offset + i, words.data(),
                    static_cast<std::size_t>(std::min<std::int64_t>(16, end - i)));
      }
    });
    constexpr float kScale = 0.04F, kSpread = 0.01F;
    const std::int64_t blocks = nf4_blocks(n);
    std::byte* scales = slab + place.absmax_offset;
    if (!place.double_quantised) {
      for (std::int64_t i = 0; i < blocks; ++i) {
        const float u = uniform(random.words(i, 2)[0]);
        const float scale = kScale + kSpread * u;
        std::memcpy(scales + i * 4, &scale, 4);
      }
      return;
    }
    for (std::int64_t i = 0; i < blocks; i += 16) {
      const PhiloxCounter words = random.words(i / 16, 2);
      std::memcpy(scales + i, words.data(),
                  static_cast<std::size_t>(std::min<std::int64_t>(16, blocks - i)));
    }
    for (std::int64_t i = 0; i < nf4_nested_blocks(n); ++i) {
      std::memcpy(slab + place.nested_absmax_offset + i * 4, &kSpread, 4);
    }
    place.nested_offset = kScale;
  }

  Architecture architecture_;
  Precision precision_;
  std::uint64_t seed_;
  int threads_;
  Storage other_ = Storage::bf16;
};

}  // namespace

std::unique_ptr<BaseSource> synthetic_source(const Architecture& architecture,
                                             const Precision& precision, std::uint64_t seed,
                                             int threads) {
  return std::make_unique<SyntheticSource>(architecture, precision, seed, threads);
}

}  // namespace poros
