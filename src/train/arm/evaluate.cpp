// SPDX-License-Identifier: Apache-2.0
#include "train/arm/evaluate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "train/arm/session.hpp"

namespace poros {
namespace {

constexpr std::int64_t kRowsPerSweep = 4096;  // tokens that are computed together

bool is_token_file(const std::filesystem::path& path) {
  const UniqueFd fd = open_for_reading(path);
  char magic[8] = {};
  try {
    pread_exact(fd.get(), magic, sizeof magic, 0, path);
  } catch (const Error&) {
    return false;  // shorter than the magic
  }
  return std::string_view(magic, sizeof magic) == "POROSTOK";
}

TokenFile read_tokens(const std::filesystem::path& path, std::int64_t vocab) {
  if (!is_token_file(path)) {
    return tokens_from_json(parse_json(read_file(path), path.string()), vocab, path.string());
  }
  TokenFile tokens = read_token_file(path);
  if (tokens.vocab > vocab) {
    fail(Fault::input, "{}: made for a vocabulary of {}, but the model has {}", path.string(),
         tokens.vocab, vocab);
  }
  return tokens;
}

/// The spec of an evaluation: one row a micro-batch, as many as a sweep holds.
CellSpec evaluation_cell(const EvaluateOptions& options, const TokenFile& tokens) {
  CellSpec cell;
  cell.method = "resident";
  cell.device = options.device;
  cell.precision = options.precision;
  cell.training.seq_len = tokens.seq_len;
  cell.training.batch_size = 1;
  cell.training.gradient_accumulation_steps =
      std::clamp<std::int64_t>(kRowsPerSweep / tokens.seq_len, 1, tokens.rows);
  cell.lora.dropout = 0;
  return cell;
}

}  // namespace

TokenFile tokens_from_json(const Json& json, std::int64_t vocab, const std::string& origin) {
  const Json rows = json_get<Json>(json, "input_ids", origin);
  if (!rows.is_array() || rows.empty()) {
    fail(Fault::input, "{}: \"input_ids\" must be a list of at least one list of token ids",
         origin);
  }
  TokenFile tokens;
  tokens.vocab = vocab;
  tokens.rows = static_cast<std::int64_t>(rows.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (!rows[row].is_array() || rows[row].size() < 2) {
      fail(Fault::input, "{}: row {} of \"input_ids\" must be a list of at least 2 token ids",
           origin, row);
    }
    tokens.seq_len = std::max(tokens.seq_len, static_cast<std::int64_t>(rows[row].size()));
  }
  const auto elements = static_cast<std::size_t>(tokens.rows * tokens.seq_len);
  tokens.ids.assign(elements, 0);
  tokens.flags.assign(elements, TokenFile::kPadding);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const std::size_t begin = row * static_cast<std::size_t>(tokens.seq_len);
    for (std::size_t i = 0; i < rows[row].size(); ++i) {
      const Json& id = rows[row][i];
      if (!id.is_number_integer() || id < 0 || id >= vocab) {
        fail(Fault::input, "{}: row {}, token {}: {} is no id below the vocabulary's size {}",
             origin, row, i, id.dump(), vocab);
      }
      tokens.ids[begin + i] = id.get<std::uint32_t>();
      tokens.flags[begin + i] = i == 0 ? TokenFile::kDocumentStart : TokenFile::kSupervised;
    }
  }
  return tokens;
}

Evaluation evaluate(const EvaluateOptions& options) {
  const Architecture architecture = read_architecture(read_model_config(options.model_dir));
  const TokenFile tokens = read_tokens(options.tokens_path, architecture.vocab);
  SessionInput input;
  input.cell = evaluation_cell(options, tokens);
  input.model_dir = options.model_dir;
  input.adapter_dir = options.adapter_dir;
  input.check_adapter = false;  // whatever it adapts, it is the one that was asked for
  input.cache_dir = options.cache_dir;
  input.threads = options.threads > 0
                      ? options.threads
                      : std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  Session session;
  open_session(
      input, [](const char*) {}, session);
  Evaluation evaluation;
  double sum = 0;
  for (const RowLoss& row : session.executor->evaluate(tokens.ids, tokens.flags)) {
    sum += row.sum;
    evaluation.tokens += row.tokens;
    evaluation.losses.push_back(
        row.tokens > 0 ? std::optional(row.sum / static_cast<double>(row.tokens)) : std::nullopt);
  }
  if (evaluation.tokens == 0) {
    fail(Fault::input, "{}: no token is supervised, so there is no loss",
         options.tokens_path.string());
  }
  evaluation.loss = sum / static_cast<double>(evaluation.tokens);
  return evaluation;
}

namespace {

double perplexity_of(const Evaluation& evaluation, const EvaluateOptions& options) {
  const double perplexity = std::exp(evaluation.loss);
  if (!std::isfinite(evaluation.loss) || !std::isfinite(perplexity)) {
    fail(Fault::run, "{}: the loss {} gives no finite perplexity", options.model_dir.string(),
         evaluation.loss);
  }
  return perplexity;
}

Json row_losses(const Evaluation& evaluation) {
  Json losses = Json::array();
  for (const auto& loss : evaluation.losses) losses.push_back(json_or_null(loss));
  return losses;
}

}  // namespace

int evaluate_and_print(const EvaluateOptions& options, bool compare, bool json) {
  if (compare && options.adapter_dir.empty()) {
    fail(Fault::usage, "--compare sets an adapter beside its base: name one with --adapter");
  }
  const Evaluation evaluation = evaluate(options);
  const double perplexity = perplexity_of(evaluation, options);
  std::optional<Evaluation> base;
  if (compare) {
    EvaluateOptions plain = options;
    plain.adapter_dir.clear();
    base = evaluate(plain);
  }
  const double base_perplexity = base ? perplexity_of(*base, options) : 0;
  if (!json) {
    fmt::print("model       {}\nprecision   {}\nadapter     {}\n", options.model_dir.string(),
               options.precision,
               options.adapter_dir.empty() ? "none" : options.adapter_dir.string());
    fmt::print(
        "rows        {}\ntokens      {} predicted\nloss        {:.6f} nat\nperplexity  {:.4f}\n",
        evaluation.losses.size(), evaluation.tokens, evaluation.loss, perplexity);
    if (base) {
      fmt::print(
          "without the adapter\nloss        {:.6f} nat\nperplexity  {:.4f}\n"
          "ratio       {:.4f} of the perplexity without it\n",
          base->loss, base_perplexity, perplexity / base_perplexity);
    }
    return kDone;
  }
  Json result{
      {"model", options.model_dir.string()},
      {"adapter", options.adapter_dir.empty() ? Json(nullptr) : Json(options.adapter_dir.string())},
      {"precision", options.precision},
      {"device", options.device},
      {"loss", evaluation.loss},
      {"tokens", evaluation.tokens},
      {"perplexity", perplexity},
      {"losses", row_losses(evaluation)}};
  if (base) {
    result["base"] = {
        {"loss", base->loss}, {"perplexity", base_perplexity}, {"losses", row_losses(*base)}};
    result["loss_difference"] = evaluation.loss - base->loss;
    result["perplexity_ratio"] = perplexity / base_perplexity;
  }
  std::puts(dump_json(result).c_str());
  return kDone;
}

}  // namespace poros
