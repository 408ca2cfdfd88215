// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "base/error.hpp"
#include "model/config.hpp"

namespace poros {
namespace {

double positive(const Json& parameters, const char* key, const std::string& origin) {
  const double value = json_get<double>(parameters, key, origin + ": rope parameters");
  if (!std::isfinite(value) || value <= 0) {
    fail(Fault::input, "{}: rope parameters: \"{}\" must be above 0", origin, key);
  }
  return value;
}

std::vector<float> factor_list(const Json& parameters, const char* key, std::size_t length,
                               const std::string& origin) {
  const auto list = parameters.find(key);
  if (list == parameters.end() || !list->is_array() || list->size() != length) {
    fail(Fault::input, "{}: rope parameters: \"{}\" must be a list of {} numbers", origin, key,
         length);
  }
  std::vector<float> factors;
  for (const Json& entry : *list) {
    const float factor = entry.is_number() ? entry.get<float>() : 0.0F;
    if (!std::isfinite(factor) || factor <= 0) {
      fail(Fault::input, "{}: rope parameters: \"{}\" must be a list of numbers above 0", origin,
           key);
    }
    factors.push_back(factor);
  }
  return factors;
}

/// llama3: long waves are stretched by `factor`, short ones left, those between interpolated.
void scale_llama3(std::vector<float>& inv_freq, const Json& parameters, const std::string& origin) {
  const auto factor = static_cast<float>(positive(parameters, "factor", origin));
  const auto low = static_cast<float>(positive(parameters, "low_freq_factor", origin));
  const auto high = static_cast<float>(positive(parameters, "high_freq_factor", origin));
  const auto original =
      static_cast<float>(positive(parameters, "original_max_position_embeddings", origin));
  if (high <= low) {
    fail(Fault::input, "{}: rope parameters: high_freq_factor must be above low_freq_factor",
         origin);
  }
  for (float& f : inv_freq) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / f;
    if (wavelength > original / low) {
      f = f / factor;
    } else if (wavelength >= original / high) {
      const float smooth = (original / wavelength - low) / (high - low);
      f = (1.0F - smooth) * f / factor + smooth * f;
    }
  }
}

}  // namespace

RopeTable rope_table(const ModelConfig& config, const Json& parameters, std::int64_t rotary_dim,
                     std::int64_t max_positions) {
  const std::string& origin = config.origin();
  const auto kind = json_get<std::string>(parameters, "rope_type", origin);
  const double theta = positive(parameters, "rope_theta", origin);
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    fail(Fault::input, "{}: {} rotated values a head; expected an even number", origin, rotary_dim);
  }
  std::vector<float> power;  // theta^(2i/d); rounded where the reference rounds
  for (std::int64_t i = 0; i < rotary_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary_dim);
    power.push_back(static_cast<float>(std::pow(theta, static_cast<double>(exponent))));
  }
  RopeTable table;
  for (const float p : power) table.inv_freq.push_back(1.0F / p);
  if (kind == "linear") {
    const auto factor = static_cast<float>(positive(parameters, "factor", origin));
    for (float& f : table.inv_freq) f /= factor;
  } else if (kind == "llama3") {
    scale_llama3(table.inv_freq, parameters, origin);
  } else if (kind == "longrope") {
    const auto shorter = factor_list(parameters, "short_factor", power.size(), origin);
    const auto longer = factor_list(parameters, "long_factor", power.size(), origin);
    table.inv_freq_long.resize(power.size());
    for (std::size_t i = 0; i < power.size(); ++i) {
      table.inv_freq[i] = 1.0F / (shorter[i] * power[i]);
      table.inv_freq_long[i] = 1.0F / (longer[i] * power[i]);
    }
    const double original = positive(parameters, "original_max_position_embeddings", origin);
    if (original < 2 || original > 1e9) {
      fail(Fault::input, "{}: rope parameters: original_max_position_embeddings is out of range",
           origin);
    }
    table.original_length = static_cast<std::int64_t>(original);
    const double factor = parameters.contains("factor")
                              ? positive(parameters, "factor", origin)
                              : static_cast<double>(max_positions) / original;
    if (parameters.contains("attention_factor")) {
      table.attention_factor = static_cast<float>(positive(parameters, "attention_factor", origin));
    } else if (factor > 1) {
      table.attention_factor =
          static_cast<float>(std::sqrt(1 + std::log(factor) / std::log(original)));
    }
  } else if (kind != "default") {
    fail(Fault::input,
         "{}: rope type \"{}\" is not supported; known are default, linear, llama3, longrope",
         origin, kind);
  }
  return table;
}

}  // namespace poros
