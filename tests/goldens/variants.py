# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that exercise what the plain ones leave out.

The checkpoints arch_* hold freshly initialised models: norms are ones, biases zeros, activations
tiny, windows longer than any row. A variant takes the weights of one of them, makes them lively
(scaled matrices, random norms and biases) and switches features on in config.json.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


@dataclass
class Variant:
    base: str
    config: dict[str, Any] = field(default_factory=dict)  # a value None removes the key
    lora: dict[str, Any] = field(default_factory=dict)  # settings of the adapter


def _longrope(original: int) -> dict[str, Any]:
    """Partial rotary of 8 dimensions out of 16, factors of every size."""
    return {
        "max_position_embeddings": 4 * original,
        "original_max_position_embeddings": original,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": original,
            "short_factor": [1.0, 1.1, 1.3, 1.6],
            "long_factor": [1.2, 2.0, 3.5, 5.0],
        },
    }


VARIANTS: dict[str, Variant] = {
    # config.json in the dialect of transformers 4, as hub files have it
    "llama_rope3": Variant(
        "arch_llama",
        {
            "rope_parameters": None,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
            "dtype": None,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.57.1",
        },
        {
            "use_rslora": True,
            "rank_pattern": {"o_proj": 3, "layers.1.self_attn.q_proj": 1},
            "alpha_pattern": {"down_proj": 7},
        },
    ),
    "mistral_window": Variant("arch_mistral", {"sliding_window": 8}),
    "qwen2_window": Variant(
        "arch_qwen2",
        {
            "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "qwen3_lively": Variant("arch_qwen3"),
    "gemma2_window": Variant(
        "arch_gemma2",
        {"sliding_window": 8, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    ),
    "gemma3_window": Variant(
        "arch_gemma3_text",
        {
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "phi3_longrope_long": Variant("arch_phi3", _longrope(16)),
    "phi3_longrope_short": Variant("arch_phi3", _longrope(32)),
    "qwen3_moe_lively": Variant("arch_qwen3_moe", {"norm_topk_prob": True}),
    "mixtral_lively": Variant("arch_mixtral"),
}  # fmt: skip


def _lively(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(tensor.shape, generator=generator)
    value = tensor.float()
    if tensor.dim() == 1:  # norms and biases
        value = value + 0.25 * noise
    elif "embed_tokens" in name:
        value = value * 8
    elif "gate.weight" in name:  # a router: a clear choice of experts
        value = value * 32
    else:
        value = value * 5
    return value.to(tensor.dtype).contiguous()


def write_variant(checkpoints: Path, name: str) -> None:
    """Writes checkpoints/<name> (config.json, model.safetensors)."""
    variant = VARIANTS[name]
    source = checkpoints / variant.base
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    tensors = load_file(source / "model.safetensors")
    lively = {key: _lively(key, tensors[key], generator) for key in sorted(tensors)}
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    for key, value in variant.config.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    folder = checkpoints / name
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    save_file(lively, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
