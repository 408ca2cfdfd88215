# SPDX-License-Identifier: Apache-2.0
"""The committed reference figures and demo model are what their descriptions say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import DEMO_MODEL, GOLDENS
from poros_peers.token_file import read_token_file
from safetensors import safe_open

REFERENCE = GOLDENS / "reference"
CASES = sorted(p.name for p in REFERENCE.iterdir() if p.is_dir())


@pytest.mark.parametrize("case", CASES)
def test_reference_is_complete(case: str) -> None:
    """Finite figures for both bases, a gradient for every tensor of the adapter, none of them 0."""
    with safe_open(REFERENCE / case / "adapter" / "adapter_model.safetensors", "np") as file:
        adapter = {name: file.get_tensor(name) for name in file.keys()}
    with safe_open(REFERENCE / case / "reference.safetensors", "np") as file:
        figures = {name: file.get_tensor(name) for name in file.keys()}
        note = json.loads(file.metadata()["note"])
    assert (GOLDENS / "checkpoints" / note["checkpoint"] / "config.json").is_file()
    assert all(np.isfinite(value).all() for value in figures.values())
    for base in ("fp32", "nf4"):
        assert figures[f"{base}.plain.logits"].shape == (2, 24, 128)
        for name, value in adapter.items():
            gradient = figures[f"{base}.plain.gradient.{name}"]
            assert gradient.shape == value.shape
            assert np.abs(value).max() > 0
        largest = {n: np.abs(figures[f"{base}.plain.gradient.{n}"]).max() for n in adapter}
        idle = [n for n, size in largest.items() if size == 0]
        assert not idle or case == "qwen3_moe_experts"  # an expert that no token chose
    losses = [figures[f"fp32.plain.step{n}.loss"][0] for n in range(1, 6)]
    assert losses == sorted(losses, reverse=True)
    moved = [n for n in adapter if (figures[f"fp32.plain.step5.weight.{n}"] != adapter[n]).any()]
    assert moved == list(adapter)


def test_batches() -> None:
    plain = read_token_file(REFERENCE / "plain.tokens")
    packed = read_token_file(REFERENCE / "packed.tokens")
    assert (plain.ids == packed.ids).all()
    assert not plain.is_packed() and packed.is_packed()
    assert packed.positions(np.arange(2))[0].tolist() == [*range(9), *range(11), *range(4)]


@pytest.mark.peers
@pytest.mark.parametrize("case", ["arch_llama", "gemma2_window", "qwen3_moe_experts"])
def test_reference_can_be_made_again(case: str) -> None:
    import make_reference
    import torch
    from safetensors.torch import load_file

    figures = load_file(REFERENCE / case / "reference.safetensors")
    checkpoint = "qwen3_moe_lively" if case == make_reference.EXPERTS_CASE else case
    batch = read_token_file(REFERENCE / "plain.tokens")
    for base in ("fp32", "nf4"):
        lora = make_reference.make_lora(case, checkpoint, nf4=base == "nf4")
        logits, loss = make_reference.forward_backward(lora, batch)
        found = {"logits": logits, "loss": loss.reshape(1)}
        found |= {f"gradient.{n}": t for n, t in make_reference.gradients(lora).items()}
        for name, value in found.items():
            expected = figures[f"{base}.plain.{name}"]
            limit = 1e-5 * expected.abs().max()
            assert torch.allclose(value, expected, rtol=0, atol=float(limit)), name


def test_demo_model_is_small_and_quantisable() -> None:
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    assert config["model_type"] == "qwen2" and config["vocab_size"] == 4096
    size = sum(p.stat().st_size for p in DEMO_MODEL.iterdir())
    assert size <= 12_000_000
    with safe_open(DEMO_MODEL / "model.safetensors", "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}
        shapes = {name: part.get_shape() for name, part in slices.items()}
        assert {part.get_dtype() for part in slices.values()} == {"BF16"}
    assert "lm_head.weight" not in shapes  # tied
    sides = {side for shape in shapes.values() for side in shape}
    assert all(side % 64 == 0 for side in sides), sides


def test_demo_tokenizer_loses_nothing() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 4096
    for text in ("In the beginning", "Zürich \t 日本\n\n", Path(__file__).read_text()):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
