// SPDX-License-Identifier: Apache-2.0
// The batch scripts: their form, and what they do when a world of ranks ends this way or that. The
// scripts run as they stand, with fakes in the place of srun and of Slurm's commands.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/subprocess.hpp"
#include "campaign/slurm_script.hpp"
#include "campaign/slurm_submit.hpp"
#include "fake_slurm.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {
namespace fs = std::filesystem;

// A folder name in which every character is one that some reader could take for its own.
constexpr const char* kNasty = "a b';touch pwned;$(touch pwned)`touch pwned`\"\\ #%j&|*?[x]{y}~";

class Script : public ::testing::Test {
 protected:
  Submission submission(const std::string& profile_lines = "", const std::string& campaign = "c",
                        bool single_job = false) {
    SubmitOptions options;
    options.spec = write_spec(fake.folder(), "A100");
    options.output_dir = fake.folder() / campaign;
    options.program = "/opt/poros/bin/poros";
    options.single_job = single_job;
    const ClusterProfile profile =
        read_cluster_profile(write_profile(fake.folder(), profile_lines));
    return plan_submission(options, make_plan(read_spec(options.spec)), profile);
  }

  /// Writes the script down and runs it in an allocation that exists only in its environment.
  ProcessResult run(const Submission& made, const std::string& script,
                    std::map<std::string, std::string> environment = {}) {
    fs::create_directories(made.campaign / "slurm" / "jobs");
    write_text(fake.folder() / "spooled", script);
    environment.insert({{"SLURM_JOB_ID", "77"}, {"SLURM_JOB_NODELIST", "n[1-2]"}});
    return run_process({"bash", (fake.folder() / "spooled").string()}, 60, environment);
  }

  std::string end_of(const Submission& made, const std::string& start) {
    return read_file(made.campaign / "slurm" / "ends" / (start + ".json"));
  }

  FakeSlurm fake;
};

TEST_F(Script, EveryShapePassesBashAndShellcheck) {
  std::vector<std::pair<std::string, std::string>> scripts;
  for (const char* folder : {"c", kNasty}) {
    for (const bool mixed : {false, true}) {
      for (const char* lines :
           {"launcher: srun", "launcher: mpirun\nrequeue: false",
            "modules: [\"gcc/12\"]\nprologue: [\"export A=1\"]\nscratch_dir: \"/s x\"\n"
            "container: {image: \"/i 'x'.sif\", bind: [\"/data:/data:ro\"]}"}) {
        const Submission made = submission(lines, folder, mixed);
        scripts.emplace_back(made.work[0].file + folder + lines, made.work[0].script);
        scripts.emplace_back(made.gather.file + folder + lines, made.gather.script);
      }
    }
  }
  int number = 0;
  // SC2016 is what the test wants: nothing is expanded in single quotes.
  std::vector<std::string> files{"shellcheck", "--exclude=SC2016"};
  for (const auto& [what, script] : scripts) {
    const fs::path file = fake.folder() / ("script" + std::to_string(number++));
    write_text(file, script);
    files.push_back(file.string());
    const ProcessResult parsed = run_process({"bash", "-n", file.string()}, 30);
    EXPECT_EQ(parsed.exit_code, 0) << what << "\n" << parsed.err;
  }
  ProcessResult checked;
  try {
    checked = run_process(files, 60);
  } catch (const Error&) {
    GTEST_SKIP() << "shellcheck is not installed";
  }
  EXPECT_EQ(checked.exit_code, 0) << checked.out;
}

TEST_F(Script, PathsArriveWhateverTheyHold) {
  const Submission made = submission("launcher: srun", kNasty);
  fake.command("srun", "exit 0");
  const ProcessResult result = run(made, made.work[0].script);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  ASSERT_EQ(fake.calls("srun").size(), 1u);
  const auto words = fake.calls("srun")[0];
  EXPECT_NE(std::find(words.begin(), words.end(), made.campaign.string()), words.end());
  EXPECT_EQ(words[1], "--ntasks-per-node=2");
  EXPECT_FALSE(fs::exists("pwned"));
  EXPECT_TRUE(fs::exists(made.campaign / "slurm/ends/77.0.json"));
}

