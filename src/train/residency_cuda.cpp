// SPDX-License-Identifier: Apache-2.0
// Streaming on a GPU: blocks wait in page-locked host memory and are copied on a stream of their
// own. Events stand both ways: compute waits for a slot to be ready, a copy waits for the release
// of what the slot held. The host only queues; it never waits. Where the system refuses to
// page-lock, a thread passes the blocks through a small ring that is.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "train/residency.hpp"
#include "train/transfer_schedule.hpp"

namespace poros {
namespace {

/// Carries bytes through a ring of page-locked pieces, on a thread of its own.
class StagingRing {
 public:
  explicit StagingRing(const Stream& stream) : stream_(stream) {
    memory_ = HostSlab(kPieces * kPieceBytes, "the staging ring of the streamed base");
    pin_ = PinnedRange(memory_.data(), memory_.bytes(), stream);
    for (std::size_t piece = 0; piece < kPieces; ++piece) sent_.emplace_back(stream);
    worker_ = std::thread([this] { work(); });
  }
  ~StagingRing() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  struct Job {
    std::byte* to;
    const std::byte* from;
    std::uint64_t bytes;
    const Event* ready;  // recorded after the last piece
    double delay_s;
  };
  /// Queues a job; its waits are already in the stream. @returns its number
  std::uint64_t push(const Job& job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    changed_.notify_all();
    return pushed_++;
  }
  /// Until all pieces of the job are queued on the stream.
  void wait_queued(std::uint64_t job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queued_ > job; });
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  static constexpr std::size_t kPieces = 4;
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{16} << 20;

  void work() {
    while (true) {
      Job job{};
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
        if (stop_) return;
        job = jobs_.front();
        jobs_.pop_front();
      }
      std::exception_ptr error;
      try {
        send(job);
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (error != nullptr) error_ = error;
      ++queued_;
      changed_.notify_all();
    }
  }

  void send(const Job& job) {
    delay(stream_, job.delay_s);
    for (std::uint64_t at = 0; at < job.bytes; at += kPieceBytes) {
      const std::uint64_t bytes = std::min(kPieceBytes, job.bytes - at);
      std::byte* piece = memory_.data() + next_ * kPieceBytes;
      sent_[next_].wait_on_host();  // the piece's last copy
      std::memcpy(piece, job.from + at, bytes);
      copy_bytes(stream_, job.to + at, piece, bytes);
      sent_[next_].record(stream_);
      next_ = (next_ + 1) % kPieces;
    }
    job.ready->record(stream_);
  }

  Stream stream_;
  HostSlab memory_;
  PinnedRange pin_;  // refused here too: copies are then slower, not wrong
  std::vector<Event> sent_;
  std::size_t next_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::uint64_t pushed_ = 0, queued_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread worker_;
};

/// Two timed events around a wait of the compute stream: their distance is the stall.
struct Stall {
  explicit Stall(const Stream& stream) : begin(stream, true), end(stream, true) {}
  Event begin, end;
};

/// The stalls of one order of visits; events are used again.
struct StallSet {
  std::vector<Stall> stalls;
  std::size_t used = 0;

  const Stall& next(const Stream& stream) {
    if (used == stalls.size()) stalls.emplace_back(stream);
    return stalls[used++];
  }
  [[nodiscard]] double seconds() const {
    double sum = 0;
    for (std::size_t index = 0; index < used; ++index) {
      stalls[index].end.wait_on_host();
      sum += stalls[index].end.since_s(stalls[index].begin);
    }
    return sum;
  }
};

class StreamedCuda final : public Residency {
 public:
  StreamedCuda(const BaseStore& base, const MemoryPlan& plan, const Arena& arena,
               const Stream& compute, const ExecutorDebug& debug)
      : plan_(plan),
        debug_(debug),
        compute_(compute),
        copy_(compute),
        asked_(compute),
        slots_(arena.at("base.slots")),
        slot_content_(static_cast<std::size_t>(plan.slots), -1) {
    std::uint64_t bytes = 0;
    for (const BlockPlan& block : plan.blocks) bytes += block.resident ? 0 : block.bytes;
    host_ = HostSlab(bytes, "the streamed base");
    std::uint64_t at = 0;
    for (const BlockPlan& block : plan.blocks) {
      is_resident_.push_back(block.resident);
      source_.push_back(at);
      if (block.resident) continue;
      read_block(base, block, host_.data() + at);
      at += block.bytes;
    }
    if (!debug.refuse_pinning) pin_ = PinnedRange(host_.data(), bytes, compute);
    if (!pin_.pinned()) ring_ = std::make_unique<StagingRing>(copy_.stream());
    resident_ = load_resident_blocks(base, plan, arena, compute);
    for (std::int64_t slot = 0; slot < plan.slots; ++slot) {
      ready_.emplace_back(compute);
      free_.emplace_back(compute);
    }
  }

  ~StreamedCuda() override {
    ring_.reset();
    // Slots and host memory must outlast the copies.
    try {
      synchronise(copy_.stream());
    } catch (const Error&) {  // the device is lost; the process is about to say so
    }
  }
  StreamedCuda(const StreamedCuda&) = delete;
  StreamedCuda& operator=(const StreamedCuda&) = delete;

