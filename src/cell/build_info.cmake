# SPDX-License-Identifier: Apache-2.0
# Runs at each build: writes build_info.cpp when commit or dirty flag changed, so that a record's
# commit is that of the program and not that of the last configure.
execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse HEAD
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                RESULT_VARIABLE no_git)
set(dirty false)
if(no_git)
  set(commit "")
else()
  execute_process(COMMAND git -C ${SOURCE_DIR} --no-optional-locks status --porcelain
                  OUTPUT_VARIABLE changes ERROR_QUIET)
  if(NOT changes STREQUAL "")
    set(dirty true)
  endif()
endif()
set(text "// SPDX-License-Identifier: Apache-2.0
// Written by build_info.cmake.
#include \"cell/environment.hpp\"

namespace poros {

const BuildInfo& build_info() {
  static const BuildInfo info{\"${VERSION}\", \"${commit}\", ${dirty}, \"${COMPILER}\", \"${BUILD_TYPE}\"};
  return info;
}

}  // namespace poros
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
