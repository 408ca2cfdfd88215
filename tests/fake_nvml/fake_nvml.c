// SPDX-License-Identifier: Apache-2.0
// Stands in for libnvidia-ml.so.1 where a test needs GPUs that the machine has not. The GPUs are
// FAKE_NVML_GPUS="uuid,name,MiB;uuid,name,MiB"; FAKE_NVML_BUSY=pid puts a process on each,
// FAKE_NVML_THROTTLE=bits sets the throttle reasons, FAKE_NVML_FAIL=1 refuses to start,
// FAKE_NVML_DRIVER is the driver version.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kMost = 16 };
static struct {
  char uuid[96], name[96];
  unsigned long long mib;
} gpus[kMost];
static unsigned gpu_count = 0;

int nvmlInit_v2(void) {
  if (getenv("FAKE_NVML_FAIL") != NULL) return 9;
  const char* text = getenv("FAKE_NVML_GPUS");
  gpu_count = 0;
  while (text != NULL && *text != '\0' && gpu_count < kMost) {
    if (sscanf(text, "%95[^,],%95[^,],%llu", gpus[gpu_count].uuid, gpus[gpu_count].name,
               &gpus[gpu_count].mib) == 3) {
      ++gpu_count;
    }
    text = strchr(text, ';');
    if (text != NULL) ++text;
  }
  return 0;
}
const char* nvmlErrorString(int status) {
  return status == 9 ? "Driver Not Loaded" : "Unknown";
}
static int put(char* to, unsigned size, const char* text) {
  snprintf(to, size, "%s", text);
  return 0;
}
int nvmlSystemGetDriverVersion(char* to, unsigned size) {
  const char* version = getenv("FAKE_NVML_DRIVER");
  return put(to, size, version == NULL ? "580.00.01" : version);
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return *version = 13000, 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  return *count = gpu_count, 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= gpu_count) return 2;
  *device = &gpus[index];
  return 0;
}
static unsigned at(void* device) {
  return (unsigned)(((char*)device - (char*)gpus) / (long)sizeof gpus[0]);
}
int nvmlDeviceGetUUID(void* device, char* to, unsigned size) {
  return put(to, size, gpus[at(device)].uuid);
}
int nvmlDeviceGetName(void* device, char* to, unsigned size) {
  return put(to, size, gpus[at(device)].name);
}
struct pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
int nvmlDeviceGetPciInfo_v3(void* device, struct pci* pci) {
  memset(pci, 0, sizeof *pci);
  pci->bus = at(device) + 1;
  snprintf(pci->bus_id, sizeof pci->bus_id, "0000FA4E:%02X:00.0", pci->bus);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {
  const unsigned long long total = gpus[at(device)].mib << 20;
  total_free_used[0] = total;
  total_free_used[2] = 600ULL << 20;
  total_free_used[1] = total - total_free_used[2];
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  (void)device;
  return *major = 9, *minor = 0, 0;
}
int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* mhz) {
  (void)device;
  return *mhz = kind == 1 ? 1980 : 3201, 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
  (void)device;
  const char* bits = getenv("FAKE_NVML_THROTTLE");
  return *reasons = bits == NULL ? 1 : strtoull(bits, NULL, 0), 0;
}
int nvmlDeviceGetTemperature(void* device, int kind, unsigned* celsius) {
  (void)device, (void)kind;
  return *celsius = 41, 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatt) {
  (void)device;
  return *milliwatt = 500000, 0;
}
/// 500 W since the machine started, or what FAKE_NVML_ENERGY_MJ says.
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoule) {
  (void)device;
  const char* told = getenv("FAKE_NVML_ENERGY_MJ");
  if (told != NULL) return *millijoule = strtoull(told, NULL, 10), 0;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *millijoule = 500ULL * (unsigned long long)(now.tv_sec * 1000 + now.tv_nsec / 1000000);
  return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void* device, unsigned* value) {
  (void)device;
  return *value = 5, 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* value) {
  (void)device;
  return *value = 16, 0;
}
struct process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, struct process* out) {
  (void)device;
  const char* busy = getenv("FAKE_NVML_BUSY");
  if (busy == NULL) return *count = 0, 0;
  if (*count < 1) return *count = 1, 7;
  *count = 1;
  memset(out, 0, sizeof *out);
  out->pid = (unsigned)strtoul(busy, NULL, 10);
  out->used = 512ULL << 20;
  return 0;
}
