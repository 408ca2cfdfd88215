# SPDX-License-Identifier: Apache-2.0
"""Paths, a runner's request, and fixtures that skip where the reference libraries are missing."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "goldens"
DEMO_MODEL = ROOT / "configs" / "models" / "kjv-qwen2"
DEMO_TEXT = ROOT / "configs" / "data" / "alice.txt"
PEERS = ("torch", "transformers", "accelerate", "bitsandbytes", "peft")

sys.path[:0] = [str(ROOT / "src" / "peers"), str(GOLDENS)]
os.environ["PYTHONPATH"] = str(ROOT / "src" / "peers")
os.environ["HF_HUB_OFFLINE"] = "1"

from poros_peers import tokenise  # noqa: E402 found by the path above
from poros_peers.token_file import PADDING, TokenFile, read_token_file  # noqa: E402
from poros_peers.token_request import request_from_json  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `peers` are skipped, by name, where a reference library is missing."""
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    if not missing:
        return
    reason = f"not installed: {', '.join(missing)} (scripts/bootstrap.sh --peers installs them)"
    for item in items:
        if item.get_closest_marker("peers"):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "peers: needs transformers, peft and bitsandbytes")


RequestMaker = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture
def make_request(tmp_path: Path) -> RequestMaker:
    """Writes a request file; keyword arguments replace keys of the request, `training` and `peer`
    keys of the cell's. Returns its path and the request."""

    def make(
        training: dict[str, Any] | None = None, peer: dict[str, Any] | None = None, **keys: Any
    ) -> tuple[Path, dict[str, Any]]:
        cell = {
            "method": "peft",
            "model": {"model_id": "./model", "weights": "pretrained"},
            "precision": "nf4",
            "device": "cpu",
            "protocol": "shared",
            "hardware": {"gpu_name": "none", "vram_gb": 0, "vram_cap_mb": None},
            "training": {
                "steps": 3,
                "seq_len": 24,
                "batch_size": 1,
                "gradient_accumulation_steps": 2,
                "seed": 42,
                "warmup_steps": 1,
                "compute_dtype": "auto",
                "learning_rate": 1e-3,
                "lr_scheduler": "cosine",
                "lr_warmup_steps": 0,
                "max_grad_norm": 1.0,
                "weight_decay": 0.01,
            }
            | (training or {}),
            "lora": {"rank": 2, "alpha": 4, "dropout": 0},
            "peer": {"gradient_checkpointing": True, "attn_implementation": "eager"} | (peer or {}),
        }
        request = {
            "v": 1,
            "purpose": "timed",
            "cell": cell,
            "cell_key": "ab" * 32,
            "pass": 0,
            "attempt": 1,
            "model_dir": str(tmp_path / "model"),
            "tokens_path": str(tmp_path / "tokens"),
            "adapter_dir": str(tmp_path / "adapter"),
            "cache_dir": str(tmp_path / "cache"),
            "result_path": str(tmp_path / "result.json"),
            "threads": 1,
        } | keys
        path = tmp_path / "request.json"
        path.write_text(json.dumps(request))
        return path, request

    return make


@pytest.fixture
def keep_sigterm() -> Iterator[None]:
    """Puts the SIGTERM handler back that a runner replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def words_model(tmp_path: Path) -> Path:
    """A model whose tokenizer has one id a word and puts <s> before and </s> behind a text."""
    words = ["<s>", "</s>", *"abcdefghij"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"vocab_size": 12, "pad_token_id": 11}')
    return folder


def build(
    model: Path, source: str | Path, inputs: Path | None = None, **training: Any
) -> TokenFile:
    """The token file that the tokenising step makes of a dataset."""
    values = {
        "v": 1,
        "model_dir": str(model),
        "inputs_dir": str(inputs or model.parent / "inputs"),
        "training": {
            "dataset": {"source": str(source)},
            "seq_len": 8,
            "batch_size": 1,
            "gradient_accumulation_steps": 1,
            "steps": 100,
            "seed": 3,
        }
        | training,
    }
    answer = tokenise.write(request_from_json("test", values))
    return read_token_file(Path(answer["path"]))


def contents(tokens: TokenFile) -> list[list[int]]:
    """Each row without its padding, in a fixed order."""
    kept = (tokens.flags & PADDING) == 0
    return sorted(row[keep].tolist() for row, keep in zip(tokens.ids, kept, strict=True))
