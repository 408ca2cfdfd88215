// SPDX-License-Identifier: Apache-2.0
#include "campaign/slurm_script.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.hpp"
#include "campaign/slurm_templates.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

/// Replaces the line "@NAME@"; an empty text takes the line's empty neighbour with it.
void fill_in(std::string& script, const std::string& name, const std::string& text) {
  const std::string line = "@" + name + "@\n";
  const auto at = script.find(line);
  if (at == script.npos) fail(Fault::run, "the batch template has no line @{}@", name);
  if (text.empty()) {
    script.erase(at, line.size() + (script[at + line.size()] == '\n' ? 1 : 0));
  } else {
    script.replace(at, line.size(), text);
  }
}

class Directives {
 public:
  void add(const char* option, const std::string& value) {
    text_ += fmt::format("#SBATCH --{}={}\n", option, value);
  }
  void add_quoted(const char* option, const std::string& value) {
    if (!value.empty()) add(option, directive_quote(value));
  }
  void flag(const char* option) { text_ += fmt::format("#SBATCH --{}\n", option); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// An array of the shell: name=('a' 'b').
std::string shell_array(const char* name, const std::vector<std::string>& words) {
  std::string text = fmt::format("{}=(", name);
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : " ") + shell_quote(words[i]);
  return text + ")\n";
}

std::vector<std::string> program_words(const SlurmScriptContext& context) {
  const ClusterContainer& container = context.profile.container;
  const std::string program =
      context.profile.program.empty() ? context.program.string() : context.profile.program;
  if (container.image.empty()) return {program};
  std::vector<std::string> words{container.runtime, "exec"};
  words.insert(words.end(), container.options.begin(), container.options.end());
  for (const std::string& bind : container.bind) {
    words.emplace_back("--bind");
    words.push_back(bind);
  }
  words.push_back(container.image);
  words.push_back(program);
  return words;
}

std::string prologue_text(const ClusterProfile& profile) {
  std::string text;
  for (const std::string& module : profile.modules) {
    text += fmt::format("module load {}\n", shell_quote(module));
  }
  if (!profile.scratch_dir.empty()) {
    text += fmt::format("export POROS_CACHE_DIR={}\n", shell_quote(profile.scratch_dir));
  }
  for (const std::string& line : profile.prologue) text += line + "\n";
  return text;
}

/// '%' begins a pattern in the names of sbatch's output files.
std::string output_pattern(const SlurmScriptContext& context, bool array) {
  std::string folder = (context.campaign / "slurm" / "logs").string();
  for (std::size_t at = 0; (at = folder.find('%', at)) != folder.npos; at += 2) {
    folder.insert(at, 1, '%');
  }
  return folder + (array ? "/%x.%A_%a.log" : "/%x.%j.log");
}

void add_common(Directives& lines, const SlurmScriptContext& context, const SlurmJob& job) {
  lines.add_quoted("job-name", job.name);
  lines.add_quoted("output", output_pattern(context, job.tasks > 0));
  lines.add("open-mode", "append");
  lines.add("time", slurm_time(job.time_s));
  lines.add_quoted("reservation", context.profile.reservation);
}

std::vector<std::string> excluded(const ClusterProfile& profile,
                                  const std::vector<const ClusterGpu*>& gpus) {
  std::vector<std::string> nodes = profile.exclude_nodes;
  for (const ClusterGpu* gpu : gpus) {
    nodes.insert(nodes.end(), gpu->exclude_nodes.begin(), gpu->exclude_nodes.end());
  }
  return nodes;
}

std::int64_t cpus_per_rank(const std::vector<const ClusterGpu*>& gpus) {
  std::int64_t cpus = 1;
  for (const ClusterGpu* gpu : gpus) cpus = std::max(cpus, gpu->cpus_per_gpu);
  return cpus;
}

void add_work(Directives& lines, const ClusterProfile& profile,
              const std::vector<const ClusterGpu*>& gpus) {
  // No --ntasks-per-node: with it a requeued job would wait for as many nodes as it had at first.
  lines.add("cpus-per-gpu", std::to_string(cpus_per_rank(gpus)));
  const std::string& memory = gpus.front()->mem_per_gpu;
  if (!memory.empty()) lines.add_quoted("mem-per-gpu", memory);
  const auto nodes = excluded(profile, gpus);
  if (!nodes.empty()) lines.add_quoted("exclude", fmt::format("{}", fmt::join(nodes, ",")));
  // B: the script alone is signalled, and passes it on to the ranks.
  lines.add("signal", fmt::format("B:USR1@{}", std::lround(profile.warn_s)));
  lines.flag(profile.requeue ? "requeue" : "no-requeue");
}

const std::string& either(const std::string& own, const std::string& common) {
  return own.empty() ? common : own;
}

std::string settings_text(const SlurmScriptContext& context, const SlurmJob& job, std::int64_t cpus,
                          const std::string& more) {
  const ClusterProfile& profile = context.profile;
  std::string text = fmt::format("campaign={}\n", shell_quote(context.campaign.string()));
  if (job.role == "work") {
    text += fmt::format("warn_s={}\nmax_restarts={}\nrequeue={}\n", std::lround(profile.warn_s),
                        profile.max_restarts, profile.requeue ? "yes" : "no");
    if (profile.launcher == "srun") {
      // Since Slurm 22.05 a step doesn't inherit --cpus-per-task.
      text += fmt::format(
          "launch=(srun --mpi={} --ntasks-per-node={} --cpus-per-task={} --kill-on-bad-exit=1)\n",
          shell_quote(profile.mpi), job.ranks_per_node, cpus);
    } else {
      // Ended from outside, mpirun would leave the ranks one second to drain.
      text +=
          fmt::format("launch=(mpirun -N {} --bind-to none --mca odls_base_sigkill_timeout 20)\n",
                      job.ranks_per_node);
    }
  }
  text += shell_array("program", program_words(context));
  if (job.role == "work") {
    std::vector<std::string> words{
        "bench",  "matrix", context.spec.string(), "--output-dir", context.campaign.string(),
        "--plain"};
    words.insert(words.end(), context.matrix_arguments.begin(), context.matrix_arguments.end());
    if (!context.alone && job.tasks == 0) {
      words.insert(words.end(), {"--shard-name", job.label});
    }
    text += shell_array("arguments", words);
    if (job.tasks > 0) {
      text += fmt::format(
          "arguments+=(--shard-name {}.\"$SLURM_ARRAY_TASK_ID\" --shard "
          "\"$SLURM_ARRAY_TASK_ID\"/{})\n",
          shell_quote(job.label), job.tasks);
    }
  }
  return text + more;
}

std::string filled(const char* form, const Directives& lines, const std::string& settings,
                   const ClusterProfile& profile) {
  std::string script = form;
  fill_in(script, "DIRECTIVES", lines.text());
  fill_in(script, "SETTINGS", settings);
  fill_in(script, "PROLOGUE", prologue_text(profile));
  return script;
}

/// Tells the ranks of a mixed job which GPU type each node holds, by the nodes' features.
constexpr const char* kNodeTypes = R"(POROS_NODE_TYPES=''
while read -r node features; do
  for feature in ${features//,/ }; do
    [ -z "${type_of[$feature]:-}" ] || POROS_NODE_TYPES+="$node=${type_of[$feature]},"
  done
done < <(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format='%n %f' | sort -u)
export POROS_NODE_TYPES
)";

}  // namespace

