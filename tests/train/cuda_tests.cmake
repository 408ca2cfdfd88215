# SPDX-License-Identifier: Apache-2.0
# Tests of the trainer on a GPU. Where there is none they skip.
if(TARGET poros_train_cuda)
  poros_test(train_cuda_test
             SOURCES cuda_cell_test.cpp cuda_fixture.cpp cuda_gemm_test.cpp cuda_residency_test.cpp
                     cuda_step_test.cpp
             DEPENDS poros_executor_fixture poros_tiny_cell poros_train_cuda LABELS gpu TIMEOUT 600)
  set_target_properties(train_cuda_test PROPERTIES CUDA_RUNTIME_LIBRARY Shared LINKER_LANGUAGE CXX)
  set_tests_properties(train_cuda_test PROPERTIES SKIP_REGULAR_EXPRESSION "no GPU here")
endif()
