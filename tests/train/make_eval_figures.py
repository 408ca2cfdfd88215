#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes eval_figures.json: losses of a golden checkpoint as transformers computes them.

Needs torch 2.11, transformers 5.24 and peft 0.21. Run from the repository's root. Each row is one
document; its loss is the mean over its predicted positions, in fp32 with eager attention. One run
has an adapter, which is drawn and saved here as well (eval_adapter/).
"""

from __future__ import annotations

import json
import pathlib

import peft
import torch
import transformers

GOLDENS = pathlib.Path("tests/goldens")
ADAPTER = pathlib.Path("tests/train/eval_adapter")


def rows(vocab: int) -> list[list[int]]:
    """Three rows of different lengths, the same for every model but for the vocabulary."""
    return [
        [(7 * index + 3 * row + index * index) % vocab for index in range(length)]
        for row, length in enumerate((17, 40, 2))
    ]


def losses(model: torch.nn.Module, ids: list[list[int]]) -> list[float]:
    """Mean loss of each row."""
    found = []
    for row in ids:
        tokens = torch.tensor([row])
        with torch.no_grad():
            logits = model(input_ids=tokens).logits[0, :-1].double()
        found.append(float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:])))
    return found


def with_adapter(model: torch.nn.Module) -> torch.nn.Module:
    """The model under a new adapter whose B is not zero; saves the adapter."""
    config = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        lora_dropout=0.1,
        target_modules=["q_proj", "v_proj", "down_proj"],
        task_type="CAUSAL_LM",
        base_model_name_or_path="llama_bf16",
    )
    torch.manual_seed(11)
    adapted = peft.get_peft_model(model, config)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)
    adapted.save_pretrained(ADAPTER)
    (ADAPTER / "README.md").unlink(missing_ok=True)
    return adapted


def figures(name: str, adapted: bool) -> dict[str, object]:
    """Tokens and losses of one golden."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        GOLDENS / name, dtype=torch.float32, attn_implementation="eager"
    )
    if adapted:
        model = with_adapter(model)
    model.eval()
    ids = rows(model.config.vocab_size)
    return {"model": name, "adapted": adapted, "input_ids": ids, "losses": losses(model, ids)}


def main() -> None:
    """Writes the figures beside this script."""
    found = {
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "runs": [figures("llama_bf16", False), figures("llama_bf16", True)],
    }
    path = pathlib.Path(__file__).with_name("eval_figures.json")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
