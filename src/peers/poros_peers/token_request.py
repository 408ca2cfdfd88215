# SPDX-License-Identifier: Apache-2.0
"""What the tokenising step is asked for: tokenise.py says how."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .errors import InputError
from .records import KINDS

CHOICES = {
    "format": ("auto", "jsonl", "text", "csv", "parquet"),
    "rows": ("auto", *KINDS),
    "loss_on": ("responses", "last", "all"),
    "too_long": ("auto", "split", "truncate", "drop"),
}


@dataclass
class Dataset:
    """DatasetSpec."""

    source: str = "synthetic"
    format: str = "auto"
    text_field: str = "text"
    rows: str = "auto"
    loss_on: str = "responses"
    too_long: str = "auto"
    shuffle: bool = True
    split: str = "train"
    chat_template: str = ""
    validation_fraction: float = 0
    validation: str = ""


@dataclass
class Request:
    """What to tokenise, with the trainer's shape: rows_needed = steps x batch x accumulation."""

    model_dir: Path
    inputs_dir: Path
    dataset: Dataset
    seq_len: int
    batch_size: int
    accumulation: int
    steps: int
    seed: int
    packing: bool
    all_rows: bool = False

    @property
    def rows_needed(self) -> int | None:
        """None: all."""
        return None if self.all_rows else self.steps * self.batch_size * self.accumulation


def _typed(where: str, values: dict[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = values.get(key, default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        found = "nothing" if value is None else json.dumps(value)
        raise InputError(f"{where}: {key} must be of type {kind.__name__}, found {found}")
    return value


def _dataset_from_json(where: str, values: Any) -> Dataset:
    if isinstance(values, str):
        values = {"source": values}
    if not isinstance(values, dict):
        raise InputError(f"{where}: dataset must be a string or an object")
    inside = f"{where}: dataset"
    known = {f.name: f for f in fields(Dataset)}
    for key in values:
        if key not in known:
            raise InputError(f"{inside}: unknown key {key!r}; known are {', '.join(known)}")
    kinds = {"shuffle": bool, "validation_fraction": float}
    dataset = Dataset(**{
        key: _typed(inside, values, key, kinds.get(key, str), f.default)
        for key, f in known.items()
    })  # fmt: skip
    for key, choices in CHOICES.items():
        if getattr(dataset, key) not in choices:
            raise InputError(
                f"{inside}: {key} must be one of {', '.join(choices)}, found "
                f"{getattr(dataset, key)!r}"
            )
    if not 0 <= dataset.validation_fraction < 1:
        raise InputError(f"{inside}: validation_fraction must be at least 0 and below 1")
    if dataset.validation_fraction > 0 and dataset.validation:
        raise InputError(f"{inside}: give validation or validation_fraction, not both")
    return dataset


def request_from_json(where: str, values: Any) -> Request:
    """Reads the request described at the top. Raises InputError naming `where` and the key."""
    if not isinstance(values, dict) or values.get("v") != 1:
        raise InputError(f'{where}: expected an object with "v": 1')
    training = _typed(where, values, "training", dict)
    inside = f"{where}: training"
    request = Request(
        model_dir=Path(_typed(where, values, "model_dir", str)),
        inputs_dir=Path(_typed(where, values, "inputs_dir", str)),
        dataset=_dataset_from_json(inside, training.get("dataset", "synthetic")),
        seq_len=_typed(inside, training, "seq_len", int),
        batch_size=_typed(inside, training, "batch_size", int),
        accumulation=_typed(inside, training, "gradient_accumulation_steps", int),
        steps=_typed(inside, training, "steps", int),
        seed=_typed(inside, training, "seed", int),
        packing=_typed(inside, training, "packing", bool, False),
        all_rows=_typed(where, values, "all_rows", bool, False),
    )
    for key in ("batch_size", "accumulation", "steps"):
        if getattr(request, key) < 1:
            raise InputError(f"{inside}: {key} must be at least 1")
    if request.seq_len < 2:
        raise InputError(f"{inside}: seq_len must be at least 2")
    if request.seed < 0:
        raise InputError(f"{inside}: seed must not be negative")
    return request


def request_from_command_line(arguments: list[str] | None, description: str) -> Request:
    parser = argparse.ArgumentParser(
        prog="python -m poros_peers.tokenise",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("request", nargs="?", help="JSON request or its file; else the flags below")
    parser.add_argument("--model-dir", help="folder with config.json and tokenizer.json")
    parser.add_argument("--inputs-dir", help="folder to write <sha256>.tokens into")
    parser.add_argument("--dataset", default="synthetic", help="path, hub id or `synthetic`")
    parser.add_argument("--format", default="auto", choices=CHOICES["format"])
    parser.add_argument("--text-field", default="text")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--packing", action="store_true")
    args = parser.parse_args(arguments)
    if args.request is not None:
        return request_from_json(*json_of(args.request))
    if args.model_dir is None or args.inputs_dir is None:
        parser.error("give a REQUEST, or --model-dir and --inputs-dir")
    training = {
        "dataset": {"source": args.dataset, "format": args.format, "text_field": args.text_field},
        "seq_len": args.seq_len,
        "batch_size": args.batch_size,
        "gradient_accumulation_steps": args.accumulation,
        "steps": args.steps,
        "seed": args.seed,
        "packing": args.packing,
    }
    values = {
        "v": 1,
        "model_dir": args.model_dir,
        "inputs_dir": args.inputs_dir,
        "training": training,
    }
    return request_from_json("command line", values)


def json_of(request: str) -> tuple[str, Any]:
    """Where it stands, and the JSON value of a request that is text or a file."""
    where, text = "request", request
    if not request.lstrip().startswith("{"):
        where = request
        try:
            text = Path(request).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"{request}: can't be read: {error.strerror}") from error
    try:
        return where, json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from error
