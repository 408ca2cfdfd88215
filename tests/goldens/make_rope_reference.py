#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/goldens/rope_reference.json: rotary tables as transformers 5.24.0 computes them.

    python3 tests/goldens/make_rope_reference.py

For each configuration {"tables": [[inverse frequency, ...], ...], "attention_factor": number}, floats in
full precision. For longrope the second table is the one of long rows, for gemma3 that of the layers
with a window.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig, Gemma3TextConfig, LlamaConfig, Qwen2Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

HERE = Path(__file__).resolve().parent


def published(name: str, cls: type) -> Any:
    """A configuration of tests/goldens/configs."""
    fields = json.loads((HERE / "configs" / f"{name}.json").read_text())
    fields = fields.get("text_config", fields)
    fields.pop("model_type")
    return cls(**fields)


def main() -> None:
    """Computes and writes all tables."""
    result: dict[str, dict[str, Any]] = {}

    def add(name: str, tables: list[Any], attention_factor: float = 1.0) -> None:
        result[name] = {"tables": [table.tolist() for table in tables],
                        "attention_factor": attention_factor}

    add("configs/Llama-3.1-8B.json",
        [LlamaRotaryEmbedding(published("Llama-3.1-8B", LlamaConfig)).inv_freq])
    add("configs/Qwen2.5-7B.json",
        [Qwen2RotaryEmbedding(published("Qwen2.5-7B", Qwen2Config)).inv_freq])
    gemma = Gemma3RotaryEmbedding(published("gemma-3-4b-pt", Gemma3TextConfig))
    add("configs/gemma-3-4b-pt.json",
        [gemma.full_attention_inv_freq, gemma.sliding_attention_inv_freq])
    longrope = ROPE_INIT_FUNCTIONS["longrope"]
    for name in ("phi3_longrope_short", "phi3_longrope_long"):
        config = AutoConfig.from_pretrained(HERE / "checkpoints" / name)
        short, factor = longrope(config, None, seq_len=1)
        long, _ = longrope(config, None, seq_len=1_000_000)
        add(f"checkpoints/{name}", [short, long], factor)
    (HERE / "rope_reference.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
