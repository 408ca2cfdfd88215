// SPDX-License-Identifier: Apache-2.0
#include "model/merge.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/base_source.hpp"
#include "model/bnb_state.hpp"
#include "model/convert.hpp"
#include "model/layer_reader.hpp"
#include "model/merge_folder.hpp"
#include "model/open_base.hpp"
#include "model/workers.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 20;  // values of a tensor in memory at once

bool is_floating(TensorType type) {
  return type == TensorType::bf16 || type == TensorType::f16 || type == TensorType::f32;
}

Storage storage_of(TensorType type) {
  return type == TensorType::f32   ? Storage::fp32
         : type == TensorType::f16 ? Storage::fp16
                                   : Storage::bf16;
}

TensorType type_of(Storage storage) {
  return storage == Storage::fp32   ? TensorType::f32
         : storage == Storage::fp16 ? TensorType::f16
                                    : TensorType::bf16;
}

Storage parse_dtype(const std::string& name) {
  for (const Storage storage : {Storage::bf16, Storage::fp16, Storage::fp32}) {
    if (name_of(storage) == name) return storage;
  }
  fail(Fault::input, "dtype \"{}\" is not known; expected bf16, fp16 or fp32", name);
}

/// A tensor of the merged checkpoint and where its values come from.
struct Source {
  std::string name;
  std::vector<std::int64_t> shape;
  Checkpoint::Found found;           // empty: of the NF4 base
  const TensorPlace* nf4 = nullptr;  // in layer `layer` of the base
  std::int64_t layer = 0;
  const LoraPlace* place = nullptr;  // what is added, if anything
  const LoraWeights* weights = nullptr;
  TensorType type = TensorType::bf16;  // that it is written in
};

class Merger {
 public:
  explicit Merger(const MergeOptions& options)
      : options_(options),
        config_(read_model_config(options.model_dir)),
        architecture_(read_architecture(config_)),
        checkpoint_(std::make_shared<const Checkpoint>(options.model_dir)) {
    match_names(architecture_, *checkpoint_);
    quantised_ = is_bnb_nf4(config_);
    // Checks every tensor against the config.
    static_cast<void>(checkpoint_source(architecture_, config_, checkpoint_,
                                        parse_precision(quantised_ ? "nf4" : "fp32"), "",
                                        options.threads));
    adapter_ = read_adapter(options.adapter_dir, architecture_);
    if (options.base != "checkpoint" && options.base != "nf4") {
      fail(Fault::input, "base \"{}\" is not known; expected checkpoint or nf4", options.base);
    }
    if (quantised_ || options.base == "nf4") {
      BaseRequest request;
      request.model = options.model_dir;
      request.cache = options.cache_dir;
      request.threads = options.threads;
      base_ = open_base(request);
      reader_ = std::make_unique<LayerReader>(*base_);
    }
    collect();
  }

  MergeReport run(const std::function<void(std::int64_t, std::int64_t)>& progress);

 private:
  void collect();
  void collect_linears(std::map<std::string, Source>& found);
  void write(const Source& source, const TensorToWrite::Sink& put);
  void read_values(const Source& source, std::int64_t first, std::int64_t count, float* into);
  [[nodiscard]] std::vector<std::vector<const Source*>> shards() const;

  MergeOptions options_;
  ModelConfig config_;
  Architecture architecture_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  bool quantised_ = false;
  Adapter adapter_;
  std::unique_ptr<BaseStore> base_;
  std::unique_ptr<LayerReader> reader_;
  std::vector<Source> sources_;  // by name
  MergeReport report_;
};

