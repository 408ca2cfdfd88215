# SPDX-License-Identifier: Apache-2.0
"""The request file of src/cell/protocol.hpp."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError

PROTOCOL_VERSION = 1
# What `protocol: native` leaves of the training in these arms: torch's own AdamW and nothing else.
BARE_ADAMW = {
    "lr_scheduler": "constant",
    "lr_warmup_steps": 0,
    "max_grad_norm": 0.0,
    "weight_decay": 0.01,
}


@dataclass
class Request:
    """The keys of protocol.hpp; `cell` as src/spec/cell_spec.hpp writes it."""

    purpose: str
    cell: dict[str, Any]
    cell_key: str
    pass_index: int
    attempt: int
    model_dir: Path
    tokens_path: Path
    adapter_dir: Path
    result_path: Path
    threads: int
    max_steps: int | None = None
    dump_step: int | None = None  # from 1
    dump_dir: Path | None = None

    @property
    def training(self) -> dict[str, Any]:
        """The cell's training; with protocol native a bare AdamW, and with peer.best_shape the rows
        of a step in one micro-batch."""
        training = self.cell["training"]
        if self.is_native:
            training = training | BARE_ADAMW
        if not self.peer.get("best_shape"):
            return training
        rows = int(training["batch_size"]) * int(training["gradient_accumulation_steps"])
        return training | {"batch_size": rows, "gradient_accumulation_steps": 1}

    @property
    def is_native(self) -> bool:
        return self.cell.get("protocol") == "native"

    @property
    def peer(self) -> dict[str, Any]:
        return self.cell.get("peer") or {}

    @property
    def device(self) -> str:
        return self.cell["device"]

    @property
    def compute_dtype(self) -> str:
        """bf16 or fp32; auto is bf16 on CUDA and fp32 on the CPU."""
        named = self.training.get("compute_dtype", "auto")
        return named if named != "auto" else ("bf16" if self.device == "cuda" else "fp32")

    @property
    def steps_to_run(self) -> int:
        steps = int(self.training["steps"])
        return steps if self.max_steps is None else min(steps, self.max_steps)


def read_request(path: Path) -> Request:
    """Reads a request. Raises InputError naming the file and the key."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(values, dict) or values.get("v") != PROTOCOL_VERSION:
        raise InputError(f"{path}: expected a request of protocol version {PROTOCOL_VERSION}")

    def get(key: str, kind: type) -> Any:
        value = values.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            expected = f"key {key!r} must be of type {kind.__name__}"
            raise InputError(f"{path}: {expected}, found {value!r}")
        return value

    cell = get("cell", dict)
    for key in ("method", "device", "precision", "training"):
        if key not in cell:
            raise InputError(f"{path}: cell has no key {key!r}")
    for key in ("steps", "batch_size", "gradient_accumulation_steps", "learning_rate", "seed"):
        if key not in cell["training"]:
            raise InputError(f"{path}: cell.training has no key {key!r}")
    dump = values.get("dump") or {}
    return Request(
        purpose=get("purpose", str),
        cell=cell,
        cell_key=get("cell_key", str),
        pass_index=get("pass", int),
        attempt=get("attempt", int),
        model_dir=Path(get("model_dir", str)),
        tokens_path=Path(get("tokens_path", str)),
        adapter_dir=Path(get("adapter_dir", str)),
        result_path=Path(get("result_path", str)),
        threads=get("threads", int),
        max_steps=values.get("max_steps"),
        dump_step=dump.get("step"),
        dump_dir=Path(dump["dir"]) if "dir" in dump else None,
    )
