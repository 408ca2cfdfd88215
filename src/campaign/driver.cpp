// SPDX-License-Identifier: Apache-2.0
#include "campaign/driver.hpp"

#include <algorithm>
#include <system_error>

#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "campaign/driver_ranks.hpp"
#include "campaign/slurm_rank.hpp"
#include "cell/environment.hpp"
#include "cell/processes.hpp"
#include "cell/protocol.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr double kHeartbeat_s = 5;
constexpr int kLostAttempts = 3;  // of one pass in one run
constexpr double kLeftOver_s = 5;

bool shows_terminal(const CampaignOptions& options) {
  const char* kind = std::getenv("TERM");
  return !options.plain && ::isatty(options.json ? STDERR_FILENO : STDOUT_FILENO) == 1 &&
         kind != nullptr && std::string_view(kind) != "dumb";
}

/// "0.52 s/step, loss 5.31 -> 4.80" of a pass that ended ok, else "oom/killed: why".
std::string result_text(const PassRecord& record) {
  if (record.status != "ok") {
    return record.status + (record.reason.empty() ? "" : "/" + record.reason) +
           (record.error_message.empty() ? "" : ": " + record.error_message);
  }
  std::string text = "ok";
  if (record.s_per_step) text += fmt::format(", {:.3g} s/step", *record.s_per_step);
  if (!record.steps.loss.empty()) {
    text +=
        fmt::format(", loss {:.3f} -> {:.3f}", record.steps.loss.front(), record.steps.loss.back());
  }
  return text;
}

}  // namespace

Driver::Driver(const CampaignOptions& options, const CampaignPlan& plan,
               const CampaignFolder& folder, const InstallPaths& paths, const StopSignals& signals,
               const Ranks& ranks)
    : options_(options),
      plan_(plan),
      folder_(folder),
      paths_(paths),
      signals_(signals),
      session_(ranks.session),
      placement_(ranks.placement),
      rank_name_(std::to_string(ranks.session == nullptr ? 0 : ranks.session->rank())),
      redactor_(current_environment()),
      live_(folder.live() / (rank_name_ + ".json"), options.json ? stderr : stdout,
            ranks.session == nullptr && shows_terminal(options)) {
  for (const std::string& method : plan.spec.methods) {
    arms_[method] = arm_program(paths, method, plan.spec.device);
  }
}

void Driver::append(Receipt receipt) {
  if (session_ == nullptr) {
    ledger_.add(journal_->append(std::move(receipt)));
    return;
  }
  const Json reply = session_->ask({{"ask", "receipt"},
                                    {"receipt",
                                     {{"kind", receipt.kind},
                                      {"key", receipt.key},
                                      {"fields", receipt.fields},
                                      {"artifact_path", receipt.artifact_path},
                                      {"artifact_sha256", receipt.artifact_sha256}}}});
  ledger_.add(receipt_from_line(reply.at("line").get<std::string>(), "reply of rank 0"));
  passes_left_ = reply.at("left").get<std::int64_t>();
}

bool Driver::stopping() const {
  return signals_.requested() || (session_ != nullptr && session_->stop_requested());
}

void Driver::heartbeat() {
  if (session_ != nullptr) return;  // its own thread does it
  const double now_s = monotonic_s();
  if (now_s - heartbeat_s_ < kHeartbeat_s) return;
  heartbeat_s_ = now_s;
  journal_->heartbeat();
}

CellHooks Driver::hooks() {
  CellHooks hooks;
  hooks.on_event = [this](CellEvent, const CellProgress& progress) { live_.event(progress); };
  hooks.on_tick = [this] {
    live_.tick();
    // A journal that was taken over ends the cell in order; the failure is raised after that.
    try {
      if (!journal_failure_) heartbeat();
    } catch (const Error&) {
      journal_failure_ = std::current_exception();
    }
  };
  hooks.stop_requested = [this] { return stopping() || journal_failure_ != nullptr; };
  hooks.wake_fd = signals_.fd();
  return hooks;
}

