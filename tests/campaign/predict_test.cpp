// SPDX-License-Identifier: Apache-2.0
// Estimates against what was measured (campaigns/h200-step-bench).
#include "campaign/predict.hpp"

#include <gtest/gtest.h>

#include "spec/expand.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {

CellPrediction predicted(const std::string& method, const std::string& model,
                         const std::string& hardware, const std::string& more = "") {
  const std::string text = "spec_id: predict\nhardware: {" + hardware +
                           "}\nmodels: [{model_id: " + model + "}]\nmethods: [" + method + "]\n" +
                           "training: {steps: 20, warmup_steps: 5}\nlora: {dropout: 0.0}\n"
                           "poros: {block_size: 1}\n" +
                           more;
  return predict(expand(parse_spec(text, "spec.yaml", "/specs")).front());
}

TEST(Predict, AgreesWithWhatAnH200Measured) {
  struct Measured {
    const char* model;
    double resident_s, poros_mib;
  };
  for (const auto& [model, resident_s, poros_mib] :
       {Measured{"Qwen/Qwen2.5-0.5B", 0.0444, 414}, Measured{"Qwen/Qwen2.5-7B", 0.2960, 1973},
        Measured{"Qwen/Qwen2.5-32B", 1.3348, 4303}}) {
    const CellPrediction resident = predicted("resident", model, "gpu_name: NVIDIA H200");
    const CellPrediction poros = predicted("poros", model, "gpu_name: NVIDIA H200");
    ASSERT_TRUE(resident.s_per_step && poros.vram_bytes) << resident.why << poros.why;
    EXPECT_NEAR(*resident.s_per_step, resident_s, 0.1 * resident_s) << model;
    EXPECT_NEAR(static_cast<double>(*poros.vram_bytes) / 1048576, poros_mib, 0.02 * poros_mib)
        << model;
    EXPECT_GE(*poros.s_per_step, *resident.s_per_step);
    EXPECT_GT(*poros.host_bytes, *resident.host_bytes);
  }
}

TEST(Predict, SaysWhatDoesNotFit) {
  const CellPrediction no = predicted("resident", "Qwen/Qwen2.5-72B", "gpu_name: RTX 3090");
  EXPECT_EQ(no.fits, false);
  EXPECT_NE(no.why.find("GB are there"), std::string::npos) << no.why;
  EXPECT_EQ(predicted("poros", "Qwen/Qwen2.5-72B", "gpu_name: RTX 3090").fits, true);
  EXPECT_EQ(predicted("poros", "Qwen/Qwen2.5-7B", "gpu_name: H200, vram_cap_mb: 1024").fits, false);
  EXPECT_EQ(predicted("resident", "Qwen/Qwen2.5-72B", "gpu_name: A100, vram_gb: 80").fits, true);
  EXPECT_EQ(predicted("resident", "Qwen/Qwen2.5-72B", "gpu_name: A100, vram_gb: 40").fits, false);
}

TEST(Predict, ALinkBoundCardIsPredictedSlowerThanItsMatrixUnit) {
  const std::string small = "gpu_name: B300";
  const CellPrediction poros = predicted("poros", "Qwen/Qwen2.5-72B", small);
  const CellPrediction resident = predicted("resident", "Qwen/Qwen2.5-72B", small);
  EXPECT_GT(*poros.s_per_step, 1.02 * *resident.s_per_step);
}

TEST(Predict, WhatIsNotKnownIsMissing) {
  EXPECT_FALSE(predicted("poros", "org/nobody-knows-it", "gpu_name: H200").vram_bytes);
  EXPECT_NE(predicted("poros", "org/nobody-knows-it", "gpu_name: H200").why.find("not known"),
            std::string::npos);
  const CellPrediction card = predicted("poros", "Qwen/Qwen2.5-7B", "gpu_name: Voodoo 2");
  EXPECT_TRUE(card.vram_bytes);
  EXPECT_FALSE(card.s_per_step);
  EXPECT_FALSE(predicted("poros", "Qwen/Qwen2.5-7B", "gpu_name: x", "device: cpu\n").s_per_step);
}

TEST(Predict, AFinetuneOfAPublishedModelHasItsShapes) {
  EXPECT_TRUE(predicted("poros", "Qwen/Qwen2.5-7B-Instruct", "gpu_name: H200").vram_bytes);
}

}  // namespace
}  // namespace poros