TEST_F(Script, DirectivesCarryNoTextThatCouldEndThem) {
  const Submission made = submission("account: bench", kNasty);
  std::istringstream lines(made.work[0].script);
  std::string line;
  int directives = 0;
  bool has_output = false;
  while (std::getline(lines, line)) {
    if (!line.starts_with("#SBATCH")) continue;
    ++directives;
    // '%' is doubled, '"' and '\' are escaped.
    has_output = has_output || line.find("\\\"\\\\ #%%j&") != std::string::npos;
  }
  EXPECT_GE(directives, 10);
  EXPECT_TRUE(has_output);
  EXPECT_THROW(static_cast<void>(submission("", "two\nlines")), Error);
}

TEST_F(Script, NodesAndTimeComeFromThePlanAndTheProfile) {
  const Submission made = submission("warn_s: 90s");
  ASSERT_EQ(made.work.size(), 1u);
  const SlurmJob& job = made.work[0];
  EXPECT_EQ(job.groups, 3u);  // models; the methods of one share a GPU
  EXPECT_EQ(job.nodes, 2);
  EXPECT_EQ(job.ranks_per_node, 2);
  for (const char* line : {"#SBATCH --nodes=1-2\n", "#SBATCH --gpus-per-node=\"a100:2\"\n",
                           "#SBATCH --signal=B:USR1@90\n", "#SBATCH --requeue\n",
                           "#SBATCH --open-mode=append\n", "#SBATCH --time=0-04:00:00\n",
                           "#SBATCH --partition=\"gpu\"\n", "#SBATCH --constraint=\"a100\"\n"}) {
    EXPECT_NE(job.script.find(line), std::string::npos) << line << job.script;
  }
  const Submission mixed = submission("mixed_partition: all", "c", true);
  EXPECT_NE(mixed.work[0].script.find("#SBATCH --constraint=\"[a100*2]\"\n"), std::string::npos);
  EXPECT_EQ(slurm_time(61), "0-00:02:00");
  EXPECT_EQ(slurm_time(86400 + 3600), "1-01:00:00");
}

TEST_F(Script, EachGpuTypeGetsItsJobAndOneJobCanHoldAll) {
  CampaignPlan plan = make_plan(read_spec(write_spec(fake.folder(), "NVIDIA A100 80GB")));
  for (auto& cell : make_plan(read_spec(write_spec(fake.folder(), "B300", "b.yaml"))).cells) {
    plan.cells.push_back(cell);
  }
  SubmitOptions options;
  options.spec = fake.folder() / "spec.yaml";
  options.output_dir = fake.folder() / "c";
  options.program = "/opt/poros";
  ClusterProfile profile = read_cluster_profile(write_profile(fake.folder()));
  const Submission two = plan_submission(options, plan, profile);
  ASSERT_EQ(two.work.size(), 2u);
  EXPECT_EQ(two.work[0].label, "a100");
  EXPECT_EQ(two.work[1].nodes, 1);  // max_nodes of B300
  // Several jobs: each has a journal of its own.
  EXPECT_NE(two.work[1].script.find("'--shard-name' 'b300'"), std::string::npos);

  profile.gpus[0].layout = "array";
  const Submission array = plan_submission(options, plan, profile);
  for (const char* line : {"#SBATCH --array=0-1\n", "#SBATCH --nodes=1\n",
                           "--shard-name 'a100'.\"$SLURM_ARRAY_TASK_ID\" --shard "
                           "\"$SLURM_ARRAY_TASK_ID\"/2"}) {
    EXPECT_NE(array.work[0].script.find(line), std::string::npos) << line << array.work[0].script;
  }

  options.single_job = true;
  const Submission mixed = plan_submission(options, plan, profile);
  ASSERT_EQ(mixed.work.size(), 1u);
  EXPECT_EQ(mixed.work[0].nodes, 3);
  const std::string& script = mixed.work[0].script;
  EXPECT_NE(script.find("#SBATCH --constraint=\"[a100*2&b300*1]\"\n"), std::string::npos) << script;
  EXPECT_EQ(script.find("shard"), std::string::npos);
  fake.command("sinfo", "printf 'n1 x,a100\\nn2 a100\\nn2 a100\\nn3 b300,y\\n'");
  fake.command("srun", "echo \"types=$POROS_NODE_TYPES\"");
  const ProcessResult result = run(mixed, script);
  EXPECT_NE(result.out.find("types=n1=A100,n2=A100,n3=B300,\n"), std::string::npos) << result.out;

  profile.gpus[1].constraint = "b300|b200";
  EXPECT_THROW(static_cast<void>(plan_submission(options, plan, profile)), Error);
  profile.gpus[1].constraint = "a100";
  EXPECT_THROW(static_cast<void>(plan_submission(options, plan, profile)), Error);
  profile.gpus.pop_back();
  EXPECT_THROW(static_cast<void>(plan_submission(options, plan, profile)), Error);
}

