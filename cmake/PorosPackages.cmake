# SPDX-License-Identifier: Apache-2.0
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)             # text formatting: std::format is not in GCC 12
find_package(nlohmann_json REQUIRED)   # JSON: the most used C++ reader and writer, checked by our own limits
find_package(OpenSSL REQUIRED COMPONENTS Crypto)  # SHA-256 with the CPU's own instructions
find_package(yaml-cpp REQUIRED)        # YAML with line and column marks
find_package(CLI11 REQUIRED)           # command line: header only, subcommands, help in groups
# Regular expressions in adapter files, with a limit on steps that std::regex has not.
find_path(POROS_PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(POROS_PCRE2_LIBRARY pcre2-8 REQUIRED)
find_package(HDF5 REQUIRED COMPONENTS C)  # the store that HPC users read with h5py
find_package(MPI REQUIRED COMPONENTS C)   # ranks, one a GPU
if(POROS_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
