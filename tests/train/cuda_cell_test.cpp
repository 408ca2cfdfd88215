// SPDX-License-Identifier: Apache-2.0
// Whole cells on the GPU: the record that a pass leaves, equal hashes of both arms, and a pass that
// is refused memory.
#include "cuda_fixture.hpp"
#include "tiny_cell.hpp"

namespace poros {
namespace {

class CudaCell : public CudaTest {};

TEST_F(CudaCell, BothArmsLearnTheSameAndSayWhatTheyTook) {
  TinyCell tiny;
  std::vector<PassRecord> records;
  for (const char* method : {"resident", "poros"}) {
    CellRequest request = tiny.request(method, 6);
    request.cell.device = "cuda";
    request.purpose = "parity";
    records.push_back(tiny.run(request));
    const PassRecord& record = records.back();
    ASSERT_EQ(record.status, "ok") << record.error_message;
    EXPECT_EQ(record.device["kind"], "cuda");
    EXPECT_EQ(record.device["uuid"].get<std::string>().rfind("GPU-", 0), 0U);
    ASSERT_TRUE(record.vram_peak_mb && record.vram_reserved_peak_mb && record.vram_load_peak_mb);
    ASSERT_TRUE(record.planned_peak_mb && record.pinned_mb);
    // The allocator's granule is 2 MiB, more than all of this model.
    EXPECT_NEAR(*record.vram_peak_mb, *record.planned_peak_mb, 4.0);
    EXPECT_GE(*record.vram_reserved_peak_mb, *record.vram_peak_mb);
    EXPECT_LT(record.steps.loss.back(), record.steps.loss.front());
  }
  ASSERT_EQ(records[0].hashes.size(), records[1].hashes.size());
  for (std::size_t step = 0; step < records[0].hashes.size(); ++step) {
    EXPECT_EQ(records[0].hashes[step].loss, records[1].hashes[step].loss) << step;
    EXPECT_EQ(records[0].hashes[step].grad_norm, records[1].hashes[step].grad_norm) << step;
    EXPECT_EQ(records[0].hashes[step].tensors, records[1].hashes[step].tensors) << step;
  }
  EXPECT_EQ(records[0].arm["plan_hash"], records[1].arm["plan_hash"]);
}

TEST_F(CudaCell, WithoutMemoryItEndsAsOom) {
  TinyCell tiny;
  CellRequest request = tiny.request("resident", 2);
  request.cell.device = "cuda";
  request.cell.hardware.vram_cap_mb = 1;
  const PassRecord record = tiny.run(request);
  cuda_device().limit_memory(cuda_device().facts().total_bytes);
  EXPECT_EQ(record.status, "oom") << record.error_message;
  EXPECT_NE(record.error_message.find("the plan asks for"), std::string::npos)
      << record.error_message;
}

}  // namespace
}  // namespace poros
