// SPDX-License-Identifier: Apache-2.0
#include "train/arm/failure.hpp"

#include <new>
#include <string_view>

#include <c10/util/Exception.h>

#include "base/error.hpp"

namespace poros {
namespace {

const char* reason_of(Fault fault) {
  switch (fault) {
    case Fault::usage:
    case Fault::input:
      return "bad_input";
    case Fault::io:
      return "io";
    case Fault::environment:
      return "environment";
    case Fault::run:
      break;
  }
  return "failed";
}

Failure out_of_memory(const std::string& what, const std::string& asked_for) {
  std::string message = "out of memory: " + what;
  if (!asked_for.empty()) message += "; " + asked_for;
  return {"oom", "", message};
}

}  // namespace

Failure describe_failure(const std::string& asked_for) {
  try {
    throw;
  } catch (const Skipped& skipped) {
    return {"skipped", skipped.reason(), skipped.what()};
  } catch (const OutOfMemory& error) {
    return out_of_memory(error.what(), asked_for);
  } catch (const Error& error) {
    return {"error", reason_of(error.fault()), error.what()};
  } catch (const c10::OutOfMemoryError& error) {
    return out_of_memory(error.what_without_backtrace(), asked_for);
  } catch (const c10::Error& error) {
    // LibTorch's CPU allocator reports a refused allocation as a plain c10::Error.
    const std::string_view text = error.what_without_backtrace();
    if (text.find("DefaultCPUAllocator: can't allocate memory") != std::string_view::npos) {
      return out_of_memory(std::string(text), asked_for);
    }
    return {"error", "failed", std::string(text)};
  } catch (const std::bad_alloc& error) {
    return out_of_memory(error.what(), asked_for);
  } catch (const std::exception& error) {
    return {"error", "failed", error.what()};
  } catch (...) {
    return {"error", "failed", "an exception of unknown type"};
  }
}

}  // namespace poros
