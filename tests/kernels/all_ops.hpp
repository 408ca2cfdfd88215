// SPDX-License-Identifier: Apache-2.0
// Every op once or more on one set of inputs, on whichever device the stream names. The outputs are
// compared between thread counts, instruction sets and devices.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "operand.hpp"

namespace poros::test {

/// Memory of one device. What it gives lives as long as it does.
class Memory {
 public:
  virtual ~Memory() = default;
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;  // aligned to 256 bytes
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
};

class HostMemory : public Memory {
 public:
  void* allocate(std::size_t bytes) override;
  void upload(void* to, const void* from, std::size_t bytes) override;
  void download(void* to, const void* from, std::size_t bytes) override;

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<void, Free>> held_;
};

/// How near two devices must come. Between CPUs every output has equal bits.
enum class Agreement {
  exact,  // equal bits on every device
  close,  // within the dtype's tolerance times `loosen`
};

struct Output {
  std::string name;
  Operand values;
  Agreement agreement = Agreement::close;
  double loosen = 1.0;
};

/// Runs everything. Aborts the test (throws) on an op that fails.
[[nodiscard]] std::vector<Output> run_all_ops(const Stream& stream, Memory& memory);

}  // namespace poros::test
