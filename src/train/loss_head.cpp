// SPDX-License-Identifier: Apache-2.0
#include "train/loss_head.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/elementwise.hpp"

namespace poros {

DType storage_dtype(const EndTensor& tensor) {
  switch (tensor.storage) {
    case Storage::bf16:
      return DType::bf16;
    case Storage::fp16:
      return DType::f16;
    case Storage::fp32:
      return DType::f32;
    case Storage::nf4:
      break;
  }
  fail(Fault::run, "embedding, final norm and head must not be quantised");
}

LossHead::LossHead(const StepContext& context, const BaseStore& base, const HostRows& rows,
                   const Arena& arena)
    : context_(context),
      architecture_(base.architecture()),
      rows_(rows),
      head_(base.head()),
      head_dtype_(storage_dtype(head_)),
      norm_kind_(architecture_.norm_plus_one ? NormWeight::plus_one : NormWeight::plain),
      norm_weight_(arena.as<float>("head.final_norm")),
      norm_(arena.at("head.norm")),
      norm_rstd_(arena.as<float>("head.norm_rstd")),
      chunk_(arena.at("head.weight")),
      weight_(chunk_),
      gradient_sum_(arena.as<float>("head.gradient_sum")),
      target_rows_(arena.at("head.target_rows")),
      state_{arena.as<float>("head.max"), arena.as<float>("head.sum"),
             arena.as<float>("head.target_logit")},
      rescale_(arena.as<float>("head.rescale")),
      row_loss_(arena.as<float>("head.row_loss")),
      total_(arena.as<double>("head.total_loss")) {
  const EndTensor norm = base.final_norm();
  const void* norm_values = norm.data;
  if (context.stream.device == DeviceKind::cuda) {
    // Through a buffer that is not in use yet: kernels read device memory.
    copy_bytes(context.stream, gradient_sum_, norm.data,
               static_cast<std::uint64_t>(architecture_.hidden) * bytes_of(storage_dtype(norm)));
    norm_values = gradient_sum_;
    stream_ =
        std::make_unique<HeadStream>(head_, context.plan->vocabulary_chunk, arena, context.stream);
  }
  cast(context.stream, norm_values, storage_dtype(norm), norm_weight_, DType::f32,
       architecture_.hidden);
  fill_bytes(context.stream, total_, 0, sizeof(double));
}

void LossHead::normalise(std::int64_t rows, const void* x) {
  rms_norm_forward(context_.stream, {.x = x,
                                     .weight = norm_weight_,
                                     .y = norm_,
                                     .rstd = norm_rstd_,
                                     .rows = rows,
                                     .cols = architecture_.hidden,
                                     .dtype = context_.dtype,
                                     .weight_kind = norm_kind_,
                                     .eps = architecture_.rms_eps});
}

void LossHead::prefetch() {
  if (stream_ != nullptr) stream_->prefetch();
}

void LossHead::load_chunk(std::int64_t first, std::int64_t classes) {
  const auto offset = static_cast<std::size_t>(first * architecture_.hidden);
  const std::byte* rows =
      stream_ != nullptr ? stream_->acquire() : head_.data + offset * bytes_of(head_dtype_);
  if (stream_ != nullptr && head_dtype_ == context_.dtype) {
    weight_ = rows;
    return;
  }
  cast(context_.stream, rows, head_dtype_, chunk_, context_.dtype, classes * architecture_.hidden);
  weight_ = chunk_;
}

void LossHead::release_chunk() {
  if (stream_ != nullptr) stream_->release();
}

void LossHead::multiply_chunk(std::int64_t rows, std::int64_t classes) {
  const std::int64_t hidden = architecture_.hidden;
  context_.gemm->multiply(
      {.a = {.data = norm_, .dtype = context_.dtype, .stride = hidden},
       .b = {.data = weight_, .dtype = context_.dtype, .stride = hidden, .transposed = true},
       .c = context_.work->logits,
       .c_stride = classes,
       .m = rows,
       .n = classes,
       .k = hidden});
}

void LossHead::loss(std::int64_t rows, const HeadTargets& targets, const void* x, void* dx,
                    float inv_supervised, bool first_of_step) {
  const std::int64_t hidden = architecture_.hidden;
  const bool wants_dx = dx != nullptr;
  const bool rounds = context_.dtype != DType::f32;
  Workspace& work = *context_.work;
  work.begin_logits();
  normalise(rows, x);
  cross_entropy_init(context_.stream, state_, rows);
  for (std::int64_t first = 0; first < architecture_.vocab;
       first += context_.plan->vocabulary_chunk) {
    const std::int64_t classes =
        std::min(context_.plan->vocabulary_chunk, architecture_.vocab - first);
    load_chunk(first, classes);
    multiply_chunk(rows, classes);
    void* exponentials = wants_dx ? work.exponentials : nullptr;
    cross_entropy_accumulate(context_.stream, {.logits = context_.work->logits,
                                               .targets = targets.targets,
                                               .state = state_,
                                               .exponentials = exponentials,
                                               .rescale = wants_dx ? rescale_ : nullptr,
                                               .rows = rows,
                                               .classes = classes,
                                               .first_class = first,
                                               .softcap = architecture_.final_softcap,
                                               .round_exponentials = wants_dx && rounds});
    if (!wants_dx) {
      release_chunk();
      continue;
    }
    if (first > 0) {
      scale_rows(context_.stream, {.x = gradient_sum_,
                                   .y = gradient_sum_,
                                   .row_factor = rescale_,
                                   .rows = rows,
                                   .cols = hidden});
    }
    context_.gemm->multiply(
        {.a = {.data = exponentials,
               .dtype = context_.dtype,
               .stride = rounds && exponentials == work.logits ? 2 * classes : classes},
         .b = {.data = weight_, .dtype = context_.dtype, .stride = hidden},
         .c = gradient_sum_,
         .c_stride = hidden,
         .m = rows,
         .n = hidden,
         .k = classes,
         .beta = first > 0 ? 1.0F : 0.0F});
    release_chunk();
  }
  cross_entropy_loss(context_.stream, {.targets = targets.targets,
                                       .state = state_,
                                       .row_loss = row_loss_,
                                       .total = total_,
                                       .add_to_total = !first_of_step,
                                       .rows = rows});
  work.give_back();
  if (wants_dx) differentiate(rows, targets, x, dx, inv_supervised);
}

void LossHead::differentiate(std::int64_t rows, const HeadTargets& targets, const void* x, void* dx,
                             float inv_supervised) {
  const std::int64_t hidden = architecture_.hidden;
  rows_.gather(context_.stream, {.index = targets.target_ids,
                                 .host_index = targets.host_target_ids,
                                 .rows = rows,
                                 .y = target_rows_,
                                 .y_dtype = context_.dtype});
  cross_entropy_finish(context_.stream, {.accumulated = gradient_sum_,
                                         .target_rows = target_rows_,
                                         .targets = targets.targets,
                                         .state = state_,
                                         .dx = norm_,  // read by no chunk any more
                                         .rows = rows,
                                         .hidden = hidden,
                                         .dtype = context_.dtype,
                                         .target_dtype = context_.dtype,
                                         .softcap = architecture_.final_softcap,
                                         .inv_supervised_tokens = inv_supervised});
  rms_norm_backward(context_.stream, {.dy = norm_,
                                      .r = x,
                                      .weight = norm_weight_,
                                      .rstd = norm_rstd_,
                                      .dx = dx,
                                      .rows = rows,
                                      .cols = hidden,
                                      .dx_stride = context_.gradient_stride,
                                      .dtype = context_.dtype,
                                      .weight_kind = norm_kind_});
}

std::vector<float> LossHead::logits(std::int64_t rows, std::int64_t begin, std::int64_t end,
                                    const void* x) {
  const std::int64_t vocab = architecture_.vocab;
  std::vector<float> all(static_cast<std::size_t>((end - begin) * vocab));
  context_.work->begin_logits();
  normalise(rows, x);
  for (std::int64_t first = 0; first < vocab; first += context_.plan->vocabulary_chunk) {
    const std::int64_t classes = std::min(context_.plan->vocabulary_chunk, vocab - first);
    load_chunk(first, classes);
    multiply_chunk(rows, classes);
    release_chunk();
    for (std::int64_t row = begin; row < end; ++row) {
      copy_bytes(context_.stream, all.data() + (row - begin) * vocab + first,
                 context_.work->logits + row * classes,
                 static_cast<std::uint64_t>(classes) * sizeof(float));
    }
  }
  synchronise(context_.stream);
  context_.work->give_back();
  const float cap = architecture_.final_softcap;
  if (cap > 0) {
    for (float& logit : all) logit = cap * std::tanh(logit / cap);
  }
  return all;
}

}  // namespace poros
