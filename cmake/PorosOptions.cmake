# SPDX-License-Identifier: Apache-2.0
option(POROS_BUILD_TESTS "Build the tests" ON)
option(POROS_WARNINGS_AS_ERRORS "Treat warnings as errors" OFF)
option(POROS_CUDA "Build device code when a CUDA toolkit is found" ON)
option(POROS_SANITIZE "Build with AddressSanitizer and UndefinedBehaviorSanitizer" OFF)
set(POROS_TORCH_ROOT "" CACHE PATH "Folder that holds torch/ (a Python site-packages folder or an unpacked LibTorch)")
set(POROS_PREFIX "" CACHE PATH "Where scripts/bootstrap.sh put the Python environments (default: .deps in the checkout)")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo" FORCE)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Bits must not depend on what the compiler may fuse: a multiply-add is contracted only where the
# source asks for it (std::fma).
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(POROS_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>)
  add_link_options(-fsanitize=address,undefined)
endif()
