// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "kernels/nf4.hpp"
#include "model/architectures.hpp"
#include "model/base_source.hpp"
#include "model/bnb_state.hpp"
#include "model/convert.hpp"
#include "model/workers.hpp"

namespace poros {
namespace {

// Values a task reads and converts at once: whole blocks and nested blocks, and small enough that
// all threads' buffers together stay far below a layer.
constexpr std::int64_t kChunk = std::int64_t{1} << 20;
static_assert(kChunk % (kNf4Block * kNf4NestedBlock) == 0);

std::string where(const Checkpoint::Found& found) {
  return fmt::format("{}: tensor \"{}\"", found.file->path().string(), found.tensor->name);
}

class CheckpointSource final : public BaseSource {
 public:
  CheckpointSource(Architecture architecture, const ModelConfig& config,
                   std::shared_ptr<const Checkpoint> checkpoint, Precision precision,
                   std::string digest, int threads)
      : architecture_(std::move(architecture)),
        checkpoint_(std::move(checkpoint)),
        precision_(std::move(precision)),
        digest_(std::move(digest)),
        threads_(threads),
        quantised_(is_bnb_nf4(config)) {
    match_names(architecture_, *checkpoint_);
    if (quantised_ && precision_.linears != Storage::nf4) {
      fail(Fault::input,
           "{}: the checkpoint is quantised to NF4; precision {} needs the 16-bit checkpoint",
           config.origin(), precision_.name);
    }
    const Checkpoint::Found embedding = checkpoint_->at(architecture_.embed_name);
    other_ = precision_.linears != Storage::nf4          ? precision_.linears
             : embedding.tensor->type == TensorType::f16 ? Storage::fp16
                                                         : Storage::bf16;
    if (other_ == Storage::bf16) {
      architecture_.embed_scale = rounded_to<Bf16>(architecture_.embed_scale);
    } else if (other_ == Storage::fp16) {
      architecture_.embed_scale = rounded_to<F16>(architecture_.embed_scale);
    }
    check_tensors();
  }

  const Architecture& architecture() const override { return architecture_; }
  const Precision& precision() const override { return precision_; }
  std::string weights() const override { return "pretrained@" + digest_; }

  LayerLayout layout(std::int64_t layer) const override {
    std::vector<TensorPlace> tensors = layer_tensors(architecture_, layer, precision_, other_);
    if (quantised_) {
      for (TensorPlace& place : tensors) {
        if (place.storage != Storage::nf4) continue;
        const std::string name = full_name(layer, place);
        if (!has_bnb_state(*checkpoint_, name)) {  // left in 16 bit by whoever quantised
          const bool fp16 = checkpoint_->at(name).tensor->type == TensorType::f16;
          place.storage = fp16 ? Storage::fp16 : Storage::bf16;
          place.double_quantised = false;
          continue;
        }
        place.double_quantised = states_.at(name).double_quantised;
      }
    }
    return lay_out(std::move(tensors));
  }

  void build_layer(std::int64_t layer, LayerLayout& layout, std::byte* slab) const override;

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
    const TensorPlace place = end_place(end);
    const Checkpoint::Found found = checkpoint_->at(place.name);
    const auto size = static_cast<std::int64_t>(bytes_per_element(place.storage));
    run_tasks((count + kChunk - 1) / kChunk, threads_, [&](std::int64_t task) {
      const std::int64_t first = task * kChunk;
      convert_chunk(found, place.storage, begin + first, std::min(kChunk, count - first),
                    into + first * size);
    });
  }

 private:
  std::string full_name(std::int64_t layer, const TensorPlace& place) const {
    return fmt::format("{}{}.{}", architecture_.layer_prefix, layer, place.name);
  }

  void check_tensors();
  void check_plain(const std::string& name, const TensorPlace& place,
                   std::set<std::string>& used) const;
  void convert_chunk(const Checkpoint::Found& found, Storage storage, std::int64_t first,
                     std::int64_t count, std::byte* into) const;
  void quantise_chunk(const Checkpoint::Found& found, std::int64_t first, std::int64_t count,
                      std::byte* codes, float* absmax) const;

