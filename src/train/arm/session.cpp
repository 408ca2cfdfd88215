// SPDX-License-Identifier: Apache-2.0
#include "train/arm/session.hpp"

#include <cstdio>
#include <limits>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/error.hpp"
#include "model/open_base.hpp"
#include "train/arm/failure.hpp"
#include "train/arm/residency_choice.hpp"
#include "train/device.hpp"

namespace poros {
namespace {

std::unique_ptr<BaseStore> open_input_base(const SessionInput& input,
                                           const std::function<void(const char*)>& on_phase) {
  BaseRequest request;
  request.model = input.model_dir;
  request.precision = input.cell.precision;
  request.synthetic = input.cell.model.weights == "synthetic";
  request.seed = static_cast<std::uint64_t>(input.cell.training.seed);
  request.cache = input.cache_dir;
  request.threads = static_cast<int>(input.threads);
  bool building = false;
  auto base = open_base(request, [&](std::int64_t, std::int64_t) {
    if (!building) on_phase("quantise");
    building = true;
  });
  if (building) on_phase("load");
  return base;
}

/// The adapter file decides what is trained; the spec says what it should be.
void check_places(const Adapter& adapter, const Architecture& architecture, const LoraSpec& lora,
                  const std::filesystem::path& folder) {
  const std::vector<LoraPlace> wanted = lora_places(architecture, lora);
  bool same = wanted.size() == adapter.places.size();
  for (std::size_t i = 0; same && i < wanted.size(); ++i) {
    const LoraPlace &a = wanted[i], &b = adapter.places[i];
    same = a.peft_name == b.peft_name && a.rank == b.rank && a.scale == b.scale;
  }
  if (!same) {
    fail(Fault::input, "{}: its places, ranks or scales are not those of the cell's lora settings",
         folder.string());
  }
}

/// Opens the GPU; an allocator limit of the spec counts from here on.
void* open_cuda(const HardwareSpec& hardware) {
  void* stream = cuda_device().open();
  if (hardware.vram_cap_mb.has_value()) {
    cuda_device().limit_memory(static_cast<std::uint64_t>(*hardware.vram_cap_mb) << 20);
  }
  return stream;
}

}  // namespace

TokenFile open_tokens(const std::filesystem::path& path) {
  TokenFile tokens = read_token_file(path);
  const std::string stem = path.stem().string();
  if (stem.size() == 64 && stem != tokens.sha256) {
    fail(Fault::input, "{}: its content has the sha256 {}: the file was changed", path.string(),
         tokens.sha256);
  }
  return tokens;
}

void check_vocabulary(const TokenFile& tokens, const Architecture& architecture,
                      const std::filesystem::path& path) {
  if (tokens.vocab <= architecture.vocab) return;
  fail(Fault::input, "{}: ids go up to {}, but the model's vocabulary has {} entries",
       path.string(), tokens.vocab, architecture.vocab);
}

void check_device(const std::string& device) {
  if (device == "cuda" && !has_cuda()) {
    throw Skipped("no_cuda", cuda_device().count == nullptr
                                 ? "this program has no device code: poros-cell-cuda has, where it "
                                   "was built with a CUDA toolkit; or use device: cpu"
                                 : "no GPU that CUDA can use was found; use device: cpu");
  }
  if (device != "cpu" && device != "cuda") {
    fail(Fault::input, "device \"{}\" is unknown; use cuda or cpu", device);
  }
}

StepMemory step_memory(const Session& session) {
  if (session.numerical.device.cuda) {
    const CudaMemory memory = cuda_device().memory();
    return {static_cast<double>(memory.allocated) / 1048576.0,
            static_cast<double>(memory.reserved) / 1048576.0};
  }
  const double arena_mb = static_cast<double>(session.memory.arena_bytes) / 1048576.0;
  return {arena_mb, arena_mb};
}

void log_line(const std::string& text) {
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
}

std::string Session::asked_for() const {
  if (memory.arena_bytes == 0) return {};
  const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1048576.0; };
  return fmt::format("the plan asks for {:.1f} MiB of device memory and {:.1f} MiB of host memory",
                     mib(memory.arena_bytes), mib(memory.host_bytes + memory.pinned_bytes));
}

void open_session(const SessionInput& input, const std::function<void(const char*)>& on_phase,
                  Session& session) {
  if (input.threads < 1 || input.threads > std::numeric_limits<int>::max()) {
    fail(Fault::input, "threads {} must be at least 1", input.threads);
  }
  const bool cuda = input.cell.device == "cuda";
  const DeviceModel device =
      cuda ? cuda_device_model() : cpu_device_model(static_cast<int>(input.threads));
  Stream stream{DeviceKind::cpu, nullptr, device.threads};
  if (cuda) {
    stream = {DeviceKind::cuda, open_cuda(input.cell.hardware), 1};
  } else {
    prepare_cpu_math(device);
  }
  session.base = open_input_base(input, on_phase);
  const Architecture& architecture = session.base->architecture();
  if (!input.adapter_dir.empty()) {
    session.adapter = read_adapter(input.adapter_dir, architecture);
    if (input.check_adapter) {
      check_places(session.adapter, architecture, input.cell.lora, input.adapter_dir);
    }
  }
  const CellSpec& cell = input.cell;
  session.numerical =
      make_numerical_plan(architecture, cell.training, cell.lora, cell.poros, device);
  const ResidencySettings residency =
      cell.method == "auto"
          ? choose_residency(*session.base, session.numerical, session.adapter.places, cell.poros,
                             free_device_bytes(device))
          : residency_settings(cell.method, cell.poros);
  session.memory =
      make_memory_plan(*session.base, session.numerical, session.adapter.places, residency);
  session.executor = std::make_unique<Executor>(*session.base, session.numerical, session.memory,
                                                session.adapter, stream);
}

}  // namespace poros