  void begin(const std::vector<std::int64_t>& visits) override {
    if (queued_ != schedule_.copies.size() || visit_ != visits_.size()) {
      fail(Fault::run, "a new order of blocks is announced before the old one was gone through");
    }
    // The other set is that of two orders ago: its events have long been reached.
    std::swap(stalls_[0], stalls_[1]);
    stall_s_ += stalls_[0].seconds();
    stalls_[0].used = 0;
    schedule_ = make_transfer_schedule(visits, is_resident_, slot_content_);
    slot_content_ = schedule_.slots_at_end;
    visits_ = visits;
    visit_ = 0;
    queued_ = 0;
    jobs_.assign(schedule_.copies.size(), 0);
    if (plan_.settings.prefetch) copy_ahead();
  }

  const std::byte* acquire() override {
    if (visit_ >= visits_.size()) fail(Fault::run, "a block is asked for past the announced order");
    const auto block = static_cast<std::size_t>(visits_[visit_]);
    if (is_resident_[block]) return resident_[block];
    const std::int64_t slot = schedule_.slot_of_visit[visit_];
    const std::int64_t copy = schedule_.copy_of_visit[visit_];
    if (copy >= 0) {
      const Stall& stall = stalls_[0].next(compute_);
      stall.begin.record(compute_);
      if (!plan_.settings.prefetch) {
        // Asked for when the compute gets here, not when the host does.
        asked_.record(compute_);
        asked_.hold(copy_.stream());
        queue_copy(schedule_.copies[static_cast<std::size_t>(copy)]);
      }
      if (ring_ != nullptr) ring_->wait_queued(jobs_[static_cast<std::size_t>(copy)]);
      ready_[static_cast<std::size_t>(slot)].hold(compute_);
      stall.end.record(compute_);
    }
    return slot_at(slot);
  }

  void release() override {
    const std::int64_t slot = schedule_.slot_of_visit[visit_];
    if (slot >= 0) {
      if (debug_.poison_freed_slots && schedule_.content_ends[visit_]) {
        fill_bytes(compute_, slot_at(slot), 0xFF, plan_.slot_bytes);
      }
      free_[static_cast<std::size_t>(slot)].record(compute_);
    }
    ++visit_;
    if (plan_.settings.prefetch) copy_ahead();
  }

  void count(ExecutorCounters& counters) const override {
    counters.bytes_copied += bytes_copied_;
    counters.block_copies += block_copies_;
    counters.copy_stall_s += stall_s_;
    for (const StallSet& set : stalls_) counters.copy_stall_s += set.seconds();
  }

 private:
  [[nodiscard]] std::byte* slot_at(std::int64_t index) const {
    return slots_ + static_cast<std::uint64_t>(index) * plan_.slot_bytes;
  }

  /// Queues every copy whose slot's last reader is queued already.
  void copy_ahead() {
    while (queued_ < schedule_.copies.size() &&
           schedule_.copies[queued_].free_after < static_cast<std::int64_t>(visit_)) {
      queue_copy(schedule_.copies[queued_]);
    }
  }

  void queue_copy(const BlockCopy& copy) {
    const auto block = static_cast<std::size_t>(copy.block);
    const auto slot = static_cast<std::size_t>(copy.slot);
    const std::uint64_t bytes = plan_.blocks[block].bytes;
    free_[slot].hold(copy_.stream());
    std::byte* to = slot_at(copy.slot);
    const std::byte* from = host_.data() + source_[block];
    if (ring_ != nullptr) {
      jobs_[queued_] = ring_->push({to, from, bytes, &ready_[slot], debug_.delay_copies_s});
    } else {
      delay(copy_.stream(), debug_.delay_copies_s);
      copy_pinned(copy_.stream(), to, from, bytes, source_[block]);
      ready_[slot].record(copy_.stream());
    }
    bytes_copied_ += bytes;
    ++block_copies_;
    ++queued_;
  }

  const MemoryPlan& plan_;
  ExecutorDebug debug_;
  Stream compute_;
  SideStream copy_;
  Event asked_;
  std::vector<const std::byte*> resident_;
  std::vector<bool> is_resident_;
  std::vector<std::uint64_t> source_;  // [blocks] offset in the host slab
  HostSlab host_;
  PinnedRange pin_;
  std::byte* slots_;
  std::vector<std::int64_t> slot_content_;
  std::vector<Event> ready_, free_;  // [slots]
  TransferSchedule schedule_;
  std::vector<std::int64_t> visits_;
  std::size_t visit_ = 0;            // visits released
  std::size_t queued_ = 0;           // copies queued
  std::vector<std::uint64_t> jobs_;  // [copies] number in the staging ring
  std::uint64_t bytes_copied_ = 0, block_copies_ = 0;
  StallSet stalls_[2];  // of the present order of visits, and of the one before
  double stall_s_ = 0;
  std::unique_ptr<StagingRing> ring_;  // null where the host slab is page-locked
};

}  // namespace

std::unique_ptr<Residency> make_streamed_cuda(const BaseStore& base, const MemoryPlan& plan,
                                              const Arena& arena, const Stream& stream,
                                              const ExecutorDebug& debug) {
  return std::make_unique<StreamedCuda>(base, plan, arena, stream, debug);
}

}  // namespace poros