  Architecture architecture_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  Precision precision_;
  std::string digest_;
  int threads_;
  bool quantised_;
  Storage other_ = Storage::bf16;
  std::map<std::string, BnbState> states_;
};

void CheckpointSource::check_plain(const std::string& name, const TensorPlace& place,
                                   std::set<std::string>& used) const {
  const Checkpoint::Found found = checkpoint_->at(name);
  const bool is_vector = name.ends_with(".bias") || name.ends_with("norm.weight");
  const std::vector<std::int64_t> expected =
      is_vector ? std::vector<std::int64_t>{place.cols}
                : std::vector<std::int64_t>{place.rows, place.cols};
  if (found.tensor->shape != expected) {
    fail(Fault::input, "{}: shape {}, but the config asks for [{}]", where(found),
         found.tensor->shape_text(), fmt::join(expected, ", "));
  }
  const TensorType type = found.tensor->type;
  if (type != TensorType::bf16 && type != TensorType::f16 && type != TensorType::f32) {
    fail(Fault::input, "{}: {} weights are not supported; expected BF16, F16 or F32", where(found),
         name_of(type));
  }
  used.insert(name);
}

void CheckpointSource::check_tensors() {
  std::set<std::string> used;
  for (const End end : {End::embedding, End::final_norm, End::head}) {
    const TensorPlace place = end_place(end);
    check_plain(place.name, place, used);
  }
  for (std::int64_t layer = 0; layer < architecture_.layer_count(); ++layer) {
    for (const TensorPlace& place : layer_tensors(architecture_, layer, precision_, other_)) {
      const std::string name = full_name(layer, place);
      if (place.storage == Storage::nf4 && has_bnb_state(*checkpoint_, name)) {
        if (!quantised_) {
          fail(Fault::input,
               "tensor \"{}\" is quantised, but config.json has no "
               "quantization_config",
               name);
        }
        const BnbState state = read_bnb_state(*checkpoint_, name, place.rows, place.cols, used);
        if (state.double_quantised && !precision_.double_quantised) {
          fail(Fault::input, "tensor \"{}\" is doubly quantised; ask for precision nf4", name);
        }
        states_.emplace(name, state);
      } else {
        check_plain(name, place, used);
      }
    }
  }
  const bool nested = architecture_.layer_prefix != "model.layers.";
  const std::string prefix = architecture_.layer_prefix;
  for (const std::string& name : checkpoint_->names()) {
    // Buffers that old files carry, a tied head stored all the same, and parts that are not text.
    if (used.contains(name) || name.ends_with(".rotary_emb.inv_freq")) continue;
    if (architecture_.tied_embeddings && name.ends_with("lm_head.weight")) continue;
    if (nested && name.rfind(prefix, 0) != 0) continue;
    fail(Fault::input,
         "{}: the checkpoint has a tensor that a {} of this config.json does not have",
         where(checkpoint_->at(name)), architecture_.model_type);
  }
}

void CheckpointSource::convert_chunk(const Checkpoint::Found& found, Storage storage,
                                     std::int64_t first, std::int64_t count,
                                     std::byte* into) const {
  const TensorType type = found.tensor->type;
  const std::uint64_t size = bytes_of(type);
  std::vector<std::byte> raw(static_cast<std::size_t>(count) * size);
  found.file->read(*found.tensor, static_cast<std::uint64_t>(first) * size, raw.size(), raw.data());
  if (has_non_finite(type, raw.data(), count)) {
    fail(Fault::input, "{}: holds NaN or infinity", where(found));
  }
  if (!convert_values(type, raw.data(), count, storage, into)) {
    fail(Fault::input, "{}: a value is too large for {}", where(found), name_of(storage));
  }
}

void CheckpointSource::quantise_chunk(const Checkpoint::Found& found, std::int64_t first,
                                      std::int64_t count, std::byte* codes, float* absmax) const {
  const bool fp16 = found.tensor->type == TensorType::f16;
  std::vector<std::byte> values(static_cast<std::size_t>(count) * 2);
  convert_chunk(found, fp16 ? Storage::fp16 : Storage::bf16, first, count, values.data());
  auto* packed = reinterpret_cast<std::uint8_t*>(codes + first / 2);
  float* scales = absmax + first / kNf4Block;
  if (fp16) {
    nf4_quantise_fp16(reinterpret_cast<const F16*>(values.data()), count, packed, scales);
  } else {
    nf4_quantise_bf16(reinterpret_cast<const Bf16*>(values.data()), count, packed, scales);
  }
}

void CheckpointSource::build_layer(std::int64_t layer, LayerLayout& layout, std::byte* slab) const {
  std::memset(slab, 0, layout.bytes);
  struct Work {
    TensorPlace* place;
    Checkpoint::Found found;
    const BnbState* state;
    std::vector<float> absmax;  // until it is quantised itself
  };
  std::vector<Work> work;
  std::vector<std::pair<std::size_t, std::int64_t>> tasks;  // index into work, first value
  for (TensorPlace& place : layout.tensors) {
    const std::string name = full_name(layer, place);
    const auto state = states_.find(name);
    Work& item = work.emplace_back();
    item = {&place, checkpoint_->at(name), state == states_.end() ? nullptr : &state->second, {}};
    const std::int64_t n = place.rows * place.cols;
    if (item.state != nullptr) {
      tasks.emplace_back(work.size() - 1, 0);
      continue;
    }
    if (place.storage == Storage::nf4) item.absmax.resize(static_cast<std::size_t>(nf4_blocks(n)));
    for (std::int64_t first = 0; first < n; first += kChunk) {
      tasks.emplace_back(work.size() - 1, first);
    }
  }
  run_tasks(static_cast<std::int64_t>(tasks.size()), threads_, [&](std::int64_t t) {
    const auto [index, first] = tasks[static_cast<std::size_t>(t)];
    Work& item = work[index];
    const TensorPlace& place = *item.place;
    const std::int64_t count = std::min(kChunk, place.rows * place.cols - first);
    if (item.state != nullptr) {
      const BnbState& s = *item.state;
      s.codes.file->read(*s.codes.tensor, 0, s.codes.tensor->bytes, slab + place.offset);
      s.absmax.file->read(*s.absmax.tensor, 0, s.absmax.tensor->bytes, slab + place.absmax_offset);
      const Checkpoint::Found& scales = s.double_quantised ? s.nested_absmax : s.absmax;
      std::byte* into =
          slab + (s.double_quantised ? place.nested_absmax_offset : place.absmax_offset);
      scales.file->read(*scales.tensor, 0, scales.tensor->bytes, into);
      if (has_non_finite(TensorType::f32, into, scales.tensor->elements())) {
        fail(Fault::input, "{}: holds NaN or infinity", where(scales));
      }
    } else if (place.storage == Storage::nf4) {
      quantise_chunk(item.found, first, count, slab + place.offset, item.absmax.data());
    } else {
      const auto size = static_cast<std::int64_t>(bytes_per_element(place.storage));
      convert_chunk(item.found, place.storage, first, count, slab + place.offset + first * size);
    }
  });
  run_tasks(static_cast<std::int64_t>(work.size()), threads_, [&](std::int64_t t) {
    Work& item = work[static_cast<std::size_t>(t)];
    TensorPlace& place = *item.place;
    if (item.state != nullptr) {
      place.nested_offset = item.state->nested_offset;
      return;
    }
    if (place.storage != Storage::nf4) return;
    const auto blocks = static_cast<std::int64_t>(item.absmax.size());
    if (!place.double_quantised) {
      std::memcpy(slab + place.absmax_offset, item.absmax.data(), item.absmax.size() * 4);
      return;
    }
    place.nested_offset = nf4_absmax_offset(item.absmax.data(), blocks);
    nf4_quantise_absmax(item.absmax.data(), blocks, place.nested_offset,
                        reinterpret_cast<std::uint8_t*>(slab + place.absmax_offset),
                        reinterpret_cast<float*>(slab + place.nested_absmax_offset));
  });
}

}  // namespace

std::unique_ptr<BaseSource> checkpoint_source(const Architecture& architecture,
                                              const ModelConfig& config,
                                              std::shared_ptr<const Checkpoint> checkpoint,
                                              const Precision& precision, const std::string& digest,
                                              int threads) {
  return std::make_unique<CheckpointSource>(architecture, config, std::move(checkpoint), precision,
                                            digest, threads);
}

}  // namespace poros
