// SPDX-License-Identifier: Apache-2.0
// Matrix products by cublasLt. Row-major C = A B is column-major C^T = B^T A^T, so our B is its
// first operand. The algorithm is the heuristic's first under fixed preferences (no split along k,
// one workspace size, the operands' alignment capped at 256 bytes) and is kept for each shape.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include <cublasLt.h>

#include "base/error.hpp"
#include "kernels/elementwise.hpp"
#include "train/cuda_parts.hpp"

namespace poros {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(Fault::run, "{}: cublasLt said {}", call, cublasLtGetStatusName(status));
  }
}

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      break;
  }
  fail(Fault::run, "a matrix product takes f32 and bf16, not {}", name_of(dtype));
}

/// The largest power of two up to 256 that divides address and strides [bytes].
std::uint32_t alignment_of(const void* data, std::uint64_t row_bytes, std::uint64_t batch_bytes) {
  const std::uint64_t bits =
      reinterpret_cast<std::uintptr_t>(data) | row_bytes | batch_bytes | std::uint64_t{256};
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// Owns a descriptor that one function makes and another destroys.
template <typename Handle, cublasStatus_t (*Destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) (void)Destroy(handle_);
  }
  Owned(Owned&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Owned& operator=(Owned&&) = delete;
  [[nodiscard]] Handle* slot() { return &handle_; }
  [[nodiscard]] Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// Everything that decides the algorithm.
using Key = std::array<std::int64_t, 21>;

struct Kept {
  Operation operation;
  Layout a, b, c, addend;
  cublasLtMatmulAlgo_t algorithm{};
  bool adds_bias = false;  // in the product's epilogue
};

/// What beta multiplies.
const void* addend_of(const Gemm& gemm) {
  return gemm.addend != nullptr ? gemm.addend : gemm.c;
}
std::int64_t addend_stride_of(const Gemm& gemm) {
  return gemm.addend != nullptr ? gemm.addend_stride : gemm.c_stride;
}

void set_bias(const Operation& operation, const void* bias) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                       sizeof bias),
        "bias");
}

void set_layout(Layout& layout, DType dtype, std::int64_t rows, std::int64_t cols,
                std::int64_t stride, std::int64_t batch, std::int64_t batch_stride) {
  check(
      cublasLtMatrixLayoutCreate(layout.slot(), cuda_type(dtype), static_cast<std::uint64_t>(rows),
                                 static_cast<std::uint64_t>(cols), stride),
      "cublasLtMatrixLayoutCreate");
  if (batch == 1) return;
  const auto count = static_cast<std::int32_t>(batch);
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                         sizeof count),
        "batch count");
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &batch_stride, sizeof batch_stride),
        "batch stride");
}

/// Column-major view of a row-major operand that is stored as [rows, cols].
void set_operand(Layout& layout, const GemmOperand& operand, std::int64_t rows, std::int64_t cols,
                 std::int64_t batch) {
  const std::int64_t stored_rows = operand.transposed ? cols : rows;
  const std::int64_t stored_cols = operand.transposed ? rows : cols;
  set_layout(layout, operand.dtype, stored_cols, stored_rows, operand.stride, batch,
             operand.batch_stride);
}

std::uint32_t alignment_of(const GemmOperand& operand) {
  const std::uint64_t bytes = bytes_of(operand.dtype);
  return alignment_of(operand.data, static_cast<std::uint64_t>(operand.stride) * bytes,
                      static_cast<std::uint64_t>(operand.batch_stride) * bytes);
}

class CudaGemm final : public GemmEngine {
 public:
  CudaGemm(const Stream& stream, void* workspace, std::size_t bytes)
      : stream_(static_cast<cudaStream_t>(stream.handle)), workspace_(workspace), bytes_(bytes) {
    check(cublasLtCreate(&handle_), "cublasLtCreate");
  }
  ~CudaGemm() override {
    kept_.clear();
    (void)cublasLtDestroy(handle_);
  }
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  void multiply(const Gemm& gemm) override {
    if (gemm.m == 0 || gemm.n == 0 || gemm.batch == 0) return;
    if (gemm.a.dtype != gemm.b.dtype) {
      fail(Fault::run, "a matrix product of {} by {} is not supported", name_of(gemm.a.dtype),
           name_of(gemm.b.dtype));
    }
    if (gemm.batch == 1 || gemm.c_batch_stride != 0) {
      run(gemm);
      return;
    }
    // The products share one C: one after the other, so that they add up in the batch's order.
    Gemm one = gemm;
    one.batch = 1;
    const auto step = [](const GemmOperand& operand, std::int64_t index) {
      return static_cast<const std::byte*>(operand.data) +
             index * operand.batch_stride * static_cast<std::int64_t>(bytes_of(operand.dtype));
    };
    for (std::int64_t index = 0; index < gemm.batch; ++index) {
      one.a.data = step(gemm.a, index);
      one.b.data = step(gemm.b, index);
      run(one);
    }
  }

 private:
  void run(const Gemm& gemm) {
    const Kept& kept = find(gemm);
    if (kept.adds_bias) set_bias(kept.operation, gemm.bias);
    check(cublasLtMatmul(handle_, kept.operation.get(), &gemm.alpha, gemm.b.data, kept.b.get(),
                         gemm.a.data, kept.a.get(), &gemm.beta, addend_of(gemm), kept.addend.get(),
                         gemm.c, kept.c.get(), &kept.algorithm, workspace_, bytes_, stream_),
          "cublasLtMatmul");
    if (gemm.bias == nullptr || kept.adds_bias) return;
    add_bias({.device = DeviceKind::cuda, .handle = stream_}, {.x = gemm.c,
                                                               .bias = gemm.bias,
                                                               .rows = gemm.m,
                                                               .cols = gemm.n,
                                                               .x_stride = gemm.c_stride,
                                                               .dtype = gemm.c_dtype,
                                                               .bias_dtype = gemm.bias_dtype});
  }

