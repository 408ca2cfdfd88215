// SPDX-License-Identifier: Apache-2.0
#include "campaign/tokeniser.hpp"

#include <cstdlib>
#include <system_error>

#include <fcntl.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/subprocess.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr double kTokenise_s = 12 * 3600, kPrompt_s = 300;
/// Beside tokenizer.json: where a chat template and the names of special tokens stand.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                           "special_tokens_map.json", "chat_template.jinja"};

std::string last_lines(const std::string& text) {
  std::string end = text.substr(text.size() - std::min<std::size_t>(text.size(), 2000));
  while (!end.empty() && end.back() == '\n') end.pop_back();
  return end;
}

/// A request as an argument: its text, or a file that holds what is too long for one.
class RequestArgument {
 public:
  explicit RequestArgument(const Json& request) : text_(dump_json(request)) {
    constexpr std::size_t kLongest = 100'000;  // the system takes 131072 bytes
    if (text_.size() <= kLongest) return;
    std::string name = (fs::temp_directory_path() / "poros-request-XXXXXX").string();
    UniqueFd fd(::mkostemp(name.data(), O_CLOEXEC));
    if (!fd) fail_errno(Fault::io, name);
    file_ = name;
    write_all(fd.get(), text_.data(), text_.size(), file_);
  }
  ~RequestArgument() {
    std::error_code error;
    if (!file_.empty()) fs::remove(file_, error);
  }
  RequestArgument(const RequestArgument&) = delete;
  RequestArgument& operator=(const RequestArgument&) = delete;
  [[nodiscard]] std::string word() const { return file_.empty() ? text_ : file_.string(); }

 private:
  std::string text_;
  fs::path file_;
};

/// Runs a module of poros_peers that takes its request as an argument and answers with JSON.
Json ask_python(const InstallPaths& paths, const std::string& module, const Json& request,
                double limit_s) {
  if (paths.peers_dir.empty()) {
    fail(Fault::environment,
         "the tokenising step (src/peers) was not found beside this program; set POROS_PEERS_DIR "
         "to the folder that holds poros_peers/");
  }
  const RequestArgument argument(request);
  const ProcessResult result =
      run_process({paths.python, "-m", "poros_peers." + module, argument.word()}, limit_s,
                  {{"PYTHONPATH", paths.peers_dir.string()},
                   {"PYTHONDONTWRITEBYTECODE", "1"},
                   {"TOKENIZERS_PARALLELISM", "false"},
                   {"HF_HUB_OFFLINE", "1"}},
                  std::size_t{64} << 20);
  if (result.timed_out) {
    fail(Fault::environment, "{} did not end within {:.0f} minutes", module, limit_s / 60);
  }
  if (result.exit_code != 0) {
    fail(result.exit_code == kWrongInput ? Fault::input : Fault::environment,
         "{} with {} failed (exit code {}): {}", module == "tokenise" ? "tokenising" : module,
         paths.python, result.exit_code, last_lines(result.err));
  }
  return parse_json(result.out, module);
}

/// A file's sha256 where there is such a file.
void add_hash(Json& request, const char* key, const fs::path& file) {
  std::error_code error;
  if (!file.empty() && fs::is_regular_file(file, error)) request[key] = sha256_file(file);
}

}  // namespace

Json token_request(const TrainingSpec& training, const fs::path& model_dir,
                   const fs::path& inputs_dir, bool all_rows) {
  const DatasetSpec& data = training.dataset;
  Json dataset{{"source", data.path.empty() ? data.source : data.path},
               {"format", data.format},
               {"text_field", data.text_field}};
  // The others only where they say something: a new key leaves old requests as they were.
  const DatasetSpec plain;
  const auto add = [&](const char* key, const auto& value, const auto& otherwise) {
    if (value != otherwise) dataset[key] = value;
  };
  add("rows", data.rows, plain.rows);
  add("loss_on", data.loss_on, plain.loss_on);
  add("too_long", data.too_long, plain.too_long);
  add("shuffle", data.shuffle, plain.shuffle);
  add("split", data.split, plain.split);
  add("chat_template",
      data.chat_template_path.empty() ? data.chat_template : data.chat_template_path,
      plain.chat_template);
  add("validation_fraction", data.validation_fraction, plain.validation_fraction);
  add("validation", data.validation_path.empty() ? data.validation : data.validation_path,
      plain.validation);
  Json request{{"v", 1},
               {"model_dir", model_dir.string()},
               {"inputs_dir", inputs_dir.string()},
               {"training",
                {{"seq_len", training.seq_len},
                 {"batch_size", training.batch_size},
                 {"gradient_accumulation_steps", training.gradient_accumulation_steps},
                 {"steps", training.steps},
                 {"seed", training.seed},
                 {"packing", training.packing},
                 {"dataset", dataset}}}};
  if (all_rows) request["all_rows"] = true;
  return request;
}

TokenisedData tokenise(const InstallPaths& paths, const Json& request) {
  const std::string origin = "tokenising step";
  const Json answer = ask_python(paths, "tokenise", request, kTokenise_s);
  TokenisedData data;
  data.path = json_get<std::string>(answer, "path", origin);
  data.sha256 = json_get<std::string>(answer, "sha256", origin);
  data.statistics = json_get<Json>(answer, "statistics", origin);
  data.text = json_get<std::string>(answer, "text", origin);
  const Json validation = json_get<Json>(answer, "validation", origin);
  if (!validation.is_null()) {
    data.validation_path = json_get<std::string>(validation, "path", origin);
    data.validation_sha256 = json_get<std::string>(validation, "sha256", origin);
    data.statistics["validation"] = json_get<Json>(validation, "statistics", origin);
  }
  return data;
}

std::string token_request_id(Json request) {
  const fs::path model_dir = json_get<std::string>(request, "model_dir", "token request");
  request.erase("inputs_dir");
  Json files = Json::object();
  for (const char* name : kTokenizerFiles) add_hash(files, name, model_dir / name);
  request["tokenizer"] = files;
  const Json dataset = request.at("training").at("dataset");
  for (const char* key : {"source", "validation", "chat_template"}) {
    if (dataset.contains(key)) add_hash(request, key, dataset.at(key).get<std::string>());
  }
  return sha256_hex(dump_json(request));
}

PromptTokens encode_prompt(const InstallPaths& paths, const fs::path& model_dir,
                           const std::string& text, bool chat, const fs::path& chat_template) {
  const Json answer = ask_python(paths, "prompt",
                                 {{"model_dir", model_dir.string()},
                                  {"text", text},
                                  {"chat", chat},
                                  {"chat_template", chat_template.string()}},
                                 kPrompt_s);
  PromptTokens tokens;
  tokens.ids = json_get<std::vector<std::uint32_t>>(answer, "ids", "prompt");
  tokens.stop_ids = json_get<std::vector<std::uint32_t>>(answer, "stop_ids", "prompt");
  return tokens;
}

std::string decode_tokens(const InstallPaths& paths, const fs::path& model_dir,
                          const std::vector<std::uint32_t>& ids) {
  const Json answer =
      ask_python(paths, "prompt", {{"model_dir", model_dir.string()}, {"ids", ids}}, kPrompt_s);
  return json_get<std::string>(answer, "text", "prompt");
}

}  // namespace poros
