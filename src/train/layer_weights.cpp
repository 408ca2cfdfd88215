// SPDX-License-Identifier: Apache-2.0
#include "train/layer_weights.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "kernels/dequantise.hpp"
#include "kernels/elementwise.hpp"
#include "train/device.hpp"

namespace poros {
namespace {

const TensorPlace* norm_place(const LayerLayout& layout, const LayerShape& shape,
                              const std::string& name) {
  if (std::find(shape.norms.begin(), shape.norms.end(), name) == shape.norms.end()) return nullptr;
  return &layout.find(name + ".weight");
}

void require_norm(const TensorPlace* place, std::int64_t layer, const char* what) {
  if (place == nullptr) fail(Fault::run, "layer {}: the architecture names no {}", layer, what);
}

Linear describe_linear(const LayerLayout& layout, const LinearShape& shape) {
  Linear linear;
  linear.weight = &layout.find(shape.name + ".weight");
  linear.bias = shape.has_bias ? &layout.find(shape.name + ".bias") : nullptr;
  linear.out = shape.out;
  linear.in = shape.in;
  return linear;
}

LinearGroup& group_of(LayerWeights& layer, const LinearRole& role) {
  if (role.expert >= 0) {
    ExpertWeights& expert = layer.experts[static_cast<std::size_t>(role.expert)];
    return role.site == Site::mlp_in ? expert.in : expert.down;
  }
  switch (role.site) {
    case Site::attention_in:
      return layer.attention_in;
    case Site::attention_out:
      return layer.attention_out;
    case Site::mlp_in:
      return layer.mlp_in;
    case Site::mlp_down:
      return layer.mlp_down;
  }
  return layer.mlp_down;
}

LayerWeights describe_layer(const BaseStore& base, std::int64_t index) {
  const Architecture& architecture = base.architecture();
  const LayerLayout& layout = base.layout(index);
  LayerWeights layer;
  layer.index = index;
  layer.shape = &architecture.layers[static_cast<std::size_t>(index)];
  layer.experts.resize(static_cast<std::size_t>(layer.shape->mlp.experts));
  const std::vector<LinearRole> roles = linear_roles(*layer.shape);
  for (std::size_t linear = 0; linear < roles.size(); ++linear) {
    const LinearShape& shape = layer.shape->linears[linear];
    if (roles[linear].router) {
      layer.router = describe_linear(layout, shape);
      continue;
    }
    LinearGroup& group = group_of(layer, roles[linear]);
    group.site = roles[linear].site;
    group.in = shape.in;
    group.linears.push_back(describe_linear(layout, shape));
  }
  layer.attention_norm = norm_place(layout, *layer.shape, "input_layernorm");
  layer.q_norm = norm_place(layout, *layer.shape, "self_attn.q_norm");
  layer.k_norm = norm_place(layout, *layer.shape, "self_attn.k_norm");
  if (architecture.post_norms) {
    layer.post_attention_norm = norm_place(layout, *layer.shape, "post_attention_layernorm");
    layer.mlp_norm = norm_place(layout, *layer.shape, "pre_feedforward_layernorm");
    layer.post_mlp_norm = norm_place(layout, *layer.shape, "post_feedforward_layernorm");
    require_norm(layer.post_attention_norm, index, "norm after attention");
    require_norm(layer.post_mlp_norm, index, "norm after the MLP");
  } else {
    layer.mlp_norm = norm_place(layout, *layer.shape, "post_attention_layernorm");
  }
  require_norm(layer.attention_norm, index, "norm before attention");
  require_norm(layer.mlp_norm, index, "norm before the MLP");
  if (layer.shape->attention.qk_norm) {
    require_norm(layer.q_norm, index, "q norm");
    require_norm(layer.k_norm, index, "k norm");
    if (layer.shape->attention.fused_qkv) {
      fail(Fault::run, "layer {}: q/k norm after a fused qkv projection is not supported", index);
    }
  }
  return layer;
}

void attach_adapter(LayerWeights& layer, const LoraSiteGroup& group,
                    const std::vector<LoraPlace>& places, const MemoryPlan& memory,
                    const FlatAdapter& adapter, DType dtype) {
  LinearGroup& target = group_of(layer, {group.site, group.expert, 0, false});
  const std::vector<LinearRole> roles = linear_roles(*layer.shape);
  LoraSite& site = target.lora;
  site.in = group.in;
  const std::int64_t begin =
      adapter.by_layer ? memory.layer_adapters[static_cast<std::size_t>(group.layer)].begin : 0;
  for (const std::int64_t index : group.places) {
    const LoraPlace& place = places[static_cast<std::size_t>(index)];
    const AdapterSlice& slice = memory.adapters[static_cast<std::size_t>(index)];
    if (site.a == nullptr) {
      site.a = advance(adapter.compute, dtype, slice.a_offset - begin);
      site.a_gradient = adapter.gradient + slice.a_offset;
    }
    const auto linear =
        std::find_if(layer.shape->linears.begin(), layer.shape->linears.end(),
                     [&](const LinearShape& shape) { return shape.name == place.linear; });
    const LinearRole& role = roles[static_cast<std::size_t>(linear - layer.shape->linears.begin())];
    target.linears[static_cast<std::size_t>(role.part)].branch =
        static_cast<int>(site.branches.size());
    site.branches.push_back({place.rank, place.out, site.rank, place.scale,
                             advance(adapter.compute, dtype, slice.b_offset - begin), false,
                             adapter.gradient + slice.b_offset});
    site.rank += place.rank;
  }
  // All or none: B is turned for the thin products, and each product takes one form.
  site.thin = adapter.thin && group.expert < 0 && low_rank_fits(kLowRankRows, site.in, site.rank) &&
              std::all_of(site.branches.begin(), site.branches.end(),
                          [](const LoraBranch& branch) {
                            return low_rank_fits(kLowRankRows, branch.out, branch.rank);
                          }) &&
              std::all_of(target.linears.begin(), target.linears.end(), [](const Linear& linear) {
                return linear.out % kLowRankGranule == 0;  // s B^T dy stands behind the last
              });
  for (LoraBranch& branch : site.branches) branch.turned = site.thin;
}

}  // namespace

std::vector<LayerWeights> describe_layers(const BaseStore& base,
                                          const std::vector<LoraPlace>& places,
                                          const MemoryPlan& memory, const FlatAdapter& adapter,
                                          DType dtype) {
  std::vector<LayerWeights> layers;
  for (std::int64_t index = 0; index < base.architecture().layer_count(); ++index) {
    layers.push_back(describe_layer(base, index));
  }
  for (const LoraSiteGroup& group : lora_site_groups(base.architecture(), places)) {
    attach_adapter(layers[static_cast<std::size_t>(group.layer)], group, places, memory, adapter,
                   dtype);
  }
  return layers;
}

DType storage_dtype(const TensorPlace& place) {
  switch (place.storage) {
    case Storage::bf16:
      return DType::bf16;
    case Storage::fp16:
      return DType::f16;
    case Storage::fp32:
      return DType::f32;
    case Storage::nf4:
      break;
  }
  fail(Fault::run, "{} is quantised where values are needed", place.name);
}

bool is_converted(const StepContext& context, const TensorPlace& place) {
  return place.storage == Storage::nf4 || storage_dtype(place) != context.dtype;
}

ConstMatrix weight_in_compute_dtype(const StepContext& context, const std::byte* slab,
                                    const TensorPlace& place, void* scratch,
                                    const AroundWeight& around) {
  const std::byte* data = slab + place.offset;
  if (!is_converted(context, place)) return {data, place.cols};
  const bool room = around.padding > 0 && place.cols % 8 == 0;
  const std::int64_t stride = place.cols + (room ? around.padding : 0);
  LowRankColumns columns;
  if (room && around.columns.rank > 0) {
    columns = around.columns;
    columns.y = advance(scratch, context.dtype, place.cols);
    columns.rows = place.rows;
    columns.padded = around.padding;
    columns.y_stride = stride;
    columns.dtype = context.dtype;
  }
  if (place.storage != Storage::nf4) {
    copy_rows(context.stream, {.x = data,
                               .y = scratch,
                               .rows = place.rows,
                               .cols = place.cols,
                               .y_stride = stride,
                               .x_dtype = storage_dtype(place),
                               .y_dtype = context.dtype});
    low_rank_columns(context.stream, columns);
    copy_bytes(context.stream, advance(scratch, context.dtype, place.rows * stride), around.below,
               static_cast<std::uint64_t>(around.below_count) * bytes_of(context.dtype));
    return {scratch, stride};
  }
  Nf4View view;
  view.codes = reinterpret_cast<const std::uint8_t*>(data);
  if (place.double_quantised) {
    view.q = reinterpret_cast<const std::uint8_t*>(slab + place.absmax_offset);
    view.nested_absmax = reinterpret_cast<const float*>(slab + place.nested_absmax_offset);
    view.offset = place.nested_offset;
  } else {
    view.absmax = reinterpret_cast<const float*>(slab + place.absmax_offset);
  }
  Dequantise op = {.tensor = view,
                   .count = place.rows * place.cols,
                   .out = scratch,
                   .dtype = context.dtype,
                   .columns = columns,
                   .below = around.below,
                   .below_count = around.below_count};
  if (room) {
    op.cols = place.cols;
    op.out_stride = stride;
  }
  dequantise(context.stream, op);
  return {scratch, stride};
}

}  // namespace poros
