# SPDX-License-Identifier: Apache-2.0
# Tests of the block executor.
add_library(poros_executor_fixture STATIC executor_fixture.cpp)
target_link_libraries(poros_executor_fixture PUBLIC poros::train PRIVATE poros::warnings)
target_include_directories(poros_executor_fixture PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_definitions(poros_executor_fixture PRIVATE POROS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

poros_test(executor_reference_test SOURCES executor_reference_test.cpp
           DEPENDS poros_executor_fixture TIMEOUT 120)
poros_test(executor_test SOURCES executor_test.cpp DEPENDS poros_executor_fixture TIMEOUT 120)
poros_test(residency_test SOURCES residency_test.cpp DEPENDS poros_executor_fixture TIMEOUT 240)
poros_test(executor_allocation_test SOURCES executor_allocation_test.cpp
           DEPENDS poros_executor_fixture)
poros_test(executor_parts_test
           SOURCES gemm_test.cpp sweep_test.cpp transfer_schedule_test.cpp DEPENDS poros::train)
# Tests share their cores with each other: threads that wait must sleep, not spin.
set_tests_properties(executor_reference_test executor_test residency_test executor_parts_test
                     executor_allocation_test PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
