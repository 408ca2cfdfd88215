# SPDX-License-Identifier: Apache-2.0
# The bitwise gate: in small on the CPU, in full on a GPU.
poros_test(gate_test SOURCES gate_test.cpp gate_tests.cpp gate_cover.cpp bitwise_gate.cpp
           DEPENDS poros_executor_fixture TIMEOUT 120)
set_tests_properties(gate_test PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
if(TARGET poros_train_cuda)
  poros_test(train_cuda_gate_test
             SOURCES cuda_gate_test.cpp gate_tests.cpp gate_cover.cpp bitwise_gate.cpp
             DEPENDS poros_executor_fixture poros_train_cuda LABELS gpu TIMEOUT 600)
  set_target_properties(train_cuda_gate_test PROPERTIES CUDA_RUNTIME_LIBRARY Shared
                                                        LINKER_LANGUAGE CXX)
  set_tests_properties(train_cuda_gate_test PROPERTIES SKIP_REGULAR_EXPRESSION "no GPU here")
endif()
if(TARGET poros_train_cuda)
  poros_test(trace_summary_test
             SOURCES trace_summary_test.cpp ${PROJECT_SOURCE_DIR}/src/train/bench/trace_summary.cpp
             DEPENDS poros::train)
endif()
