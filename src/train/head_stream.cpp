// SPDX-License-Identifier: Apache-2.0
#include "train/head_stream.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "plan/step_buffers.hpp"

namespace poros {

HeadStream::HeadStream(const EndTensor& head, std::int64_t chunk, const Arena& arena,
                       const Stream& compute)
    : head_(head),
      row_bytes_(static_cast<std::uint64_t>(head.cols) * bytes_per_element(head.storage)),
      chunk_(chunk),
      ring_(arena.at("head.ring")),
      compute_(compute),
      copy_(compute) {
  for (std::int64_t buffer = 0; buffer < kHeadRing; ++buffer) {
    ready_.emplace_back(compute);
    free_.emplace_back(compute);
  }
}

HeadStream::~HeadStream() {
  try {
    synchronise(copy_.stream());
  } catch (const Error&) {  // the device is lost; the process is about to say so
  }
}

void HeadStream::prefetch() {
  if (next_ != 0) fail(Fault::run, "the head is prefetched in the middle of a pass");
  while (queued_ < kHeadRing && queued_ * chunk_ < head_.rows) queue_copy();
}

void HeadStream::queue_copy() {
  const auto buffer = static_cast<std::size_t>(queued_ % kHeadRing);
  const std::int64_t first = queued_ * chunk_;
  const auto rows = static_cast<std::uint64_t>(std::min(chunk_, head_.rows - first));
  const std::uint64_t at = static_cast<std::uint64_t>(first) * row_bytes_;
  free_[buffer].hold(copy_.stream());
  copy_pinned(copy_.stream(), ring_ + buffer * static_cast<std::uint64_t>(chunk_) * row_bytes_,
              head_.data + at, rows * row_bytes_, at);
  ready_[buffer].record(copy_.stream());
  ++queued_;
}

const std::byte* HeadStream::acquire() {
  if (next_ == queued_) queue_copy();
  const auto buffer = static_cast<std::size_t>(next_ % kHeadRing);
  ready_[buffer].hold(compute_);
  return ring_ + buffer * static_cast<std::uint64_t>(chunk_) * row_bytes_;
}

void HeadStream::release() {
  free_[static_cast<std::size_t>(next_ % kHeadRing)].record(compute_);
  ++next_;
  if (next_ * chunk_ >= head_.rows) {  // the pass is over
    next_ = queued_ = 0;
  } else if (queued_ * chunk_ < head_.rows) {
    queue_copy();
  }
}

}  // namespace poros
