# SPDX-License-Identifier: Apache-2.0
# LibTorch as imported targets. find_package(Torch) is left aside: it runs a GPU-detecting try_run,
# edits CMAKE_CUDA_FLAGS globally and adds run paths of its own.
set(_torch_hints ${POROS_TORCH_ROOT} $ENV{POROS_TORCH_ROOT} ${PROJECT_SOURCE_DIR}/.deps/site)
find_path(POROS_TORCH_DIR NAMES torch/include/ATen/ATen.h include/ATen/ATen.h HINTS ${_torch_hints}
          PATHS /opt/libtorch /usr/local/libtorch NO_CMAKE_FIND_ROOT_PATH)
if(NOT POROS_TORCH_DIR)
  message(FATAL_ERROR "LibTorch was not found. Run scripts/bootstrap.sh, or give -DPOROS_TORCH_ROOT=<site-packages folder that holds torch/>.")
endif()
if(EXISTS ${POROS_TORCH_DIR}/torch/include/ATen/ATen.h)
  set(_torch ${POROS_TORCH_DIR}/torch)
else()
  set(_torch ${POROS_TORCH_DIR})
endif()

add_library(poros_torch INTERFACE)
add_library(poros::torch ALIAS poros_torch)
# -idirafter: searched after the system's own headers. LibTorch carries copies of other libraries
# (fmt 12, dnnl, ...) whose headers would otherwise shadow the ones that are linked.
target_compile_options(poros_torch INTERFACE "SHELL:-idirafter ${_torch}/include"
                                             "SHELL:-idirafter ${_torch}/include/torch/csrc/api/include")
target_link_directories(poros_torch INTERFACE ${_torch}/lib)
target_compile_definitions(poros_torch INTERFACE C10_USE_MINIMAL_GLOG=0)
# torch_cpu needs CUPTI and libcudart at load time even where no GPU is used; they lie beside it
# (wheels) or in the toolkit. --no-as-needed keeps libraries that only register kernels.
# libstdc++ comes first: libtorch_cpu.so exports its own copy of std::filesystem, which does not fit
# the internals of a newer libstdc++ (seen on Ubuntu 24.04: remove_all jumped to address 0).
target_link_libraries(poros_torch INTERFACE -Wl,--push-state,--no-as-needed,-lstdc++,--pop-state
                                            torch_cpu c10)
target_link_options(poros_torch INTERFACE -Wl,--allow-shlib-undefined)
set(POROS_TORCH_LIB_DIRS ${_torch}/lib)
file(GLOB _torch_nvidia_libs ${POROS_TORCH_DIR}/nvidia/*/lib)
list(APPEND POROS_TORCH_LIB_DIRS ${_torch_nvidia_libs})
if(POROS_HAVE_CUDA)
  list(APPEND POROS_TORCH_LIB_DIRS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/lib64)
endif()

# Its CUDA part. torch_cuda registers its kernels when it is loaded, so it must stay NEEDED though no
# symbol of it may be used.
if(POROS_HAVE_CUDA)
  add_library(poros_torch_cuda INTERFACE)
  add_library(poros::torch_cuda ALIAS poros_torch_cuda)
  target_link_libraries(poros_torch_cuda INTERFACE poros_torch c10_cuda)
  target_link_options(poros_torch_cuda INTERFACE
                      "SHELL:-Wl,--push-state,--no-as-needed -lstdc++ -ltorch_cuda -ltorch -Wl,--pop-state")
endif()