TEST_F(Script, TheLifeOfAJob) {
  struct Case {
    std::string what, profile, srun;
    std::map<std::string, std::string> environment;
    int exit_code;
    std::string outcome;
    std::size_t worlds, requeues, submissions;
  };
  const std::string code_of =
      "n=$(cat \"$state/w\" 2>/dev/null || echo 0); n=$((n + 1)); "
      "echo $n >\"$state/w\"; ";
  const std::vector<Case> cases{
      {"done", "", "exit 0", {}, 0, "complete", 1, 0, 0},
      {"a cell failed", "", "exit 1", {}, 1, "ran, but cells failed", 1, 0, 0},
      {"wrong spec", "", "exit 2", {}, 2, "refused, wrong input", 1, 0, 0},
      {"drained by itself", "", "exit 75", {}, 75, "stopped early; goes on later", 1, 1, 0},
      {"a rank killed once",
       "",
       code_of + "[ $n = 1 ] && exit 137; exit 0",
       {},
       0,
       "complete",
       2,
       0,
       0},
      {"a rank killed always",
       "",
       "exit 137",
       {},
       137,
       "the ranks broke down three times",
       3,
       0,
       0},
      {"no requeue allowed",
       "requeue: false",
       "exit 75",
       {},
       75,
       "stopped early; goes on later",
       1,
       0,
       1},
      {"restarted too often",
       "max_restarts: 2",
       "exit 75",
       {{"SLURM_RESTART_COUNT", "2"}},
       75,
       "left stopped",
       1,
       0,
       0},
      {"continued too often",
       "max_restarts: 2\nrequeue: false",
       "exit 75",
       {{"POROS_RESTART", "2"}},
       75,
       "left stopped",
       1,
       0,
       0},
      {"warned",
       "",
       "trap 'exit 75' USR1; kill -USR1 $PPID; sleep 20 >/dev/null 2>&1 & wait",
       {},
       75,
       "the time limit is near; goes on later",
       1,
       1,
       0},
      {"warned, and all was done all the same",
       "",
       "trap 'exit 0' USR1; kill -USR1 $PPID; sleep 20 >/dev/null 2>&1 & wait",
       {},
       0,
       "complete",
       1,
       0,
       0},
      {"warned before the ranks listen",
       "",
       "kill -USR1 $PPID; kill -USR1 $$; sleep 20",
       {},
       75,
       "the time limit is near; goes on later",
       1,
       1,
       0},
      {"ended from outside",
       "",
       "trap 'exit 75' USR1; kill -TERM $PPID; sleep 20 >/dev/null 2>&1 & wait",
       {},
       75,
       "ended from outside",
       1,
       0,
       0},
      {"warned, then ended from outside",
       "",
       "trap 'exit 75' USR1; kill -TERM $PPID; kill -USR1 $PPID; sleep 20 >/dev/null 2>&1 & wait",
       {},
       75,
       "ended from outside",
       1,
       0,
       0},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    FakeSlurm slurm;
    SubmitOptions options;
    options.spec = write_spec(slurm.folder(), "A100");
    options.output_dir = slurm.folder() / "c";
    options.program = "/opt/poros";
    const Submission made =
        plan_submission(options, make_plan(read_spec(options.spec)),
                        read_cluster_profile(write_profile(slurm.folder(), one.profile)));
    slurm.command("srun", one.srun);
    const ProcessResult result = run(made, made.work[0].script, one.environment);
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.exit_code, one.exit_code) << result.out << result.err;
    EXPECT_EQ(slurm.calls("srun").size(), one.worlds) << result.out;
    EXPECT_EQ(slurm.calls("scontrol").size(), one.requeues) << result.out;
    EXPECT_EQ(slurm.calls("sbatch").size(), one.submissions) << result.out;
    std::string ends;
    for (const auto& entry : fs::directory_iterator(made.campaign / "slurm" / "ends")) {
      ends += read_file(entry.path());
    }
    EXPECT_NE(ends.find(one.outcome), std::string::npos) << ends;
    if (one.requeues > 0) {
      EXPECT_EQ(slurm.calls("scontrol")[0], (std::vector<std::string>{"requeue", "77"}));
    }
    if (one.submissions > 0) {
      const auto words = slurm.calls("sbatch")[0];
      EXPECT_EQ(words[1], "--dependency=afterany:77");
      EXPECT_EQ(words[2], "--export=ALL,POROS_RESTART=1,POROS_CONTINUES=77");
      const Json job = parse_json(read_file(made.campaign / "slurm/jobs/101.json"), "job");
      EXPECT_EQ(job.at("continues"), "77");
    }
  }
}