void Driver::make_context(std::int64_t epoch) {
  artifact_context_ = {plan_.spec.spec_id, plan_.spec_sha256, identity_.campaign_id,
                       plan_.spec.training.n_passes};
  std::map<std::string, std::string> environment = current_environment();
  if (!placement_.gpu_token.empty()) environment["CUDA_VISIBLE_DEVICES"] = placement_.gpu_token;
  const BatchStart batch = batch_start();
  const LeaseHolder self = this_process(batch.job, batch.restart);
  attempt_context_.emplace(AttemptContext{
      .folder = folder_,
      .redactor = redactor_,
      .oom = oom_,
      .environment = environment,
      .campaign_id = identity_.campaign_id,
      .supervisor_program = options_.supervisor_program,
      .timeouts = plan_.spec.timeouts,
      .any_gpu = options_.allow_hardware_mismatch,
      .work_name = rank_name_,
      .shared_host = placement_.local_size > 1,
      .driver_facts = {{"host", self.host},
                       {"pid", self.pid},
                       {"job", self.job},
                       {"restart", self.restart},
                       {"array_task", batch.array_task},
                       {"epoch", epoch},
                       {"rank", session_ == nullptr ? 0 : session_->rank()},
                       {"argv", command_line(options_.argc, options_.argv, redactor_)},
                       {"environment", environment_snapshot(environment)}}});
}

CampaignResult Driver::run() {
  if (session_ != nullptr && session_->rank() > 0) {
    follow();
    return {};
  }
  fs::create_directories(folder_.dir());
  journal_.emplace(
      JournalWriter::open(folder_.journal(), batch_journal_options(folder_.journal())));
  CampaignResult result;
  try {
    fs::create_directories(folder_.live());
    identity_ = write_identity(folder_, plan_);
    if (journal_->took_over()) {
      const int left = kill_tagged(kCellTagVariable, identity_.campaign_id + "/", kLeftOver_s);
      if (left > 0) live_.say(fmt::format("{} processes of the run before can't be ended", left));
      live_.say("going on after a run that did not end in order");
    }
    ledger_ = Ledger(journal_->receipts());
    first_seq_ = static_cast<std::int64_t>(journal_->receipts().size());
    make_context(journal_->epoch());
    if (session_ == nullptr) {
      run_groups(result);
    } else {
      lead(result);
    }
    journal_->close();
  } catch (...) {
    // The journal is released where that is still possible; the first failure is what counts.
    try {
      journal_->close();
    } catch (const Error&) {
    }
    throw;
  }
  return result;
}

void Driver::count_passes() {
  passes_total_ = static_cast<std::int64_t>(std::count_if(
                      plan_.cells.begin(), plan_.cells.end(),
                      [&](const PlannedCell& cell) { return !arms_.at(cell.spec.method).skip; })) *
                  plan_.spec.training.n_passes;
}

void Driver::run_groups(CampaignResult& result) {
  count_passes();
  for (const ComparisonGroup& group : plan_.groups) left_elsewhere_ += count_left(group);
  live_.set_passes(passes_total_, left_elsewhere_);
  for (const ComparisonGroup& group : plan_.groups) {
    if (stopping()) break;
    left_elsewhere_ -= count_left(group);
    run_group(group, result);
    left_elsewhere_ += count_left(group);  // what it could not finish
  }
  result.stopped = stopping();
  result.passes_total = passes_total_;
  result.passes_left = left_elsewhere_;
}

bool Driver::is_settled(const AttemptEntry& entry) const {
  if (!entry.counts()) return false;
  return !(options_.retry && entry.failed() && entry.seq < first_seq_);
}

bool Driver::needs_run(const PlannedCell& cell, std::int64_t pass) const {
  if (arms_.at(cell.spec.method).skip) return false;
  // A pass that did not end ok ends its cell.
  const auto done_now = [this](const AttemptEntry& entry) {
    const bool lost_now = entry.seq >= first_seq_ && entry.reason == "lost";
    return is_settled(entry) || lost_now;  // lost too often: not again in this run
  };
  for (const AttemptEntry& entry : ledger_.passes(cell.key, "timed")) {
    if (entry.pass < pass && done_now(entry) && entry.status != "ok") return false;
  }
  const AttemptEntry* last = ledger_.last_attempt(cell.key, "timed", pass);
  return last == nullptr || !done_now(*last);
}

