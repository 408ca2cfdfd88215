# SPDX-License-Identifier: Apache-2.0
add_library(poros_warnings INTERFACE)
add_library(poros::warnings ALIAS poros_warnings)
target_compile_options(poros_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wcast-qual -Wnon-virtual-dtor
                            -Woverloaded-virtual -Wformat=2 -Wimplicit-fallthrough -Wvla>
  # GCC 12 reports -Wrestrict inside std::string's operator+ (GCC bug 105651); later versions don't.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
if(POROS_WARNINGS_AS_ERRORS)
  target_compile_options(poros_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
                                                  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
