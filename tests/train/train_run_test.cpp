// SPDX-License-Identifier: Apache-2.0
// `poros-cell train` in this process: exact resume, checkpoints, faults.
#include "train/arm/train_run.hpp"

#include <cmath>
#include <csignal>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "model/safetensors.hpp"
#include "tiny_cell.hpp"
#include "train/checkpoint.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

/// A training of the tiny cell's model: dropout, warm-up and a falling learning rate, so that all
/// that depends on the step counts; rows in another order each time they are read.
class Training {
 public:
  explicit Training(TinyCell& tiny, const std::string& name, std::int64_t steps = 12) {
    CellRequest cell = tiny.request("resident", steps);
    TrainConfig& config = request.config;
    config.device = "cpu";
    config.residency = "resident";
    config.save_every = 3;
    config.model = cell.cell.model;
    config.training = cell.cell.training;
    config.training.warmup_steps = 0;
    config.training.lr_warmup_steps = 2;
    config.lora = cell.cell.lora;
    config.lora.dropout = 0.1;
    config.poros = cell.cell.poros;
    request.run_id = "0123456789abcdef";
    request.model_dir = cell.model_dir;
    request.tokens_path = request.validation_path = cell.tokens_path;
    request.cache_dir = cell.cache_dir;
    request.output_dir = tiny.folder() / name;
    request.adapter_dir = tiny.folder() / (name + ".start");
    write_adapter(request.adapter_dir,
                  initial_adapter(read_architecture(read_model_config(request.model_dir)),
                                  config.lora, "tiny", 42));
  }

  /// Runs until `stop` (asked with the number of the next step's turn, from 0 in each run).
  int run(std::int64_t stop_after = -1) {
    std::int64_t asked = 0;
    return run_training(request, [&] { return asked++ == stop_after; });
  }

  [[nodiscard]] std::vector<Json> events(const std::string& type) const {
    std::vector<Json> found;
    const std::string text = read_file(request.output_dir / "events.jsonl");
    for (std::size_t begin = 0; begin < text.size();) {
      const auto end = text.find('\n', begin);
      const Json event = parse_json(text.substr(begin, end - begin), "events");
      if (event.at("event_type") == type) found.push_back(event);
      begin = end + 1;
    }
    return found;
  }
  /// Loss and norm by step; a step that was done twice counts as it was done last.
  [[nodiscard]] std::vector<std::pair<double, double>> curve() const {
    std::vector<std::pair<double, double>> curve;
    for (const Json& event : events("step")) {
      curve.resize(event.at("step").get<std::size_t>());
      const Json& data = event.at("data");
      curve.back() = {data.at("loss").get<double>(), data.at("grad_norm").get<double>()};
    }
    return curve;
  }
  [[nodiscard]] fs::path checkpoint(std::int64_t step) const {
    return request.output_dir / "checkpoints" / fmt::format("step-{:08}", step);
  }
  [[nodiscard]] std::string adapter_bytes() const {
    return read_file(request.output_dir / "adapter" / "adapter_model.safetensors");
  }
  [[nodiscard]] std::string moments(std::int64_t step) const {
    return read_file(checkpoint(step) / "moments.safetensors");
  }

  TrainRequest request;
};

void expect_same_end(const Training& a, const Training& b, std::int64_t steps) {
  EXPECT_EQ(a.adapter_bytes(), b.adapter_bytes());
  EXPECT_EQ(a.moments(steps), b.moments(steps));
  EXPECT_EQ(a.curve(), b.curve());
  EXPECT_EQ(a.curve().size(), static_cast<std::size_t>(steps));
}

void flip_a_byte(const fs::path& path) {
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
  write_file_durably(path, bytes);
}

std::string last_error(const Training& training) {
  const auto errors = training.events("error");
  return errors.empty() ? "" : errors.back().at("data").at("message").get<std::string>();
}

