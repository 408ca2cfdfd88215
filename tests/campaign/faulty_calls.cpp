// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD: the n-th call of one kind on a file below a folder fails. Only in a
// process whose first argument is `__drive`; its cells are left alone.
//   POROS_FAULT="<kind> <n> <folder>"   kind: write, sync, rename, create
//   POROS_FAULT_FIRED=<file>            gets the path whose call failed
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

namespace {

struct Settings {
  char kind[16] = "";
  long n = 0;
  char folder[PATH_MAX] = "";
};

bool is_driver() {
  char text[8192] = {};
  const int fd = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t got = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  const char* second = text + std::strlen(text) + 1;
  return got > 0 && second < text + got && std::strcmp(second, "__drive") == 0;
}

const Settings& settings() {
  static const Settings found = [] {
    Settings s;
    const char* text = std::getenv("POROS_FAULT");
    if (text == nullptr || !is_driver()) return s;
    if (std::sscanf(text, "%15s %ld %4095s", s.kind, &s.n, s.folder) != 3) s.n = 0;
    return s;
  }();
  return found;
}

std::atomic<long> g_calls{0};

bool fires(const char* kind, const char* path) {
  const Settings& s = settings();
  if (s.n == 0 || std::strcmp(kind, s.kind) != 0) return false;
  if (std::strncmp(path, s.folder, std::strlen(s.folder)) != 0) return false;
  if (++g_calls != s.n) return false;
  const char* fired = std::getenv("POROS_FAULT_FIRED");
  const int fd = static_cast<int>(
      ::syscall(SYS_openat, AT_FDCWD, fired, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  ::syscall(SYS_write, fd, path, std::strlen(path));
  ::syscall(SYS_close, fd);
  return true;
}

bool fires(const char* kind, int file) {
  if (settings().n == 0) return false;
  char link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  char path[PATH_MAX] = {};
  return ::readlink(link, path, sizeof path - 1) > 0 && fires(kind, path);
}

int error(int number) {
  errno = number;
  return -1;
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* from, size_t bytes) {
  static const auto next = real<ssize_t (*)(int, const void*, size_t)>("write");
  return fires("write", fd) ? error(ENOSPC) : next(fd, from, bytes);
}

ssize_t pwrite(int fd, const void* from, size_t bytes, off_t at) {
  static const auto next = real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return fires("write", fd) ? error(ENOSPC) : next(fd, from, bytes, at);
}

ssize_t pwrite64(int fd, const void* from, size_t bytes, off64_t at) {
  static const auto next = real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  return fires("write", fd) ? error(ENOSPC) : next(fd, from, bytes, at);
}

int fsync(int fd) {
  static const auto next = real<int (*)(int)>("fsync");
  return fires("sync", fd) ? error(EIO) : next(fd);
}

int fdatasync(int fd) {
  static const auto next = real<int (*)(int)>("fdatasync");
  return fires("sync", fd) ? error(EIO) : next(fd);
}

int rename(const char* from, const char* to) {
  static const auto next = real<int (*)(const char*, const char*)>("rename");
  return fires("rename", to) ? error(EIO) : next(from, to);
}

int mkostemp(char* name, int flags) {
  static const auto next = real<int (*)(char*, int)>("mkostemp");
  return fires("create", name) ? error(ENOSPC) : next(name, flags);
}

int open(const char* path, int flags, ...) {
  static const auto next = real<int (*)(const char*, int, ...)>("open");
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  if ((flags & O_CREAT) != 0 && fires("create", path)) return error(ENOSPC);
  return next(path, flags, mode);
}

}  // extern "C"