std::string shell_quote(std::string_view text) {
  if (text.find('\0') != text.npos) fail(Fault::input, "a text for a batch script holds a NUL");
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string directive_quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (is_control(c)) {
      fail(Fault::input, "\"{}\" holds a control character; sbatch can't be given that",
           printable(text));
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string slurm_time(double seconds) {
  const auto minutes = static_cast<std::int64_t>(std::ceil(seconds / 60));
  return fmt::format("{}-{:02}:{:02}:00", minutes / 1440, minutes / 60 % 24, minutes % 60);
}

std::string work_script(const SlurmScriptContext& context, const SlurmJob& job,
                        const ClusterGpu& gpu) {
  const ClusterProfile& profile = context.profile;
  Directives lines;
  add_common(lines, context, job);
  lines.add_quoted("account", either(gpu.account, profile.account));
  lines.add_quoted("qos", either(gpu.qos, profile.qos));
  lines.add_quoted("partition", gpu.partition);
  lines.add_quoted("constraint", gpu.constraint);
  if (job.tasks > 0) {
    lines.add("array", fmt::format("0-{}", job.tasks - 1));
    lines.add("nodes", "1");
  } else {
    // With fewer nodes than planned it takes longer; it does not wait for the last one.
    lines.add("nodes", job.nodes == 1 ? "1" : fmt::format("1-{}", job.nodes));
  }
  add_work(lines, profile, {&gpu});
  lines.add_quoted("gpus-per-node", gpu.gres.empty()
                                        ? std::to_string(job.ranks_per_node)
                                        : fmt::format("{}:{}", gpu.gres, job.ranks_per_node));
  const std::string settings =
      settings_text(context, job, gpu.cpus_per_gpu,
                    fmt::format("export POROS_GPU_TYPE={}\n", shell_quote(gpu.type)));
  return filled(kCampaignTemplate, lines, settings, profile);
}

std::string mixed_script(const SlurmScriptContext& context, const SlurmJob& job,
                         const std::vector<const ClusterGpu*>& gpus,
                         const std::vector<std::int64_t>& nodes_of) {
  const ClusterProfile& profile = context.profile;
  Directives lines;
  add_common(lines, context, job);
  lines.add_quoted("account", profile.account);
  lines.add_quoted("qos", profile.qos);
  lines.add_quoted("partition", profile.mixed_partition);
  std::string constraint, types;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    constraint += fmt::format("{}{}*{}", i == 0 ? "" : "&", gpus[i]->constraint, nodes_of[i]);
    types += fmt::format(" [{}]={}", shell_quote(gpus[i]->constraint), shell_quote(gpus[i]->type));
  }
  lines.add("nodes", std::to_string(job.nodes));
  lines.add_quoted("constraint", "[" + constraint + "]");
  add_work(lines, profile, gpus);
  lines.add("gpus-per-node", std::to_string(job.ranks_per_node));
  const std::string settings =
      settings_text(context, job, cpus_per_rank(gpus),
                    fmt::format("declare -A type_of=({})\n", types.substr(1)) + kNodeTypes);
  return filled(kCampaignTemplate, lines, settings, profile);
}

std::string gather_script(const SlurmScriptContext& context, const SlurmJob& job) {
  Directives lines;
  add_common(lines, context, job);
  lines.add_quoted("account", context.profile.account);
  lines.add_quoted("partition", context.profile.gather_partition);
  lines.add("nodes", "1");
  lines.add("ntasks", "1");
  return filled(kGatherTemplate, lines, settings_text(context, job, 1, ""), context.profile);
}

}  // namespace poros
