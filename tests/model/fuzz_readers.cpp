// SPDX-License-Identifier: Apache-2.0
// libFuzzer target for what reads other people's model files: a safetensors header (first byte 0),
// config.json (1), adapter_config.json with weights (2; 4: for a model with experts), token files
// (3). Every input ends in success or in Error; anything else is a fault.
//
//   cmake -B build-fuzz -DCMAKE_CXX_COMPILER=clang++ -DPOROS_FUZZ=ON && ninja -C build-fuzz
//   fuzz_readers build-fuzz/tests/fuzz_readers -max_total_time=300 -rss_limit_mb=512
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/safetensors.hpp"
#include "model/token_file.hpp"

namespace {

namespace fs = std::filesystem;

/// A file in memory with this content.
poros::UniqueFd memory_file(std::string_view content) {
  poros::UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC));
  poros::write_all(fd.get(), content.data(), content.size(), "fuzz");
  return fd;
}

fs::path path_of(const poros::UniqueFd& fd) {
  return "/proc/self/fd/" + std::to_string(fd.get());
}

poros::Architecture golden(const char* name) {
  return poros::read_architecture(
      poros::read_model_config(fs::path(POROS_SOURCE_DIR) / "tests/goldens" / name));
}

/// A folder whose two files are links to files in memory.
void read_adapter(std::string_view content, const poros::Architecture& model) {
  const std::size_t cut = content.find('\0');
  const std::string_view config = content.substr(0, cut);
  const std::string_view weights =
      cut == std::string_view::npos ? std::string_view() : content.substr(cut + 1);
  static const fs::path folder = [] {
    std::string name = (fs::temp_directory_path() / "poros-fuzz-XXXXXX").string();
    return fs::path(::mkdtemp(name.data()));
  }();
  const poros::UniqueFd first = memory_file(config), second = memory_file(weights);
  fs::remove(folder / "adapter_config.json");
  fs::remove(folder / "adapter_model.safetensors");
  fs::create_symlink(path_of(first), folder / "adapter_config.json");
  fs::create_symlink(path_of(second), folder / "adapter_model.safetensors");
  (void)poros::read_adapter(folder, model);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] == 2 || data[0] == 4) {
      static const poros::Architecture dense = golden("arch_llama"), moe = golden("arch_qwen3_moe");
      read_adapter(content, data[0] == 2 ? dense : moe);
      return 0;
    }
    const poros::UniqueFd fd = memory_file(content);
    if (data[0] == 0) {
      const poros::SafetensorsFile file(path_of(fd));
      for (const auto& [name, tensor] : file.tensors()) (void)file.read(tensor);
    } else if (data[0] == 1) {
      (void)poros::read_architecture(poros::read_model_config(path_of(fd)));
    } else if (data[0] == 3) {
      (void)poros::read_token_file(path_of(fd));
    }
  } catch (const poros::Error&) {
  }
  return 0;
}
