// SPDX-License-Identifier: Apache-2.0
#include "campaign/driver.hpp"

#include <algorithm>
#include <iterator>
#include <system_error>

#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "campaign/driver_ranks.hpp"
#include "campaign/predict.hpp"
#include "campaign/slurm_rank.hpp"
#include "cell/environment.hpp"
#include "cell/processes.hpp"
#include "cell/protocol.hpp"
#include "receipts/shards.hpp"

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
      rank_name_((options.shard_name.empty() ? "" : options.shard_name + "-") +
                 std::to_string(ranks.session == nullptr ? 0 : ranks.session->rank())),
      progress_(
          plan, paths,
          Selection(plan, {options.only,
                           options.shard.empty() ? ShardPart{} : parse_shard_part(options.shard)}),
          {options.retry, options.until_stable, options.max_passes}),
      limits_(options),
      failures_(options.max_failures),
      redactor_(current_environment()),
      live_(folder.live() / (rank_name_ + ".json"), options.json ? stderr : stdout,
            ranks.session == nullptr && shows_terminal(options)) {
  live_.set_placement(to_json(placement_));
  if (session_ != nullptr) live_.set_ranks(session_->size());
}

fs::path Driver::journal_path() const {
  return options_.shard_name.empty() ? folder_.journal()
                                     : shard_journal(folder_.dir(), options_.shard_name);
}

void Driver::append(Receipt receipt) {
  if (session_ == nullptr) {
    const Receipt written = journal_->append(std::move(receipt));
    progress_.ledger.add(written);
    failures_.count(written);
    return;
  }
  const Json reply = session_->ask({{"ask", "receipt"},
                                    {"receipt",
                                     {{"kind", receipt.kind},
                                      {"key", receipt.key},
                                      {"fields", receipt.fields},
                                      {"artifact_path", receipt.artifact_path},
                                      {"artifact_sha256", receipt.artifact_sha256}}}});
  progress_.ledger.add(receipt_from_line(reply.at("line").get<std::string>(), "reply of rank 0"));
  passes_left_ = reply.at("left").get<std::int64_t>();
  set_aside_ = reply.at("set_aside").get<bool>();
}

bool Driver::stopping() const {
  return signals_.requested() || failures_.reached() ||
         (session_ != nullptr && session_->stop_requested());
}

bool Driver::has_time_for(const PlannedCell& cell, const std::string& purpose) {
  constexpr double kReserve = 1.5;  // a prediction is an estimate
  std::optional<double> expected_s;
  for (const AttemptEntry& entry : progress_.ledger.passes(cell.key, "timed")) {
    if (entry.status == "ok" && entry.wall_s) expected_s = entry.wall_s;
  }
  if (!expected_s) expected_s = predict(cell.spec).s_per_pass;
  if (expected_s) *expected_s *= kReserve;
  if (limits_.allows(expected_s)) return true;
  live_.say(fmt::format("{} {}: not begun: {} would not end in the time that is left", cell.label(),
                        purpose == "timed" ? "pass" : "parity",
                        expected_s ? duration_text(*expected_s) : "it"));
  out_of_time_ = true;
  if (session_ != nullptr) static_cast<void>(session_->ask({{"ask", "late"}}));
  return false;
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
      .campaign_id = process_tag(),
      .supervisor_program = options_.supervisor_program,
      .timeouts = plan_.spec.timeouts,
      .any_gpu = options_.allow_hardware_mismatch,
      .work_name = rank_name_,
      .shared_host = placement_.local_size > 1 && !options_.exclusive_host,
      .driver_facts = {{"host", self.host},
                       {"pid", self.pid},
                       {"job", self.job},
                       {"restart", self.restart},
                       {"array_task", batch.array_task},
                       {"epoch", epoch},
                       {"rank", session_ == nullptr ? 0 : session_->rank()},
                       {"shard", options_.shard_name},
                       {"gpu_token", placement_.gpu_token},
                       {"argv", command_line(options_.argc, options_.argv, redactor_)},
                       {"environment", environment_snapshot(environment)}}});
}

