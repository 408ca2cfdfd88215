// SPDX-License-Identifier: Apache-2.0
// Streaming on the CPU: "device" slots are ordinary memory and the copy engine is a thread. Ready
// and free conditions stand both ways: compute waits for a copy's end, a copy waits for the release
// of what the slot held.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "train/residency.hpp"
#include "train/transfer_schedule.hpp"

namespace poros {
namespace {

void sleep_s(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

class Streamed final : public Residency {
 public:
  Streamed(const BaseStore& base, const MemoryPlan& plan, const Arena& arena,
           const ExecutorDebug& debug)
      : plan_(plan),
        debug_(debug),
        resident_(load_resident_blocks(base, plan, arena, Stream{})),
        slots_(arena.at("base.slots")),
        slot_content_(static_cast<std::size_t>(plan.slots), -1) {
    std::uint64_t bytes = 0;
    for (const BlockPlan& block : plan.blocks) bytes += block.resident ? 0 : block.bytes;
    host_ = HostSlab(bytes, "the streamed base");
    source_.assign(plan.blocks.size(), nullptr);
    std::byte* at = host_.data();
    for (std::size_t index = 0; index < plan.blocks.size(); ++index) {
      is_resident_.push_back(plan.blocks[index].resident);
      if (plan.blocks[index].resident) continue;
      read_block(base, plan.blocks[index], at);
      source_[index] = at;
      at += plan.blocks[index].bytes;
    }
    if (plan.settings.prefetch) worker_ = std::thread([this] { copy_ahead(); });
  }

  ~Streamed() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (worker_.joinable()) worker_.join();
  }
  Streamed(const Streamed&) = delete;
  Streamed& operator=(const Streamed&) = delete;

  void begin(const std::vector<std::int64_t>& visits) override {
    const std::lock_guard lock(mutex_);
    if (copied_ != schedule_.copies.size()) {
      fail(Fault::run,
           "a new order of blocks is announced while copies of the old one are pending");
    }
    schedule_ = make_transfer_schedule(visits, is_resident_, slot_content_);
    slot_content_ = schedule_.slots_at_end;
    visits_ = visits;
    visit_ = 0;
    copied_ = 0;
    changed_.notify_all();
  }

  const std::byte* acquire() override {
    if (visit_ >= visits_.size()) fail(Fault::run, "a block is asked for past the announced order");
    const auto block = static_cast<std::size_t>(visits_[visit_]);
    if (is_resident_[block]) return resident_[block];
    const std::int64_t copy = schedule_.copy_of_visit[visit_];
    if (copy >= 0) wait_for(static_cast<std::size_t>(copy));
    return slot(schedule_.slot_of_visit[visit_]);
  }

  void release() override {
    if (debug_.poison_freed_slots && schedule_.content_ends[visit_]) {
      std::memset(slot(schedule_.slot_of_visit[visit_]), 0xFF, plan_.slot_bytes);
    }
    {
      const std::lock_guard lock(mutex_);
      ++visit_;
    }
    changed_.notify_all();
  }

  void count(ExecutorCounters& counters) const override {
    const std::lock_guard lock(mutex_);
    counters.bytes_copied += bytes_copied_;
    counters.block_copies += block_copies_;
    counters.copy_stall_s += stall_s_;
  }

 private:
  [[nodiscard]] std::byte* slot(std::int64_t index) const {
    return slots_ + static_cast<std::uint64_t>(index) * plan_.slot_bytes;
  }

  void carry_out(const BlockCopy& copy) {
    sleep_s(debug_.delay_copies_s);
    const auto block = static_cast<std::size_t>(copy.block);
    std::memcpy(slot(copy.slot), source_[block], plan_.blocks[block].bytes);
  }

  void finish_copy(const BlockCopy& copy) {
    bytes_copied_ += plan_.blocks[static_cast<std::size_t>(copy.block)].bytes;
    ++block_copies_;
    ++copied_;
  }

  /// Called by the compute thread: until copy `index` is done; without prefetch it does it itself.
  void wait_for(std::size_t index) {
    const double begin = monotonic_s();
    std::unique_lock lock(mutex_);
    if (worker_.joinable()) {
      changed_.wait(lock, [&] { return copied_ > index; });
    } else {
      carry_out(schedule_.copies[index]);
      finish_copy(schedule_.copies[index]);
    }
    stall_s_ += monotonic_s() - begin;
  }

  void copy_ahead() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] {
        if (stop_) return true;
        if (copied_ >= schedule_.copies.size()) return false;
        return schedule_.copies[copied_].free_after < static_cast<std::int64_t>(visit_);
      });
      if (stop_) return;
      // begin() refuses a new schedule while this copy is pending, so the entry stays.
      const BlockCopy copy = schedule_.copies[copied_];
      lock.unlock();
      carry_out(copy);
      lock.lock();
      finish_copy(copy);
      changed_.notify_all();
    }
  }

  const MemoryPlan& plan_;
  ExecutorDebug debug_;
  std::vector<const std::byte*> resident_;
  std::vector<bool> is_resident_;
  std::vector<const std::byte*> source_;
  HostSlab host_;
  std::byte* slots_;
  std::vector<std::int64_t> slot_content_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  TransferSchedule schedule_;
  std::vector<std::int64_t> visits_;
  std::size_t visit_ = 0;   // visits released
  std::size_t copied_ = 0;  // copies of the schedule that are done
  std::uint64_t bytes_copied_ = 0, block_copies_ = 0;
  double stall_s_ = 0;
  std::thread worker_;
};

}  // namespace

std::unique_ptr<Residency> make_streamed(const BaseStore& base, const MemoryPlan& plan,
                                         const Arena& arena, const ExecutorDebug& debug) {
  return std::make_unique<Streamed>(base, plan, arena, debug);
}

}  // namespace poros