bool Driver::wants_parity(const ComparisonGroup& group) const {
  const PlannedCell* a = plan_.find(group, "poros");
  const PlannedCell* b = plan_.find(group, "resident");
  if (plan_.spec.parity != "auto" || a == nullptr || b == nullptr) return false;
  if (arms_.at("poros").skip || arms_.at("resident").skip) return false;
  const ResultEntry* done = ledger_.parity(group.key);
  if (done == nullptr) return true;
  return options_.retry && done->status != "ok" && done->seq < first_seq_;
}

std::int64_t Driver::count_left(const ComparisonGroup& group) const {
  std::int64_t left = 0;
  for (const PassSlot& slot : interleaved_passes(group, plan_.spec.training.n_passes)) {
    left += needs_run(plan_.cells[slot.cell], slot.pass) ? 1 : 0;
  }
  return left;
}

void Driver::refuse_mixed_builds(const ComparisonGroup& group) const {
  if (options_.allow_mixed_builds) return;
  for (const std::size_t index : group.cells) {
    const PlannedCell& cell = plan_.cells[index];
    const ArmProgram& arm = arms_.at(cell.spec.method);
    if (arm.skip) continue;
    for (const AttemptEntry& entry : ledger_.passes(cell.key, "timed")) {
      if (!is_settled(entry) || entry.cell_build == arm.build) continue;
      fail(Fault::input,
           "{}: {} pass {} was measured with another build of {} ({:.12}, now {:.12}); the numbers "
           "of one comparison must come from one build: --fresh begins anew, --allow-mixed-builds "
           "goes on all the same",
           folder_.dir().string(), cell.label(), entry.pass + 1,
           is_own_arm(cell.spec.method) ? "poros-cell" : "the Python runners", entry.cell_build,
           arm.build);
    }
  }
}

bool Driver::prepare(GroupState& state) {
  if (state.inputs) return true;
  const PlannedCell& first = plan_.cells[state.group.cells.front()];
  const bool own =
      plan_.find(state.group, "poros") != nullptr || plan_.find(state.group, "resident") != nullptr;
  const bool peers = std::any_of(state.group.cells.begin(), state.group.cells.end(),
                                 [this](const std::size_t index) {
                                   const std::string& method = plan_.cells[index].spec.method;
                                   return !is_own_arm(method) && !arms_.at(method).skip;
                                 });
  const InputLock lock(*this);
  if (!lock.held()) return false;
  live_.set_activity("preparing the inputs of " + first.model);
  const InputContext context{folder_, paths_, redactor_,
                             [this](const std::string& line) { live_.say(line); },
                             [this] {
                               heartbeat();
                               live_.tick();
                               return stopping();
                             }};
  try {
    state.inputs = prepare_inputs(context, first.spec, own, peers);
    live_.set_activity("");
    return true;
  } catch (const InputsStopped&) {
    live_.set_activity("");
    return false;
  } catch (const Error& error) {
    live_.set_activity("");
    if (error.fault() == Fault::io) throw;
    // A model or data set that can't be used is this group's result, not the end of the others.
    live_.say(fmt::format("{}: {}", first.model, error.what()));
    for (const std::size_t index : state.group.cells) {
      state.input_failures[plan_.cells[index].key] = error.what();
    }
    return true;
  }
}

void Driver::run_group(const ComparisonGroup& group, CampaignResult& result) {
  GroupState state{group, {}, {}, false};
  if (count_left(group) > 0) {
    refuse_mixed_builds(group);
    if (!prepare(state)) return;
  }
  if (state.input_failures.empty()) {
    for (const PassSlot& slot : interleaved_passes(group, plan_.spec.training.n_passes)) {
      const PlannedCell& cell = plan_.cells[slot.cell];
      if (needs_run(cell, slot.pass) && !run_pass(state, cell, "timed", slot.pass)) return;
    }
  }
  std::vector<RunArtifact> artifacts;
  if (auto finished = state.has_news ? std::nullopt : load_finished(group)) {
    artifacts = std::move(*finished);
  } else {
    artifacts = finish_group(state);
  }
  if (auto parity = run_parity(state, artifacts)) result.parity.push_back(std::move(*parity));
  for (RunArtifact& artifact : artifacts) result.artifacts.push_back(std::move(artifact));
}

