# SPDX-License-Identifier: Apache-2.0
# Device code is built when nvcc is found. CMake 3.25 does not know C++20 for CUDA, so the standard's
# flags are given by hand; architectures are named per target, never taken from a GPU that happens
# to be in the build machine.
set(POROS_HAVE_CUDA OFF)
if(POROS_CUDA)
  find_program(POROS_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin)
  if(POROS_NVCC)
    set(CMAKE_CUDA_COMPILER ${POROS_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    enable_language(CUDA)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA_STANDARD 20)
    find_package(CUDAToolkit REQUIRED)
    set(POROS_HAVE_CUDA ON)
  endif()
endif()
if(POROS_HAVE_CUDA)
  message(STATUS "CUDA toolkit ${CUDAToolkit_VERSION}: device code is built")
else()
  message(STATUS "No CUDA toolkit: device code is left out; CPU arms are complete, GPU cells are skipped with the reason no_cuda")
endif()
set(POROS_CUDA_ARCHITECTURES "80;86;90;100;103;120" CACHE STRING "Compute capabilities of device code")
