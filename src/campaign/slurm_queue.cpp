// SPDX-License-Identifier: Apache-2.0
#include "campaign/slurm_queue.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/subprocess.hpp"
#include "base/text.hpp"
#include "campaign/slurm_commands.hpp"
#include "campaign/summary.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// The JSON objects in the files of a folder; what can't be read is left out.
std::vector<Json> objects_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::vector<Json> objects;
  for (const fs::path& path : paths) {
    try {
      Json object = parse_json(read_file(path, 1 << 20), path.string());
      if (object.is_object()) objects.push_back(std::move(object));
    } catch (const Error&) {
      continue;
    }
  }
  return objects;
}

/// The last start of each job (of each task of an array) that ended, by id.
std::map<std::string, Json> job_ends(const fs::path& campaign) {
  std::map<std::string, Json> last;
  for (Json& end : objects_in(campaign / "slurm" / "ends")) {
    const std::string id = text_of(end, "job_id");
    const auto restart = end.find("restart");
    if (id.empty() || restart == end.end() || !restart->is_number_integer()) continue;
    Json& kept = last[id];
    if (kept.is_null() || kept.at("restart").get<std::int64_t>() < restart->get<std::int64_t>()) {
      kept = std::move(end);
    }
  }
  return last;
}

/// What sacct says of jobs that squeue no longer lists: state by id. Empty when it fails.
std::map<std::string, std::string> accounted_states(const std::vector<std::string>& ids,
                                                    const std::string& since) {
  std::map<std::string, std::string> states;
  if (ids.empty()) return states;
  // Without a start time some versions look no further back than midnight.
  std::vector<std::string> command{
      "sacct",         "--noheader",           "--parsable2",
      "--allocations", "--format=JobID,State", fmt::format("--jobs={}", fmt::join(ids, ","))};
  if (since.size() >= 19) command.push_back("--starttime=" + since.substr(0, 19));
  const auto result = try_slurm_command(command);
  if (!result || result->exit_code != 0) return states;
  for (const std::string& line : split(result->out, '\n')) {
    const auto fields = split(line, '|');
    if (fields.size() < 2) continue;
    states[fields[0]] = fields[1];
  }
  return states;
}

}  // namespace

std::vector<RecordedJob> recorded_jobs(const fs::path& campaign) {
  std::vector<RecordedJob> jobs;
  for (const Json& object : objects_in(campaign / "slurm" / "jobs")) {
    RecordedJob job{text_of(object, "job_id"),       text_of(object, "role"),
                    text_of(object, "label"),        text_of(object, "script"),
                    text_of(object, "submitted_at"), text_of(object, "continues")};
    if (is_job_id(job.id)) jobs.push_back(std::move(job));
  }
  std::ranges::sort(jobs, [](const RecordedJob& a, const RecordedJob& b) {
    return std::stoll(a.id) < std::stoll(b.id);
  });
  for (RecordedJob& job : jobs) {
    if (job.continues.empty()) continue;
    const auto before = std::ranges::find(jobs, job.continues, &RecordedJob::id);
    if (before != jobs.end() && job.label.empty()) job.label = before->label;
  }
  return jobs;
}

void record_job(const fs::path& campaign, const RecordedJob& job) {
  const fs::path folder = campaign / "slurm" / "jobs";
  fs::create_directories(folder);
  write_file_durably(child_path(folder, job.id + ".json"),
                     dump_json({{"job_id", job.id},
                                {"role", job.role},
                                {"label", job.label},
                                {"script", job.script},
                                {"submitted_at", job.submitted_at}},
                               1) +
                         "\n");
}

std::vector<QueuedJob> queued_jobs() {
  const ProcessResult result =
      slurm_command({"squeue", "--me", "--noheader", "--format=%i|%j|%T|%r|%N|%e"});
  std::vector<QueuedJob> jobs;
  for (const std::string& line : split(result.out, '\n')) {
    const auto fields = split(line, '|');
    if (fields.size() < 6) continue;  // also a foreign job whose name holds the mark
    jobs.push_back({fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]});
  }
  return jobs;
}