std::uint64_t bytes_of_source(const Source& source) {
  std::uint64_t bytes = bytes_of(source.type);
  for (const std::int64_t size : source.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

/// The linears: those that are NF4 in the base, and those that the adapter changes.
void Merger::collect_linears(std::map<std::string, Source>& found) {
  std::map<std::pair<std::int64_t, std::string>, std::size_t> adapted;
  for (std::size_t i = 0; i < adapter_.places.size(); ++i) {
    adapted[{adapter_.places[i].layer, adapter_.places[i].linear}] = i;
  }
  for (std::int64_t layer = 0; layer < architecture_.layer_count(); ++layer) {
    for (const LinearShape& linear :
         architecture_.layers[static_cast<std::size_t>(layer)].linears) {
      Source source;
      source.name = fmt::format("{}{}.{}.weight", architecture_.layer_prefix, layer, linear.name);
      source.layer = layer;
      source.shape = {linear.out, linear.in};
      if (base_ != nullptr) {
        const TensorPlace& place = base_->layout(layer).find(linear.name + ".weight");
        if (place.storage == Storage::nf4) source.nf4 = &place;
      }
      if (source.nf4 == nullptr) source.found = checkpoint_->at(source.name);
      if (const auto at = adapted.find({layer, linear.name}); at != adapted.end()) {
        source.place = &adapter_.places[at->second];
        source.weights = &adapter_.weights[at->second];
        ++report_.merged;
      }
      report_.dequantised += source.nf4 != nullptr ? 1 : 0;
      found[source.name] = source;
    }
  }
}

void Merger::collect() {
  std::map<std::string, Source> found;
  collect_linears(found);
  for (const std::string& name : checkpoint_->names()) {
    // The parts of a quantised weight stand beside it: "<weight>.absmax", ".quant_map", ...
    const auto weight = name.rfind(".weight.");
    if (weight != std::string::npos && found.contains(name.substr(0, weight + 7))) continue;
    if (found.contains(name)) continue;
    Source source;
    source.name = name;
    source.found = checkpoint_->at(name);
    source.shape = source.found.tensor->shape;
    found[name] = source;
  }
  const TensorType ends = checkpoint_->at(architecture_.embed_name).tensor->type;
  const TensorType asked = options_.dtype.empty() ? ends : type_of(parse_dtype(options_.dtype));
  for (auto& [name, source] : found) {
    if (source.nf4 != nullptr) {
      source.type = asked;
    } else {
      const TensorType own = source.found.tensor->type;
      source.type = options_.dtype.empty() || !is_floating(own) ? own : asked;
    }
    report_.bytes += bytes_of_source(source);
    sources_.push_back(source);
  }
  report_.tensors = static_cast<std::int64_t>(sources_.size());
  report_.dtype = name_of(storage_of(asked));
  report_.adapter_sha256 = adapter_.sha256;
}

/// Values [first, first + count) of the base, in fp32.
void Merger::read_values(const Source& source, std::int64_t first, std::int64_t count,
                         float* into) {
  if (source.nf4 != nullptr) {
    nf4_dequantise_fp32(nf4_view(*source.nf4, reader_->slab(source.layer)), first, count, into);
    return;
  }
  const TensorInfo& tensor = *source.found.tensor;
  const std::uint64_t size = bytes_of(tensor.type);
  std::vector<std::byte> raw(static_cast<std::size_t>(count) * size);
  source.found.file->read(tensor, static_cast<std::uint64_t>(first) * size, raw.size(), raw.data());
  if (has_non_finite(tensor.type, raw.data(), count)) {
    fail(Fault::input, "{}: tensor \"{}\": holds NaN or infinity",
         source.found.file->path().string(), tensor.name);
  }
  static_cast<void>(convert_values(tensor.type, raw.data(), count, Storage::fp32, into));
}

/// Adds scale * B[row] A to one row of W.
void add_row(const LoraPlace& place, const LoraWeights& weights, std::int64_t row, float* w,
             std::vector<float>& delta) {
  delta.assign(static_cast<std::size_t>(place.in), 0.0F);
  const float* b = weights.b.data() + row * place.rank;
  for (std::int64_t k = 0; k < place.rank; ++k) {
    const float* a = weights.a.data() + k * place.in;
    const float factor = b[k];
    for (std::int64_t i = 0; i < place.in; ++i) delta[static_cast<std::size_t>(i)] += factor * a[i];
  }
  for (std::int64_t i = 0; i < place.in; ++i) {
    w[i] += place.scale * delta[static_cast<std::size_t>(i)];
  }
}

void Merger::write(const Source& source, const TensorToWrite::Sink& put) {
  const bool same =
      source.place == nullptr && source.nf4 == nullptr && source.found.tensor->type == source.type;
  if (same) {  // byte for byte, whatever its type
    const TensorInfo& tensor = *source.found.tensor;
    std::vector<std::byte> raw(std::min<std::size_t>(tensor.bytes, std::size_t{16} << 20));
    for (std::uint64_t begin = 0; begin < tensor.bytes; begin += raw.size()) {
      const std::uint64_t bytes = std::min<std::uint64_t>(raw.size(), tensor.bytes - begin);
      source.found.file->read(tensor, begin, bytes, raw.data());
      put(raw.data(), bytes);
    }
    return;
  }
  const std::int64_t rows = source.shape.size() == 2 ? source.shape[0] : 1;
  std::int64_t n = 1;
  for (const std::int64_t size : source.shape) n *= size;
  const std::int64_t cols = rows > 0 ? n / rows : 0;
  const std::int64_t rows_at_once = std::clamp<std::int64_t>(
      kChunk / std::max<std::int64_t>(cols, 1), 1, std::max<std::int64_t>(rows, 1));
  std::vector<float> values(static_cast<std::size_t>(rows_at_once * cols));
  std::vector<std::byte> converted(values.size() * bytes_of(source.type));
  for (std::int64_t row = 0; row < rows; row += rows_at_once) {
    const std::int64_t count = std::min(rows_at_once, rows - row);
    read_values(source, row * cols, count * cols, values.data());
    if (source.place != nullptr) {
      constexpr std::int64_t kRows = 16;  // a task
      run_tasks((count + kRows - 1) / kRows, options_.threads, [&](std::int64_t task) {
        std::vector<float> delta;
        for (std::int64_t r = task * kRows; r < std::min(count, (task + 1) * kRows); ++r) {
          add_row(*source.place, *source.weights, row + r, values.data() + r * cols, delta);
        }
      });
    }
    if (has_non_finite(TensorType::f32, values.data(), count * cols) ||
        !convert_values(TensorType::f32, values.data(), count * cols, storage_of(source.type),
                        converted.data())) {
      fail(Fault::input, "tensor \"{}\": a merged value is too large for {}; use another --dtype",
           source.name, name_of(storage_of(source.type)));
    }
    put(converted.data(), static_cast<std::uint64_t>(count * cols) * bytes_of(source.type));
  }
}

/// Tensors in the order of their names, as many in a file as it may hold, at least one.
std::vector<std::vector<const Source*>> Merger::shards() const {
  std::vector<std::vector<const Source*>> shards(1);
  std::uint64_t bytes = 0;
  for (const Source& source : sources_) {
    const std::uint64_t size = bytes_of_source(source);
    if (!shards.back().empty() && bytes + size > options_.max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(&source);
    bytes += size;
  }
  return shards;
}

MergeReport Merger::run(const std::function<void(std::int64_t, std::int64_t)>& progress) {
  MergeFolder folder(options_.out_dir, report_.bytes);
  const auto shards = this->shards();
  report_.shards = static_cast<std::int64_t>(shards.size());
  Json weight_map = Json::object();
  std::int64_t done = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<TensorToWrite> tensors;
    for (const Source* source : shards[i]) {
      weight_map[source->name] = name;
      TensorToWrite& tensor = tensors.emplace_back();
      tensor.name = source->name;
      tensor.type = source->type;
      tensor.shape = source->shape;
      tensor.write = [&, source](const TensorToWrite::Sink& put) {
        write(*source, put);
        if (progress) progress(++done, report_.tensors);
      };
    }
    static_cast<void>(write_safetensors(folder.path() / name, std::move(tensors)));
  }
  if (shards.size() > 1) {
    const Json index{{"metadata", {{"total_size", report_.bytes}}}, {"weight_map", weight_map}};
    write_file_durably(folder.path() / "model.safetensors.index.json", dump_json(index, 2) + "\n");
  }
  const bool plain = report_.dequantised > 0 || !options_.dtype.empty();
  folder.add_config(config_.json(), plain ? report_.dtype : "");
  folder.copy_small_files(options_.model_dir);
  folder.finish();
  return report_;
}

}  // namespace

MergeReport merge_adapter(const MergeOptions& options,
                          const std::function<void(std::int64_t, std::int64_t)>& progress) {
  check_new_folder(options.out_dir);
  return Merger(options).run(progress);
}

}  // namespace poros
