// SPDX-License-Identifier: Apache-2.0
// kernel_bench: checks each kernel against the CPU reference on random data of the real shapes,
// then times it and prints time, GB/s and percent of the copy ceiling measured on the same GPU.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "base/json.hpp"
#include "bench_cases.hpp"
#include "bench_device.hpp"
#include "kernels/backends.hpp"

namespace poros::bench {
namespace {

/// Random content; the same for the same operand name and size.
std::vector<std::byte> content(const Operand& operand) {
  std::vector<std::byte> bytes(operand.bytes);
  std::mt19937_64 generator(std::hash<std::string>{}(operand.name) ^ operand.bytes);
  // Sum of four 16-bit uniforms: close to normal, and fast. Variance 4/12 before scaling.
  const auto normal = [&] {
    const std::uint64_t w = generator();
    const double sum =
        static_cast<double>((w & 0xFFFF) + (w >> 16 & 0xFFFF) + (w >> 32 & 0xFFFF) + (w >> 48)) /
        65536.0;
    return (sum - 2.0) * std::sqrt(3.0) * operand.scale;
  };
  const auto put_float = [&](std::size_t i, double value) {
    if (operand.dtype == DType::f32) {
      const auto single = static_cast<float>(value);
      std::memcpy(&bytes[4 * i], &single, 4);
    } else {
      const Bf16 half = to_bf16(static_cast<float>(value));
      std::memcpy(&bytes[2 * i], &half, 2);
    }
  };
  const std::size_t numbers = operand.bytes / bytes_of(operand.dtype);
  switch (operand.fill) {
    case Fill::normal:
      for (std::size_t i = 0; i < numbers; ++i) put_float(i, normal());
      break;
    case Fill::positive:
      for (std::size_t i = 0; i < numbers; ++i) put_float(i, operand.scale + std::fabs(normal()));
      break;
    case Fill::bytes:
      for (auto& byte : bytes) byte = static_cast<std::byte>(generator());
      break;
    case Fill::integers:
    case Fill::iota:
      for (std::size_t i = 0; i < operand.bytes / 4; ++i) {
        const auto limit = static_cast<std::uint64_t>(operand.limit);
        const auto value =
            static_cast<std::int32_t>(operand.fill == Fill::iota ? i : generator() % limit);
        std::memcpy(&bytes[4 * i], &value, 4);
      }
      break;
    case Fill::zeros:
      break;
  }
  return bytes;
}

double value_at(const std::vector<std::byte>& bytes, DType dtype, std::size_t i) {
  if (dtype == DType::f32) {
    float single = 0;
    std::memcpy(&single, &bytes[4 * i], 4);
    return single;
  }
  Bf16 half;
  std::memcpy(&half, &bytes[2 * i], 2);
  return to_float(half);
}

/// Text of the first difference, empty when the GPU agrees with the CPU.
std::string difference(const Operand& operand, const std::vector<std::byte>& expected,
                       const std::vector<std::byte>& actual) {
  if (operand.exact) return expected == actual ? "" : operand.name + ": bits differ";
  const double relative = operand.loosen * (operand.dtype == DType::f32 ? 2e-5 : 1.0 / 64);
  for (std::size_t i = 0; i < expected.size() / bytes_of(operand.dtype); ++i) {
    const double a = value_at(actual, operand.dtype, i);
    const double e = value_at(expected, operand.dtype, i);
    if (!(std::fabs(a - e) <= relative * std::fabs(e) + relative / 10)) {
      return fmt::format("{}[{}]: {} instead of {}", operand.name, i, a, e);
    }
  }
  return "";
}

/// Device copies of a case's operands.
struct Instance {
  std::vector<DeviceMemory> memory;
  std::vector<void*> pointers;
};

Instance on_device(const Case& test, const std::vector<std::vector<std::byte>>& host) {
  Instance instance;
  for (std::size_t i = 0; i < test.operands.size(); ++i) {
    instance.memory.emplace_back(host[i].size());
    instance.pointers.push_back(instance.memory.back().data());
    upload(instance.pointers.back(), host[i].data(), host[i].size());
  }
  return instance;
}

/// Bytes a second of the fastest copy of a buffer far larger than the L2 cache, both ways counted.
double copy_ceiling(const Stream& stream, double seconds, std::FILE* table) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const DeviceMemory from(kBytes);
  const DeviceMemory to(kBytes);
  upload(from.data(), content({.name = "copy", .fill = Fill::bytes, .bytes = kBytes}).data(),
         kBytes);
  const double by_runtime = time_of(stream, seconds, [&](std::size_t) {
    copy_on_device(stream, to.data(), from.data(), kBytes);
  });
  const double by_kernel = time_of(stream, seconds, [&](std::size_t) {
    copy_rows(stream, {.x = from.data(),
                       .y = to.data(),
                       .rows = static_cast<std::int64_t>(kBytes / 2 / 4096),
                       .cols = 4096,
                       .x_dtype = DType::bf16,
                       .y_dtype = DType::bf16});
  });
  std::fprintf(table, "copy of 1 GiB: runtime %.0f GB/s, own kernel %.0f GB/s (read + written)\n",
               2e-9 * kBytes / by_runtime, 2e-9 * kBytes / by_kernel);
  return 2.0 * kBytes / std::min(by_runtime, by_kernel);
}

int run(const std::string& only, double seconds, int threads, bool as_json) {
  const DeviceInfo device = open_device();
  if (!register_cuda_kernels()) fail(Fault::environment, "this build holds no device code");
  const Stream stream = new_stream();
  std::FILE* table = as_json ? stderr : stdout;
  std::fprintf(table, "%s, compute capability %d, L2 %.0f MB\n", device.name.c_str(),
               device.compute_capability, device.l2_bytes / 1e6);
  const double ceiling = copy_ceiling(stream, seconds, table);
  std::fprintf(table, "%-42s %-16s %10s %9s %9s  %s\n", "kernel", "shape", "us", "GB/s",
               "% of copy", "result");
  bool all_right = true;
  Json results = Json::array();
  for (const Case& test : all_cases()) {
    if (test.name.find(only) == std::string::npos) continue;
    std::vector<std::vector<std::byte>> host;
    for (const Operand& operand : test.operands) host.push_back(content(operand));
    // Take turns over enough copies that nothing of a turn is still in the cache.
    std::vector<Instance> instances;
    const auto copies = static_cast<std::size_t>(std::ceil(4 * device.l2_bytes / test.moved)) + 1;
    for (std::size_t i = 0; i < copies; ++i) instances.push_back(on_device(test, host));
    test.run(stream, instances[0].pointers);
    std::vector<void*> pointers;
    for (auto& bytes : host) pointers.push_back(bytes.data());
    test.run({.threads = threads}, pointers);
    std::string verdict;
    synchronise(stream);  // download() does not wait for a non-blocking stream
    for (std::size_t i = 0; i < test.operands.size() && verdict.empty(); ++i) {
      if (!test.operands[i].checked) continue;
      std::vector<std::byte> actual(host[i].size());
      download(actual.data(), instances[0].pointers[i], actual.size());
      verdict = difference(test.operands[i], host[i], actual);
    }
    all_right = all_right && verdict.empty();
    const double time = time_of(stream, seconds, [&](std::size_t i) {
      test.run(stream, instances[i % instances.size()].pointers);
    });
    std::fprintf(table, "%-42s %-16s %10.1f %9.0f %9.1f  %s\n", test.name.c_str(),
                 test.shape.c_str(), time * 1e6, test.moved / time / 1e9,
                 100 * test.moved / time / ceiling, verdict.empty() ? "right" : verdict.c_str());
    std::fflush(table);
    results.push_back({{"kernel", test.name},
                       {"shape", test.shape},
                       {"seconds", time},
                       {"bytes", test.moved},
                       {"share_of_copy", test.moved / time / ceiling},
                       {"difference", verdict}});
  }
  if (as_json) {
    const Json all = {{"device", device.name},
                      {"compute_capability", device.compute_capability},
                      {"copy_bytes_per_s", ceiling},
                      {"kernels", results}};
    std::printf("%s\n", dump_json(all, 2).c_str());
  }
  return all_right ? kDone : kFailed;
}

}  // namespace
}  // namespace poros::bench

int main(int argc, char** argv) {
  CLI::App app("Checks and times the CUDA kernels at the shapes of a 7B training step.");
  std::string only;
  double seconds = 0.5;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  app.add_option("--only", only, "Only kernels whose name contains this");
  app.add_option("--seconds", seconds, "How long each kernel is timed [s]")->capture_default_str();
  app.add_option("--threads", threads, "CPU threads of the reference")->capture_default_str();
  bool as_json = false;
  app.add_flag("--json", as_json, "JSON on standard output, the table on standard error");
  CLI11_PARSE(app, argc, argv);
  try {
    return poros::bench::run(only, seconds, threads, as_json);
  } catch (const poros::Error& error) {
    std::fprintf(stderr, "kernel_bench: %s\n", error.what());
    return error.exit_code();
  }
}
