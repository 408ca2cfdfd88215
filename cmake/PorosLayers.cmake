# SPDX-License-Identifier: Apache-2.0
# poros_layer(NAME SOURCES ... DEPENDS ...): a static library poros_NAME, alias poros::NAME.
function(poros_layer name)
  cmake_parse_arguments(L "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(poros_${name} STATIC ${L_SOURCES})
  add_library(poros::${name} ALIAS poros_${name})
  target_include_directories(poros_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(poros_${name} PUBLIC ${L_DEPENDS} PRIVATE poros::warnings)
endfunction()

# poros_test(NAME SOURCES ... DEPENDS ... [LABELS ...] [TIMEOUT seconds]): one GoogleTest program,
# registered as one ctest entry. Every test has a time limit.
function(poros_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 180)
  endif()
  if(NOT T_LABELS)
    set(T_LABELS cpu)
  endif()
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_DEPENDS} GTest::gtest GTest::gtest_main poros::warnings)
  target_compile_definitions(${name} PRIVATE POROS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
                                           BUILD_RPATH "${POROS_TORCH_LIB_DIRS}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}")
endfunction()