/// While it lives, no file can grow over 64 KiB: a moments file can't be written, events can.
class NoLargeFiles {
 public:
  NoLargeFiles() {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = 65536;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~NoLargeFiles() { ::setrlimit(RLIMIT_FSIZE, &old_); }
  NoLargeFiles(const NoLargeFiles&) = delete;
  NoLargeFiles& operator=(const NoLargeFiles&) = delete;

 private:
  rlimit old_{};
};

class TrainRun : public ::testing::Test {
 protected:
  TinyCell tiny_;
};

TEST_F(TrainRun, StoppedAtAnyStepItEndsWithTheSameBits) {
  Training whole(tiny_, "whole");
  ASSERT_EQ(whole.run(), kDone);
  std::mt19937 random(POROS_RESUME_SEED);
  for (int i = 0; i < POROS_RESUMES; ++i) {
    Training parts(tiny_, fmt::format("parts{}", i));
    const std::int64_t first = random() % 12;
    ASSERT_EQ(parts.run(first), kStoppedEarly) << "stop after step " << first;
    const std::int64_t second = random() % (12 - first);
    ASSERT_EQ(parts.run(second), kStoppedEarly) << "then after " << second << " more";
    ASSERT_EQ(parts.run(), kDone);
    SCOPED_TRACE(fmt::format("stopped after {} and {} steps", first, second));
    expect_same_end(parts, whole, 12);
  }
}

TEST_F(TrainRun, EqualsTheBenchmarksResidentArmBitByBit) {
  CellRequest cell = tiny_.request("resident", 20);
  cell.cell.lora.dropout = 0.1;
  const PassRecord record = tiny_.run(cell);
  ASSERT_EQ(record.status, "ok") << record.error_message;
  Training training(tiny_, "out", 20);
  training.request.config.training.lr_warmup_steps = 0;
  training.request.config.training.dataset.shuffle = false;
  training.request.adapter_dir = cell.adapter_dir;
  ASSERT_EQ(training.run(), kDone);
  const auto curve = training.curve();
  ASSERT_EQ(curve.size(), 20U);
  for (std::size_t i = 0; i < curve.size(); ++i) {
    EXPECT_EQ(curve[i].first, record.steps.loss[i]) << "step " << i + 1;
    EXPECT_EQ(curve[i].second, record.steps.grad_norm[i]) << "step " << i + 1;
    EXPECT_EQ(training.events("step")[i].at("data").at("lr"), record.steps.learning_rate[i]);
  }
}

TEST_F(TrainRun, EvaluatingSavingAndResidencyChangeNoBit) {
  Training plain(tiny_, "plain", 6), busy(tiny_, "busy", 6);
  plain.request.validation_path.clear();
  plain.request.config.save_every = 0;
  busy.request.config.eval_every = 1;
  busy.request.config.save_every = 1;
  busy.request.config.residency = "poros";
  busy.request.config.tensorboard = true;
  ASSERT_EQ(plain.run(), kDone);
  ASSERT_EQ(busy.run(), kDone);
  expect_same_end(plain, busy, 6);
  EXPECT_TRUE(plain.events("eval").empty());
  const auto evals = busy.events("eval");
  ASSERT_EQ(evals.size(), 7U);  // one before the first step
  EXPECT_LT(evals.back().at("data").at("eval_loss").get<double>(),
            evals.front().at("data").at("eval_loss").get<double>());
  EXPECT_FALSE(fs::is_empty(busy.request.output_dir / "tensorboard"));
}

TEST_F(TrainRun, KeepsTheNewestCheckpointsAndFinishesOnce) {
  Training training(tiny_, "out");
  training.request.config.keep_checkpoints = 2;
  ASSERT_EQ(training.run(), kDone);
  const CheckpointFolder folder(training.request.output_dir / "checkpoints", 2);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"step-00000012", "step-00000009"}));
  EXPECT_EQ(read_file(training.request.output_dir / "checkpoints" / "latest"), "step-00000012\n");
  const std::string adapter = training.adapter_bytes();
  ASSERT_EQ(training.run(), kDone);  // nothing is left to do
  EXPECT_EQ(training.events("step").size(), 12U);
  EXPECT_EQ(training.adapter_bytes(), adapter);
}

TEST_F(TrainRun, PassesOverADamagedCheckpointAndNamesIt) {
  Training whole(tiny_, "whole"), training(tiny_, "out");
  ASSERT_EQ(whole.run(), kDone);
  for (const char* file :
       {"moments.safetensors", "adapter/adapter_model.safetensors", "checkpoint.json"}) {
    fs::remove_all(training.request.output_dir);
    ASSERT_EQ(training.run(7), kStoppedEarly);
    flip_a_byte(training.checkpoint(7) / file);
    ASSERT_EQ(training.run(), kDone) << file;
    EXPECT_NE(last_error(training).find(file), std::string::npos) << last_error(training);
    EXPECT_EQ(training.events("setup").back().at("data").at("resumed_from").at("step"), 6) << file;
    expect_same_end(training, whole, 12);
  }
  ASSERT_EQ(training.run(), kDone);
  for (const auto& entry : fs::directory_iterator(training.request.output_dir / "checkpoints")) {
    if (entry.is_directory()) flip_a_byte(entry.path() / "moments.safetensors");
  }
  EXPECT_EQ(training.run(), kWrongInput);
  EXPECT_NE(last_error(training).find("--resume none"), std::string::npos) << last_error(training);
}

TEST_F(TrainRun, GoesOnFromANamedCheckpointAndBeginsAnewWithNone) {
  Training whole(tiny_, "whole"), training(tiny_, "out");
  ASSERT_EQ(whole.run(), kDone);
  ASSERT_EQ(training.run(), kDone);
  training.request.resume = training.checkpoint(6).string();
  ASSERT_EQ(training.run(), kDone);
  EXPECT_EQ(training.events("step").size(), 18U);
  expect_same_end(training, whole, 12);
  training.request.resume = "none";
  ASSERT_EQ(training.run(), kDone);
  EXPECT_EQ(training.events("step").size(), 30U);
  EXPECT_TRUE(fs::exists(training.request.output_dir / "checkpoints.1" / "step-00000012"));
  expect_same_end(training, whole, 12);
}