std::int64_t Driver::next_attempt(const PlannedCell& cell, const std::string& purpose,
                                  std::int64_t pass) const {
  // An attempt that was cut off has no receipt, but its log is there and is not overwritten.
  std::int64_t attempt = ledger_.attempts(cell.key, purpose, pass) + 1;
  std::error_code error;
  while (fs::exists(folder_ / CampaignFolder::log_file(cell.key, purpose, pass, attempt), error)) {
    ++attempt;
  }
  return attempt;
}

RecordedPass Driver::record_pass(const PlannedCell& cell, const PassRecord& record) {
  const Json json = to_json(record);
  const std::string text = dump_json(json, 1) + "\n";
  RecordedPass recorded{
      record, CampaignFolder::pass_file(cell.key, record.purpose, record.pass, record.attempt),
      sha256_hex(text)};
  fs::create_directories((folder_ / recorded.path).parent_path());
  write_file_durably(folder_ / recorded.path, text);
  Receipt receipt;
  receipt.kind = "attempt";
  receipt.key = cell.key;
  receipt.fields = scalar_fields(json);
  receipt.fields["cell_build"] = record.driver.value("cell_build", "");
  receipt.fields["host"] = record.driver.value("host", "");
  receipt.artifact_path = recorded.path;
  receipt.artifact_sha256 = recorded.sha256;
  append(std::move(receipt));
  return recorded;
}

RecordedPass Driver::run_one_attempt(GroupState& state, const PlannedCell& cell,
                                     const std::string& purpose, std::int64_t pass,
                                     const std::optional<CellRequest::Dump>& dump) {
  AttemptJob job{.cell = cell,
                 .inputs = *state.inputs,
                 .arm = arms_.at(cell.spec.method),
                 .purpose = purpose,
                 .pass = pass,
                 .attempt = next_attempt(cell, purpose, pass),
                 .threads = identity_.threads,
                 .dump = dump,
                 .max_steps = {}};
  if (dump) job.max_steps = dump->step;
  const bool timed = purpose == "timed";
  const std::int64_t n_passes = timed ? plan_.spec.training.n_passes : 1;
  live_.begin({cell.key, cell.spec.method, cell.model, cell.spec.precision, purpose, pass, n_passes,
               job.attempt, cell.spec.training.steps});
  const double start_s = monotonic_s();
  const PassRecord record = run_attempt(*attempt_context_, job, hooks());
  if (journal_failure_) std::rethrow_exception(journal_failure_);
  RecordedPass recorded = record_pass(cell, record);
  state.has_news = true;
  const double wall_s = monotonic_s() - start_s;
  live_.set_passes(passes_total_,
                   session_ == nullptr ? left_elsewhere_ + count_left(state.group) : passes_left_);
  const std::string what = timed ? fmt::format("pass {}/{}", pass + 1, n_passes)
                                 : (dump ? "parity dump" : "parity pass");
  live_.end(fmt::format("{} {}{}: {}, {}", cell.label(), what,
                        job.attempt > 1 ? fmt::format(" (attempt {})", job.attempt) : "",
                        result_text(record), duration_text(wall_s)),
            wall_s, timed && record.status == "ok");
  return recorded;
}

std::optional<RecordedPass> Driver::run_pass(GroupState& state, const PlannedCell& cell,
                                             const std::string& purpose, std::int64_t pass,
                                             const std::optional<CellRequest::Dump>& dump) {
  for (int lost = 0;;) {
    if (stopping()) return std::nullopt;
    RecordedPass recorded = run_one_attempt(state, cell, purpose, pass, dump);
    const std::string& reason = recorded.record.reason;
    if (recorded.record.status == "error" && reason == "drained") return std::nullopt;
    if (recorded.record.status == "error" && reason == "lost" && ++lost < kLostAttempts) continue;
    return recorded;
  }
}

RecordedPass Driver::load_pass(const AttemptEntry& entry) const {
  const fs::path path = folder_ / entry.path;
  const std::string text = read_file(path);
  if (sha256_hex(text) != entry.sha256) {
    fail(Fault::input, "{}: is not the record that the journal's receipt {} names: it was changed",
         path.string(), entry.seq);
  }
  return {pass_record_from_json(parse_json(text, path.string()), path.string()), entry.path,
          entry.sha256};
}

}  // namespace poros
