// SPDX-License-Identifier: Apache-2.0
// The parts of run_all_ops(): each runs an op and keeps what came out.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "all_ops.hpp"
#include "kernels/gated_activation.hpp"
#include "kernels/rms_norm.hpp"

namespace poros::test {

/// The running state of run_all_ops: where it runs and what came out.
class Runner {
 public:
  Runner(const Stream& where, Memory& memory) : stream(where), memory_(memory) {}

  const Stream& stream;

  void* put(const Operand& operand) { return put_bytes(operand.data(), operand.bytes().size()); }
  template <typename T>
  T* put(const std::vector<T>& values) {
    return static_cast<T*>(put_bytes(values.data(), values.size() * sizeof(T)));
  }
  void* room(DType dtype, std::int64_t count) {
    const Operand zeros(dtype, static_cast<std::size_t>(count));
    return put(zeros);
  }
  float* floats(std::int64_t count) { return static_cast<float*>(room(DType::f32, count)); }

  void keep(const std::string& name, const void* data, DType dtype, std::int64_t count,
            Agreement agreement = Agreement::close, double loosen = 1.0) {
    Operand values(dtype, static_cast<std::size_t>(count));
    memory_.download(values.data(), data, values.bytes().size());
    outputs.push_back({name + " " + name_of(dtype), std::move(values), agreement, loosen});
  }
  void keep_integers(const std::string& name, const std::int32_t* data, std::int64_t count) {
    std::vector<std::int32_t> host(static_cast<std::size_t>(count));
    memory_.download(host.data(), data, host.size() * sizeof(std::int32_t));
    outputs.push_back({name, Operand(DType::f32, std::vector<double>(host.begin(), host.end())),
                       Agreement::exact, 1.0});
  }
  Memory& memory() { return memory_; }

  std::vector<Output> outputs;

 private:
  void* put_bytes(const void* data, std::size_t bytes) {
    void* p = memory_.allocate(bytes);
    memory_.upload(p, data, bytes);
    return p;
  }
  Memory& memory_;
};

inline constexpr std::int64_t kRows = 70,
                              kCols = 1003;  // odd on purpose: rows end off every vector

void norms(Runner& run, DType dtype, std::int64_t cols, NormWeight kind);
void heads(Runner& run, DType dtype);
void gated(Runner& run, DType dtype, GateFunction function, std::int64_t cols);
void attention(Runner& run, float softcap, std::int64_t window, bool packed,
               std::int64_t keys = 600);
void loss(Runner& run, DType dtype, float softcap);
void rounded_exponentials(Runner& run, std::int64_t classes);
void optimizer(Runner& run);
void dropouts(Runner& run, DType dtype);
void elementwise(Runner& run, DType dtype);
void experts(Runner& run, DType dtype);
void low_rank(Runner& run);
void strided_weights(Runner& run, DType dtype, std::int64_t rows, std::int64_t cols);
void weights(Runner& run, DType dtype, std::int64_t count, bool nested);

}  // namespace poros::test