std::vector<QueuedJob> campaign_jobs(const std::vector<QueuedJob>& queue, const fs::path& campaign,
                                     const std::string& name_prefix) {
  std::set<std::string> ids;
  for (const RecordedJob& job : recorded_jobs(campaign)) ids.insert(job.id);
  std::vector<QueuedJob> own;
  std::ranges::copy_if(queue, std::back_inserter(own), [&](const QueuedJob& job) {
    // Ids begin anew when a site sets Slurm up again; the name then tells the jobs apart.
    const bool named = job.name.starts_with(name_prefix);
    return named || (name_prefix.empty() && ids.contains(job.job_id()));
  });
  return own;
}

std::string job_name_prefix(const fs::path& campaign, const std::string& spec_id) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(campaign, error);
  if (error) whole = fs::absolute(campaign);
  return fmt::format("poros-{}-{:.8}", spec_id, sha256_hex(whole.string()));
}

namespace {

std::string prefix_of(const fs::path& campaign) {
  const fs::path note = campaign / "slurm" / "submission.json";
  std::error_code error;
  if (!fs::exists(note, error)) return {};
  try {
    return text_of(parse_json(read_file(note, 1 << 20), note.string()), "name_prefix");
  } catch (const Error&) {
    return {};
  }
}

Json base_row(const RecordedJob& job) {
  return {{"id", job.id},       {"role", job.role},    {"label", job.label}, {"state", nullptr},
          {"reason", nullptr},  {"nodes", nullptr},    {"ends_at", nullptr}, {"starts", nullptr},
          {"outcome", nullptr}, {"exit_code", nullptr}};
}

void add_end(Json& row, const std::map<std::string, Json>& ends, const std::string& id) {
  const auto end = ends.find(id);
  if (end == ends.end()) return;
  row["starts"] = end->second.at("restart").get<std::int64_t>() + 1;
  row["outcome"] = text_of(end->second, "outcome");
  row["exit_code"] = end->second.value("exit_code", Json());
}

Json queued_row(const RecordedJob& job, const QueuedJob& queued) {
  Json row = base_row(job);
  row["id"] = queued.id;
  row["state"] = queued.state;
  if (queued.reason != "None" && !queued.reason.empty()) row["reason"] = queued.reason;
  if (!queued.nodes.empty()) row["nodes"] = queued.nodes;
  if (queued.ends_at != "N/A") row["ends_at"] = queued.ends_at;
  return row;
}

/// The rows of a job: what squeue lists of it, then the tasks of it that have ended.
std::vector<Json> rows_of(const RecordedJob& job, const std::vector<QueuedJob>& queue,
                          const std::map<std::string, Json>& ends) {
  std::vector<Json> rows;
  for (const QueuedJob& one : queue) {
    if (one.job_id() != job.id) continue;
    rows.push_back(queued_row(job, one));
    add_end(rows.back(), ends, one.id);
  }
  for (const auto& [id, end] : ends) {
    const bool listed =
        std::ranges::any_of(queue, [&id = id](const QueuedJob& one) { return one.id == id; });
    if (listed || id.substr(0, id.find('_')) != job.id) continue;
    rows.push_back(base_row(job));
    rows.back()["id"] = id;
    rows.back()["state"] = "ENDED";
    add_end(rows.back(), ends, id);
  }
  return rows;
}

}  // namespace