  const Kept& find(const Gemm& gemm) {
    const std::uint64_t c_bytes = bytes_of(gemm.c_dtype);
    const std::uint32_t align_a = alignment_of(gemm.a), align_b = alignment_of(gemm.b);
    const std::uint32_t align_addend =
        alignment_of(addend_of(gemm), static_cast<std::uint64_t>(addend_stride_of(gemm)) * c_bytes,
                     static_cast<std::uint64_t>(gemm.c_batch_stride) * c_bytes);
    // The epilogue takes a bias of C's dtype, aligned to 16 bytes.
    const bool adds_bias = gemm.bias != nullptr && gemm.bias_dtype == gemm.c_dtype &&
                           reinterpret_cast<std::uintptr_t>(gemm.bias) % 16 == 0;
    const std::uint32_t align_c =
        alignment_of(gemm.c, static_cast<std::uint64_t>(gemm.c_stride) * c_bytes,
                     static_cast<std::uint64_t>(gemm.c_batch_stride) * c_bytes);
    const Key key = {gemm.m,
                     gemm.n,
                     gemm.k,
                     gemm.batch,
                     static_cast<std::int64_t>(gemm.a.dtype),
                     static_cast<std::int64_t>(gemm.c_dtype),
                     gemm.a.transposed ? 1 : 0,
                     gemm.b.transposed ? 1 : 0,
                     gemm.a.stride,
                     gemm.b.stride,
                     gemm.c_stride,
                     gemm.a.batch_stride,
                     gemm.b.batch_stride,
                     gemm.c_batch_stride,
                     align_a,
                     align_b,
                     align_c,
                     gemm.beta != 0 ? 1 : 0,
                     addend_stride_of(gemm),
                     align_addend,
                     adds_bias ? 1 : 0};
    const auto found = kept_.find(key);
    if (found != kept_.end()) return found->second;
    const Alignments alignments = {align_a, align_b, align_c, align_addend};
    if (adds_bias) {
      std::optional<Kept> kept = choose(gemm, alignments, true);
      if (kept.has_value()) return kept_.emplace(key, std::move(*kept)).first->second;
    }
    return kept_.emplace(key, std::move(*choose(gemm, alignments, false))).first->second;
  }

  struct Alignments {
    std::uint32_t a, b, c, addend;
  };

  /// @returns nothing where no algorithm adds the bias in its epilogue: it is added afterwards then
  [[nodiscard]] std::optional<Kept> choose(const Gemm& gemm, const Alignments& align,
                                           bool adds_bias) const {
    Kept kept;
    kept.adds_bias = adds_bias;
    // fp32 accumulation; fp32 operands are multiplied as they are (no tf32).
    check(cublasLtMatmulDescCreate(kept.operation.slot(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    const cublasOperation_t first = gemm.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = gemm.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(kept.operation.get(), CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                         sizeof first),
          "transpose");
    check(cublasLtMatmulDescSetAttribute(kept.operation.get(), CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                         sizeof second),
          "transpose");
    set_operand(kept.a, gemm.a, gemm.m, gemm.k, gemm.batch);
    set_operand(kept.b, gemm.b, gemm.k, gemm.n, gemm.batch);
    set_layout(kept.c, gemm.c_dtype, gemm.n, gemm.m, gemm.c_stride, gemm.batch,
               gemm.c_batch_stride);
    set_layout(kept.addend, gemm.c_dtype, gemm.n, gemm.m, addend_stride_of(gemm), gemm.batch,
               gemm.c_batch_stride);
    if (adds_bias) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      check(cublasLtMatmulDescSetAttribute(kept.operation.get(), CUBLASLT_MATMUL_DESC_EPILOGUE,
                                           &epilogue, sizeof epilogue),
            "epilogue");
      set_bias(kept.operation, gemm.bias);
    }

    Preference preference;
    check(cublasLtMatmulPreferenceCreate(preference.slot()), "cublasLtMatmulPreferenceCreate");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(bytes_));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align.b);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align.a);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align.addend);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align.c);
    cublasLtMatmulHeuristicResult_t result{};
    int results = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, kept.operation.get(), kept.b.get(), kept.a.get(), kept.addend.get(), kept.c.get(),
        preference.get(), 1, &result, &results);
    if (status != CUBLAS_STATUS_SUCCESS || results == 0 || result.state != CUBLAS_STATUS_SUCCESS) {
      if (adds_bias) return std::nullopt;
      fail(Fault::run,
           "cublasLt has no algorithm for the product m {} n {} k {} batch {} of {} into {} "
           "(strides {}, {}, {}, alignments {}, {}, {}): {}",
           gemm.m, gemm.n, gemm.k, gemm.batch, name_of(gemm.a.dtype), name_of(gemm.c_dtype),
           gemm.a.stride, gemm.b.stride, gemm.c_stride, align.a, align.b, align.c,
           cublasLtGetStatusName(status));
    }
    kept.algorithm = result.algo;
    return kept;
  }

  cudaStream_t stream_;
  void* workspace_;
  std::size_t bytes_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Kept> kept_;
};

}  // namespace

std::unique_ptr<GemmEngine> make_cuda_gemm(const Stream& stream, void* workspace,
                                           std::size_t workspace_bytes) {
  return std::make_unique<CudaGemm>(stream, workspace, workspace_bytes);
}

}  // namespace poros