CampaignResult Driver::run() {
  if (!placement_.in_use_by.empty()) {
    live_.say(fmt::format("{}: {} is in use by {}: what is measured beside them is flagged",
                          placement_.host, placement_.gpu_type, placement_.in_use_by));
  }
  if (session_ != nullptr && session_->rank() > 0) {
    follow();
    return {};
  }
  const fs::path journal = journal_path();
  fs::create_directories(journal.parent_path().empty() ? fs::path(".") : journal.parent_path());
  journal_.emplace(JournalWriter::open(journal, batch_journal_options(journal)));
  CampaignResult result;
  try {
    fs::create_directories(folder_.live());
    identity_ = write_identity(folder_, plan_);
    if (journal_->took_over()) {
      const int left = kill_tagged(kCellTagVariable, process_tag() + "/", kLeftOver_s);
      if (left > 0) live_.say(fmt::format("{} processes of the run before can't be ended", left));
      live_.say("going on after a run that did not end in order");
    }
    read_receipts();
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

/// What has been done, by this run's journal and by the others of the campaign.
void Driver::read_receipts() {
  if (options_.shard_name.empty()) {
    for (const std::string& name : shard_names(folder_.dir())) {
      const fs::path shard = shard_journal(folder_.dir(), name);
      if (view_lease(shard).state == LeaseState::live) {
        fail(Fault::input,
             "{}: a driver is at work on shard {}; wait for it, or run a shard of your own "
             "(--shard-name)",
             folder_.dir().string(), name);
      }
      append_shard(*journal_, name, read_journal(shard).receipts);
    }
  } else {
    const LeaseView root = view_lease(folder_.journal());
    if (root.state == LeaseState::live) {
      fail(Fault::input,
           "{}: a driver is at work on the whole campaign ({}); wait for it, or stop it before "
           "starting shards",
           folder_.dir().string(), root.holder ? describe(*root.holder) : "starting");
    }
    check_shard(read_journal(folder_.journal()).receipts, options_.shard_name,
                journal_->receipts());
    others_ = all_receipts(folder_.dir(), options_.shard_name);
  }
  for (const Receipt& receipt : others_) progress_.ledger.add(receipt, true);
  for (const Receipt& receipt : journal_->receipts()) progress_.ledger.add(receipt);
  progress_.first_seq = static_cast<std::int64_t>(journal_->receipts().size());
}

std::string Driver::process_tag() const {
  return identity_.campaign_id + (options_.shard_name.empty() ? "" : "." + options_.shard_name);
}

void Driver::run_groups(CampaignResult& result) {
  passes_total_ = progress_.count_all();
  std::vector<std::size_t> order, finished;  // work first: finished groups are only looked at
  for (std::size_t i = 0; i < plan_.groups.size(); ++i) {
    const std::int64_t left = progress_.count_left(plan_.groups[i]);
    left_elsewhere_ += left;
    if (progress_.selection().has_group(plan_.groups[i]))
      (left > 0 ? order : finished).push_back(i);
  }
  order.insert(order.end(), finished.begin(), finished.end());
  live_.set_passes(passes_total_, left_elsewhere_);
  std::vector<CampaignResult> results(plan_.groups.size());
  for (const std::size_t index : order) {
    if (stopping()) break;
    const ComparisonGroup& group = plan_.groups[index];
    const std::string& gpu = plan_.cells[group.cells.front()].spec.hardware.gpu_name;
    if (options_.over_ranks && !fits_placement(gpu, placement_)) {
      if (std::ranges::find(result.unmatched, gpu) == result.unmatched.end()) {
        result.unmatched.push_back(gpu);
      }
      continue;
    }
    const std::int64_t left = progress_.count_left(group);
    if (left > 0 && !limits_.allows({})) {
      out_of_time_ = true;
      continue;
    }
    left_elsewhere_ -= left;
    run_group(group, results[index]);
    left_elsewhere_ += progress_.count_left(group);  // what it could not finish
  }
  for (CampaignResult& part : results) {  // in the plan's order
    std::ranges::move(part.artifacts, std::back_inserter(result.artifacts));
    std::ranges::move(part.parity, std::back_inserter(result.parity));
  }
  result.stopped = stopping() && !failures_.reached();
  result.failed_cells = failures_.reached() ? failures_.failures() : 0;
  result.out_of_time = out_of_time_;
  result.passes_total = passes_total_;
  result.passes_left = left_elsewhere_;
}

void Driver::refuse_mixed_builds(const ComparisonGroup& group) const {
  if (options_.allow_mixed_builds) return;
  for (const std::size_t index : group.cells) {
    const PlannedCell& cell = plan_.cells[index];
    const ArmProgram& arm = progress_.arm(cell);
    if (progress_.skip(cell) || !progress_.is_selected(cell)) continue;
    for (const AttemptEntry& entry : progress_.ledger.passes(cell.key, "timed")) {
      if (!progress_.is_settled(entry) || entry.cell_build == arm.build) continue;
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
  bool own = false, peers = false;
  for (const std::size_t index : state.group.cells) {
    const PlannedCell& cell = plan_.cells[index];
    if (!progress_.is_selected(cell) || progress_.skip(cell)) continue;
    (is_own_arm(cell.spec.method) ? own : peers) = true;
  }
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
  const std::int64_t again = progress_.supersede_elsewhere(group, placement_.gpu_uuid);
  if (again > 0) {
    live_.say(fmt::format("{}: begun on another GPU; its passes run again on this one",
                          plan_.cells[group.cells.front()].model));
    if (session_ != nullptr) {
      static_cast<void>(session_->ask({{"ask", "more"}, {"passes", again}}));
    }
  }
  if (progress_.count_left(group) > 0) {
    refuse_mixed_builds(group);
    if (!prepare(state)) return;
  }
  if (state.input_failures.empty()) {
    const std::int64_t planned = progress_.passes_of(group);
    for (std::int64_t pass = 0; pass < progress_.passes_of(group); ++pass) {
      if (pass >= planned) announce_round(group, pass);
      for (const std::size_t index : group.cells) {
        const PlannedCell& cell = plan_.cells[index];
        if (progress_.needs_run(cell, pass) && !run_pass(state, cell, "timed", pass)) return;
      }
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

/// A pass more of each cell than the spec asks for (--until-stable).
void Driver::announce_round(const ComparisonGroup& group, std::int64_t pass) {
  const std::int64_t more = progress_.count_left(group);
  passes_total_ += more;
  if (session_ != nullptr) static_cast<void>(session_->ask({{"ask", "more"}, {"passes", more}}));
  live_.say(fmt::format("{}: not stable after {} passes: one more of each",
                        plan_.cells[group.cells.front()].model, pass));
}

std::int64_t Driver::next_attempt(const PlannedCell& cell, const std::string& purpose,
                                  std::int64_t pass) const {
  // An attempt that was cut off has no receipt, but its log is there and is not overwritten.
  std::int64_t attempt = progress_.ledger.attempts(cell.key, purpose, pass) + 1;
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
  const fs::path cell_folder = (folder_ / recorded.path).parent_path();
  const bool is_new = fs::create_directories(cell_folder);
  write_file_durably(folder_ / recorded.path, text);
  if (is_new) {  // its name must outlive a power loss too
    sync_folder(cell_folder.parent_path());
    sync_folder(folder_.dir());
  }
  Receipt receipt;
  receipt.kind = "attempt";
  receipt.key = cell.key;
  receipt.fields = scalar_fields(json);
  receipt.fields["cell_build"] = record.driver.value("cell_build", "");
  receipt.fields["host"] = record.driver.value("host", "");
  receipt.fields["wall_s"] = record.driver.value("wall_s", Json(nullptr));
  receipt.fields["gpu_name"] = record.device.value("name", Json(nullptr));
  receipt.fields["gpu_uuid"] = record.device.value("uuid", Json(nullptr));
  if (!placement_.gpu_uuid.empty()) receipt.fields["gpu_uuid"] = placement_.gpu_uuid;
  const AttemptEntry* before = progress_.ledger.last_attempt(cell.key, record.purpose, record.pass);
  if (before != nullptr && before->superseded) receipt.fields["supersedes"] = before->path;
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
                 .arm = progress_.arm(cell),
                 .purpose = purpose,
                 .pass = pass,
                 .attempt = next_attempt(cell, purpose, pass),
                 .threads = identity_.threads,
                 .dump = dump,
                 .max_steps = {}};
  if (dump) job.max_steps = dump->step;
  const bool timed = purpose == "timed";
  const std::int64_t n_passes = timed ? progress_.passes_of(state.group) : 1;
  live_.begin({cell.key, cell.spec.method, cell.model, cell.spec.precision, purpose, pass, n_passes,
               job.attempt, cell.spec.training.steps});
  const double start_s = monotonic_s();
  const PassRecord record = run_attempt(*attempt_context_, job, hooks());
  if (journal_failure_) std::rethrow_exception(journal_failure_);
  RecordedPass recorded = record_pass(cell, record);
  state.has_news = true;
  const double wall_s = monotonic_s() - start_s;
  live_.set_passes(passes_total_, session_ == nullptr
                                      ? left_elsewhere_ + progress_.count_left(state.group)
                                      : passes_left_);
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
    if (stopping() || set_aside_ || !has_time_for(cell, purpose)) return std::nullopt;
    const HostTurn turn(*this, cell);
    if (!turn.granted()) return std::nullopt;
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