Json slurm_status(const fs::path& campaign) {
  const std::vector<RecordedJob> recorded = recorded_jobs(campaign);
  if (recorded.empty()) return nullptr;
  Json problem = nullptr;
  std::vector<QueuedJob> queue;
  try {
    queue = campaign_jobs(queued_jobs(), campaign, prefix_of(campaign));
  } catch (const Error& error) {
    problem = error.what();
  }
  std::vector<std::string> gone;
  for (const RecordedJob& job : recorded) {
    const bool queued =
        std::ranges::any_of(queue, [&](const QueuedJob& one) { return one.job_id() == job.id; });
    if (!queued) gone.push_back(job.id);
  }
  const bool answers = problem.is_null();  // one minute of patience is enough
  const auto accounted = answers ? accounted_states(gone, recorded.front().submitted_at)
                                 : std::map<std::string, std::string>();
  const std::map<std::string, Json> ends = job_ends(campaign);
  const auto is_continued = [&](const RecordedJob& job) {
    return std::ranges::find(recorded, job.id, &RecordedJob::continues) != recorded.end();
  };
  Json jobs = Json::array();
  for (const RecordedJob& job : recorded) {
    std::vector<Json> rows = rows_of(job, queue, ends);
    if (rows.empty()) {
      rows.push_back(base_row(job));
      rows.back()["state"] = "UNKNOWN";
    }
    for (Json& row : rows) {
      const bool ended = row.at("state") == "ENDED" || row.at("state") == "UNKNOWN";
      if (!answers) row["state"] = "UNKNOWN";
      const auto state = accounted.find(row.at("id").get<std::string>());
      if (ended && state != accounted.end()) row["state"] = state->second;
      row["continued"] = is_continued(job);
      jobs.push_back(std::move(row));
    }
  }
  return {{"problem", problem}, {"jobs", jobs}};
}

std::string slurm_status_text(const Json& status) {
  if (!status.is_object()) return {};
  std::vector<std::vector<std::string>> rows{{"job", "for", "state", "where", "last said"}};
  for (const Json& job : status.at("jobs")) {
    std::string state = text_of(job, "state");
    if (const std::string reason = text_of(job, "reason"); !reason.empty()) {
      state += " (" + reason + ")";
    }
    std::string where = text_of(job, "nodes");
    if (!where.empty() && job.at("ends_at").is_string()) {
      where += ", until " + text_of(job, "ends_at");
    }
    std::string said = text_of(job, "outcome");
    if (job.at("starts").is_number() && job.at("starts").get<std::int64_t>() > 1) {
      said += fmt::format(", start {}", job.at("starts").get<std::int64_t>());
    }
    rows.push_back(
        {text_of(job, "id"),
         job.at("label").get<std::string>().empty() ? text_of(job, "role") : text_of(job, "label"),
         state, where.empty() ? "--" : where, said.empty() ? "--" : said});
  }
  std::string text = aligned(rows);
  if (status.at("problem").is_string()) {
    text += "Slurm can't be asked: " + text_of(status, "problem") + "\n";
  }
  return text;
}

bool has_live_jobs(const Json& status) {
  if (!status.is_object()) return false;
  return std::ranges::any_of(status.at("jobs"), [](const Json& job) {
    const std::string state = text_of(job, "state");
    return state == "PENDING" || state == "RUNNING" || state == "COMPLETING" ||
           state == "CONFIGURING" || state == "SUSPENDED" || state == "REQUEUED";
  });
}

std::vector<std::string> cancel_jobs(const fs::path& campaign) {
  const std::vector<RecordedJob> recorded = recorded_jobs(campaign);
  std::set<std::string> gathering;
  for (const RecordedJob& job : recorded) {
    if (job.role == "gather") gathering.insert(job.id);
  }
  // By whole jobs, so that no task of an array starts between two calls.
  std::vector<std::string> ids;
  for (const QueuedJob& job : campaign_jobs(queued_jobs(), campaign, prefix_of(campaign))) {
    if (std::ranges::find(ids, job.job_id()) == ids.end()) ids.push_back(job.job_id());
  }
  std::ranges::stable_partition(ids, [&](const std::string& id) { return gathering.contains(id); });
  if (ids.empty()) return ids;
  std::vector<std::string> command{"scancel"};
  command.insert(command.end(), ids.begin(), ids.end());
  static_cast<void>(slurm_command(command));
  return ids;
}

}  // namespace poros
