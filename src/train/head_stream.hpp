// SPDX-License-Identifier: Apache-2.0
// The output head on its way to a GPU: chunks of its rows through a ring of device buffers, on a
// stream of its own, the first of them while the last layers still run.
#pragma once

#include <cstdint>
#include <vector>

#include "model/base_store.hpp"
#include "train/arena.hpp"

namespace poros {

class HeadStream {
 public:
  /// @param head  in host memory, page-locked where the system allows it; outlives this
  /// @param chunk rows of a chunk
  HeadStream(const EndTensor& head, std::int64_t chunk, const Arena& arena, const Stream& compute);
  ~HeadStream();
  HeadStream(const HeadStream&) = delete;
  HeadStream& operator=(const HeadStream&) = delete;

  /// Queues the copies of the first chunks. A pass over all chunks follows.
  void prefetch();

  /// The next chunk as it is stored, ready for what is queued on the compute stream from now on.
  [[nodiscard]] const std::byte* acquire();
  /// All work on it is queued.
  void release();

 private:
  void queue_copy();

  EndTensor head_;
  std::uint64_t row_bytes_;
  std::int64_t chunk_;
  std::byte* ring_;
  Stream compute_;
  SideStream copy_;
  std::vector<Event> ready_, free_;
  std::int64_t next_ = 0;    // chunk that acquire() gives
  std::int64_t queued_ = 0;  // chunks whose copy is queued
};

}  // namespace poros