TEST_F(TrainRun, RefusesAnotherConfigAndNamesTheKeys) {
  Training training(tiny_, "out");
  ASSERT_EQ(training.run(5), kStoppedEarly);
  const std::string moments = training.moments(5);
  Training changed = training;
  changed.request.config.training.learning_rate = 0.5;
  changed.request.config.lora.alpha = 3;
  EXPECT_EQ(changed.run(), kWrongInput);
  EXPECT_NE(last_error(changed).find("training.learning_rate: 0.01 -> 0.5"), std::string::npos);
  EXPECT_NE(last_error(changed).find("lora.alpha: 8.0 -> 3.0"), std::string::npos);
  changed = training;
  changed.request.config.training.steps = 4;
  EXPECT_EQ(changed.run(), kWrongInput);
  EXPECT_NE(last_error(changed).find("training.steps: 12 -> 4"), std::string::npos);
  EXPECT_EQ(training.moments(5), moments);
  changed = training;  // longer is fine, and so is what only concerns the output
  changed.request.config.training.steps = 14;
  changed.request.config.save_every = 1;
  EXPECT_EQ(changed.run(), kDone);
  EXPECT_EQ(changed.curve().size(), 14U);
}

TEST_F(TrainRun, DivergedLeavesTheLastGoodState) {
  Training training(tiny_, "out");
  training.request.config.training.learning_rate = 1e30;
  training.request.config.save_every = 0;
  EXPECT_EQ(training.run(), kFailed);
  const auto errors = training.events("error");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].at("data").at("reason"), "diverged");
  const auto good = training.events("teardown").back().at("data").at("steps_done");
  EXPECT_EQ(errors[0].at("step").get<std::int64_t>(), good.get<std::int64_t>() + 1);
  const FoundCheckpoint found = read_checkpoint(training.checkpoint(good));
  EXPECT_EQ(found.state.step, good);
  for (const char* name : {"moments.safetensors", "adapter/adapter_model.safetensors"}) {
    const SafetensorsFile file(found.folder / name);
    for (const auto& [tensor, info] : file.tensors()) {
      const std::string bytes = file.read(info);
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) {
        float value = 0;
        bytes.copy(reinterpret_cast<char*>(&value), sizeof value, at);
        ASSERT_TRUE(std::isfinite(value)) << name << " " << tensor;
      }
    }
  }
  EXPECT_FALSE(fs::exists(training.request.output_dir / "adapter"));
}

TEST_F(TrainRun, ACheckpointThatCannotBeWrittenLeavesTheOneBefore) {
  Training training(tiny_, "out");
  ASSERT_EQ(training.run(4), kStoppedEarly);
  {
    const NoLargeFiles no_room;
    EXPECT_EQ(training.run(), kFailed);
  }
  EXPECT_NE(last_error(training).find("checkpoint of step 6 could not be written"),
            std::string::npos)
      << last_error(training);
  EXPECT_EQ(read_checkpoint(training.checkpoint(4)).state.step, 4);
  EXPECT_FALSE(fs::exists(training.checkpoint(6)));
  EXPECT_FALSE(fs::exists(training.request.output_dir / "checkpoints" / ".making"));
  EXPECT_EQ(training.run(), kDone);  // there is room again
}

TEST_F(TrainRun, EveryEventHasTheRunsIdAndTheOriginalsNames) {
  Training training(tiny_, "out", 3);
  ASSERT_EQ(training.run(), kDone);
  write_file_durably(training.request.output_dir / "events.jsonl",
                     read_file(training.request.output_dir / "events.jsonl"));
  for (const char* type : {"setup", "step", "eval", "checkpoint", "teardown"}) {
    const auto events = training.events(type);
    ASSERT_FALSE(events.empty()) << type;
    for (const Json& event : events) {
      EXPECT_EQ(event.at("run_id"), "0123456789abcdef");
      EXPECT_GT(event.at("timestamp").get<double>(), 1.7e9);
      EXPECT_TRUE(event.at("block_id").is_null());
    }
  }
  const Json step = training.events("step").back().at("data");
  for (const char* name : {"loss", "grad_norm", "lr", "s_per_step", "vram_allocated_mb",
                           "vram_reserved_mb", "tokens"}) {
    EXPECT_TRUE(step.at(name).is_number()) << name;
  }
  const Json end = training.events("teardown").back().at("data");
  EXPECT_EQ(end.at("status"), "ok");
  EXPECT_EQ(end.at("final_loss"), step.at("loss"));
  EXPECT_EQ(end.at("tokens_processed"), step.at("tokens"));
}

}  // namespace
}  // namespace poros
