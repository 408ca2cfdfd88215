// SPDX-License-Identifier: Apache-2.0
#include "kernel_trace.hpp"

#include <cstdlib>
#include <mutex>

#include "base/error.hpp"

#if POROS_HAVE_CUPTI
#include <cupti.h>
#include <dlfcn.h>
#endif

namespace poros::bench {

#if POROS_HAVE_CUPTI
namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20, kBufferAlignment = 8;

/// The few functions that are used, of the library that the process has or finds.
struct Cupti {
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) callbacks = nullptr;
  decltype(&cuptiGetResultString) text = nullptr;
};

template <typename Function>
void load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) fail(Fault::environment, "CUPTI has no function {}", name);
}

const Cupti& cupti() {
  static const Cupti loaded = [] {
    // LibTorch brings one; the toolkit's is the second try.
    void* library = ::dlopen("libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      library = ::dlopen("/usr/local/cuda/lib64/libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
    }
    if (library == nullptr) {
      fail(Fault::environment,
           "libcupti.so.13 is not found, so kernels can't be timed by name: put the folder that "
           "holds it (CUDA toolkit, or nvidia/cu13/lib beside torch) into LD_LIBRARY_PATH, or use "
           "--phases, which needs none");
    }
    Cupti made;
    load(library, "cuptiActivityEnable", made.enable);
    load(library, "cuptiActivityDisable", made.disable);
    load(library, "cuptiActivityFlushAll", made.flush);
    load(library, "cuptiActivityGetNextRecord", made.next);
    load(library, "cuptiActivityRegisterCallbacks", made.callbacks);
    load(library, "cuptiGetResultString", made.text);
    return made;
  }();
  return loaded;
}

void check(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  (void)cupti().text(result, &text);
  fail(Fault::environment,
       "{}: CUPTI said {}; on many machines an administrator has to allow profiling "
       "(NVreg_RestrictProfilingToAdminUsers=0). --phases needs none",
       call, text == nullptr ? "no more" : text);
}

// CUPTI calls back from a thread of its own.
std::mutex g_mutex;
std::vector<Activity> g_activities;

const char* copy_name(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy on the device";
    default:
      return "other copy";
  }
}

void keep(const CUpti_Activity* record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    g_activities.push_back(
        {kernel->name == nullptr ? "?" : kernel->name, kernel->start, kernel->end, 0, false});
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
    g_activities.push_back({copy_name(copy->copyKind), copy->start, copy->end, copy->bytes, true});
  }
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                          std::size_t valid) {
  const std::scoped_lock lock(g_mutex);
  CUpti_Activity* record = nullptr;
  while (valid > 0 && cupti().next(buffer, valid, &record) == CUPTI_SUCCESS) keep(record);
  std::free(buffer);
}

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY};

}  // namespace

KernelTrace::KernelTrace() {
  check(cupti().callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
  {
    const std::scoped_lock lock(g_mutex);
    g_activities.clear();
  }
  for (const CUpti_ActivityKind kind : kKinds) {
    check(cupti().enable(kind), "cuptiActivityEnable");
  }
  running_ = true;
}

KernelTrace::~KernelTrace() {
  if (!running_) return;
  for (const CUpti_ActivityKind kind : kKinds) (void)cupti().disable(kind);
}

std::vector<Activity> KernelTrace::finish() {
  check(cupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  for (const CUpti_ActivityKind kind : kKinds) {
    check(cupti().disable(kind), "cuptiActivityDisable");
  }
  running_ = false;
  const std::scoped_lock lock(g_mutex);
  return std::move(g_activities);
}

#else

KernelTrace::KernelTrace() {
  fail(Fault::environment,
       "this program was built without CUPTI's header (CUDA toolkit 13): build it where cupti.h "
       "is, or use --phases, which needs none");
}
KernelTrace::~KernelTrace() = default;
std::vector<Activity> KernelTrace::finish() {
  return {};
}

#endif

}  // namespace poros::bench
