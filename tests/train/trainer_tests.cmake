# SPDX-License-Identifier: Apache-2.0
# Tests of the training loop and of poros-cell.
foreach(_name IN ITEMS schedule data events memory_probe optimizer parity)
  poros_test(train_${_name}_test SOURCES ${_name}_test.cpp DEPENDS poros::train poros::receipts)
endforeach()

add_library(poros_tiny_cell STATIC tiny_cell.cpp child.cpp)
target_link_libraries(poros_tiny_cell PUBLIC poros_arm PRIVATE poros::warnings)
target_include_directories(poros_tiny_cell PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})

poros_test(train_arm_test SOURCES arm_test.cpp DEPENDS poros_arm)
poros_test(trainer_test SOURCES trainer_test.cpp DEPENDS poros_tiny_cell TIMEOUT 120)
poros_test(generate_test SOURCES generate_test.cpp DEPENDS poros_tiny_cell TIMEOUT 120)
foreach(_name IN ITEMS poros_cell evaluate)
  poros_test(${_name}_test SOURCES ${_name}_test.cpp DEPENDS poros_tiny_cell TIMEOUT 180)
  target_compile_definitions(${_name}_test
                             PRIVATE POROS_CELL_PROGRAM="$<TARGET_FILE:poros-cell>")
  add_dependencies(${_name}_test poros-cell)
endforeach()

# A training by `poros train`'s requests: 5 random resumes, and 20 under the label slow.
poros_test(train_run_test SOURCES train_run_test.cpp DEPENDS poros_tiny_cell TIMEOUT 300)
target_compile_definitions(train_run_test PRIVATE POROS_RESUMES=5 POROS_RESUME_SEED=1)
poros_test(train_resume_test SOURCES train_run_test.cpp DEPENDS poros_tiny_cell TIMEOUT 600
           LABELS slow)
target_compile_definitions(train_resume_test PRIVATE POROS_RESUMES=20 POROS_RESUME_SEED=2)
poros_test(train_tensorboard_test SOURCES tensorboard_test.cpp DEPENDS poros::train)
