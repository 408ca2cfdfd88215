// SPDX-License-Identifier: Apache-2.0
#include "cuda_fixture.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.hpp"
#include "base/json.hpp"

namespace poros {

DeviceTrace train_steps(const BaseStore& base, const Adapter& adapter, const RunSettings& settings,
                        std::int64_t steps) {
  const auto executor = make_executor(base, adapter, settings);
  AdamW optimizer(flat_parameters(*executor), {0.01, 1.0}, executor->stream());
  DeviceTrace trace;
  trace.views = executor->views();
  std::vector<float> memory;
  FlatParameters host;
  const auto elements = static_cast<std::size_t>(executor->flat_elements());
  for (std::int64_t step = 0; step < steps; ++step) {
    const TokenRows rows =
        random_rows(settings.batch_size * settings.micro_batches, settings.seq_len,
                    base.architecture().vocab, true, 100 + static_cast<std::uint64_t>(step));
    (void)executor->run_step(rows.batch(), step);
    trace.losses.push_back(executor->loss());
    trace.norms.push_back(optimizer.measure_norm().norm);
    host = host_parameters(*executor, memory);
    trace.gradients.emplace_back(host.gradient, host.gradient + elements);
    optimizer.update(1e-3);
  }
  host = host_parameters(*executor, memory);
  trace.master.assign(host.master, host.master + elements);
  trace.exp_avg.assign(host.exp_avg, host.exp_avg + elements);
  trace.exp_avg_sq.assign(host.exp_avg_sq, host.exp_avg_sq + elements);
  trace.counters = executor->counters();
  return trace;
}

double relative_l2(const float* got, const float* wanted, std::size_t count) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double a = static_cast<double>(got[i]), b = static_cast<double>(wanted[i]);
    if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

double gradient_distance(const DeviceTrace& got, const DeviceTrace& wanted) {
  double largest = 0;
  for (const ParameterView& view : wanted.views) {
    const auto count = static_cast<std::size_t>(view.rows * view.cols);
    const double distance = relative_l2(got.gradients[0].data() + view.offset,
                                        wanted.gradients[0].data() + view.offset, count);
    largest = std::max(largest, distance);
  }
  return largest;
}

void expect_equal_bits(const DeviceTrace& got, const DeviceTrace& wanted) {
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  for (std::size_t step = 0; step < wanted.losses.size(); ++step) {
    ASSERT_TRUE(std::isfinite(wanted.losses[step])) << "loss of step " << step;
    ASSERT_GT(wanted.norms[step], 0) << "norm of step " << step;
    EXPECT_TRUE(same(got.gradients[step], wanted.gradients[step])) << "gradients, step " << step;
  }
  EXPECT_TRUE(same(got.losses, wanted.losses)) << "losses";
  EXPECT_TRUE(same(got.norms, wanted.norms)) << "norms";
  EXPECT_TRUE(same(got.master, wanted.master)) << "weights";
  EXPECT_TRUE(same(got.exp_avg, wanted.exp_avg)) << "first moments";
  EXPECT_TRUE(same(got.exp_avg_sq, wanted.exp_avg_sq)) << "second moments";
}

std::string small_config(const std::string& kind) {
  Json config = {{"hidden_size", 256},
                 {"intermediate_size", 512},
                 {"num_hidden_layers", 3},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"vocab_size", 1000},
                 {"max_position_embeddings", 1024},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 10000.0},
                 {"tie_word_embeddings", false},
                 {"hidden_act", "silu"},
                 {"torch_dtype", "bfloat16"}};
  const auto name = [&](const char* type, const char* architecture) {
    config["model_type"] = type;
    config["architectures"] = {architecture};
  };
  if (kind == "qwen2" || kind == "deep") {
    name("qwen2", "Qwen2ForCausalLM");  // biases; tied ends
    config["tie_word_embeddings"] = true;
    if (kind == "deep") config["num_hidden_layers"] = 9;
  } else if (kind == "qwen3") {
    name("qwen3", "Qwen3ForCausalLM");  // q/k norm
    config["head_dim"] = 128;
  } else if (kind == "mistral") {
    name("mistral", "MistralForCausalLM");  // sliding window
    config["sliding_window"] = 50;
  } else if (kind == "phi3") {
    name("phi3", "Phi3ForCausalLM");  // fused projections
    config["original_max_position_embeddings"] = 1024;
    config["pad_token_id"] = 0;
  } else if (kind == "mixtral") {
    name("mixtral", "MixtralForCausalLM");  // experts, all of them in some row's choice
    config["num_local_experts"] = 8;
    config["num_experts_per_tok"] = 2;
  } else if (kind == "qwen3_moe") {
    name("qwen3_moe", "Qwen3MoeForCausalLM");  // many experts, some of them without rows
    config["head_dim"] = 64;
    config["num_experts"] = 64;
    config["num_experts_per_tok"] = 4;
    config["moe_intermediate_size"] = 128;
    config["norm_topk_prob"] = true;
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = {1};  // one dense layer among them
  } else if (kind == "gemma2") {
    name("gemma2", "Gemma2ForCausalLM");  // soft-caps, post norms, scaled embedding
    config["tie_word_embeddings"] = true;
    config["head_dim"] = 64;
    config["hidden_activation"] = "gelu_pytorch_tanh";
    config["attn_logit_softcapping"] = 50.0;
    config["final_logit_softcapping"] = 30.0;
    config["query_pre_attn_scalar"] = 64;
    config["sliding_window"] = 50;
  } else {
    fail(Fault::run, "no small model \"{}\"", kind);
  }
  return dump_json(config);
}

std::vector<std::string> small_targets(const std::string& kind) {
  if (kind == "mixtral") return {"q_proj", "o_proj", "w1", "w2", "w3"};
  return {};
}

}  // namespace poros