TEST_F(Script, TheRanksLearnWhenTheJobEnds) {
  const Submission made = submission("warn_s: 90s");
  fake.command("squeue", "echo 2030-01-02T03:04:05");
  fake.command("srun", "echo \"end=$SLURM_JOB_END_TIME warn=$POROS_WARN_S type=$POROS_GPU_TYPE\"");
  // What the submitting job left in the environment must not count.
  const ProcessResult result =
      run(made, made.work[0].script, {{"SLURM_JOB_END_TIME", "1"}, {"TZ", "UTC"}});
  EXPECT_NE(result.out.find("end=1893553445 warn=90 type=A100"), std::string::npos) << result.out;
  fake.command("squeue", "date --date='80 seconds' +%FT%T");
  const ProcessResult late = run(made, made.work[0].script);
  EXPECT_EQ(late.exit_code, kWrongInput) << late.out;
  EXPECT_NE(late.out.find("leaves nothing before the warning time"), std::string::npos) << late.out;
  fake.command("squeue", "date --date='1 hour' +%FT%T");
  fake.command("srun", "exit 75");
  const ProcessResult useless = run(made, made.work[0].script);
  EXPECT_NE(useless.out.find("no cell that is left fits"), std::string::npos) << useless.out;
  EXPECT_TRUE(fake.calls("scontrol").empty());
  fake.command("srun", "echo \"end=${SLURM_JOB_END_TIME:-} warn=$POROS_WARN_S\"");
  fake.command("squeue", "exit 1");
  const ProcessResult blind =
      run(made, made.work[0].script, {{"SLURM_JOB_END_TIME", "1"}, {"TZ", "UTC"}});
  EXPECT_EQ(blind.exit_code, 0) << blind.err;
  EXPECT_NE(blind.out.find("end= warn=90"), std::string::npos) << blind.out;
}

TEST_F(Script, GatheringWaitsForJobsThatWereContinued) {
  const Submission made = submission("program: /bin/echo");
  fs::create_directories(made.campaign / "slurm/jobs");
  for (const char* id : {"76", "77", "90"}) {
    write_text(made.campaign / "slurm/jobs" / (std::string(id) + ".json"), "{}");
  }
  fake.command("squeue", "echo 77; echo 90; echo 555");  // 76 is over, 555 is another campaign's
  const ProcessResult later = run(made, made.gather.script);
  EXPECT_EQ(later.exit_code, 75) << later.out << later.err;
  ASSERT_EQ(fake.calls("sbatch").size(), 1u);
  EXPECT_EQ(fake.calls("sbatch")[0][1], "--dependency=afterany:90");
  fake.command("squeue", "echo 77");
  const ProcessResult now = run(made, made.gather.script);
  EXPECT_EQ(now.exit_code, 0) << now.out << now.err;
  EXPECT_NE(now.out.find("bench gather " + made.campaign.string()), std::string::npos) << now.out;
  EXPECT_NE(now.out.find("bench report"), std::string::npos);
}

TEST_F(Script, ThePlainSbatchScriptLivesTheSameLife) {
  const std::string root = POROS_SOURCE_DIR;
  const auto life_of = [](const std::string& text) {
    const auto at = text.find("\n# --- the life of the job");
    EXPECT_NE(at, std::string::npos);
    return text.substr(text.find('\n', at + 1));
  };
  EXPECT_EQ(life_of(read_file(root + "/slurm/campaign.sbatch")),
            life_of(read_file(root + "/slurm/templates/campaign.sh")));
}

}  // namespace
}  // namespace poros
