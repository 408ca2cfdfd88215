# SPDX-License-Identifier: Apache-2.0
"""Makes the token file that every arm of a comparison group trains on.

Two ways to call it, PYTHONPATH=src/peers:

  python -m poros_peers.tokenise REQUEST.json
      {"v": 1, "model_dir": "...", "inputs_dir": "DIR/inputs", "training": {TrainingSpec}}
      TrainingSpec is the `training` object of a cell; of it are read: seq_len, batch_size,
      gradient_accumulation_steps, steps, seed, packing, and dataset, which is an object
      {source, format, text_field} or the source alone.
  python -m poros_peers.tokenise --model-dir DIR --inputs-dir DIR --dataset SOURCE --seq-len 512 ...

stdout is one line: {"path": ..., "sha256": ..., "rows": ..., "supervised_tokens": ...}. Exit code
0; 2 when something given is wrong (stderr says what, where and how to mend it; nothing is written).
The same request gives the same bytes.

What a row holds. packing false: one document a row, padded. A JSONL or hub record is a document; of
a text file, neighbouring paragraphs are joined by a line break until the row is full. packing true:
several documents a row (records, or single paragraphs), each with its own positions and attention.
A document longer than a row goes on in the next as a new document. Every token is supervised except
a document's first. Special tokens are added as the tokenizer's own post-processor does: around a
record; of joined text, those in front at each row's start, those behind at the text's end.
Rows are shuffled by the seed; as many are written as the steps need, fewer if the data end (arms
then begin again). `synthetic` draws ids evenly over the vocabulary, every row one full document.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InputError, write_durably
from .texts import Documents, open_dataset
from .token_file import DOCUMENT_START, PADDING, SUPERVISED, TokenFile, token_file_bytes

OPEN_ROWS = 64  # packing: a document goes into the first of these rows that has room
BATCH = 512  # documents encoded at a time


@dataclass
class Request:
    """What to tokenise, with the trainer's shape: rows_needed = steps x batch x accumulation."""

    model_dir: Path
    inputs_dir: Path
    source: str
    format: str
    text_field: str
    seq_len: int
    batch_size: int
    accumulation: int
    steps: int
    seed: int
    packing: bool

    @property
    def rows_needed(self) -> int:
        return self.steps * self.batch_size * self.accumulation


class Encoder:
    """A tokenizer.json with its special tokens apart: prefix + text + suffix is a document."""

    def __init__(self, model_dir: Path) -> None:
        from tokenizers import Tokenizer

        path = model_dir / "tokenizer.json"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(
                f"{path}: can't be read: {error.strerror}; a dataset of text needs the model's "
                "tokenizer.json (only `synthetic` does without)"
            ) from error
        try:
            self._tokenizer = Tokenizer.from_str(data.decode("utf-8"))
        except Exception as error:  # the library raises plain Exception
            raise InputError(f"{path}: not a tokenizer: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.sha256 = hashlib.sha256(data).hexdigest()
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a").ids
        extra = len(whole) - len(bare)
        at = next((i for i in range(extra + 1) if whole[i : i + len(bare)] == bare), 0)
        self.prefix, self.suffix = whole[:at], whole[at + len(bare) :]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text without special tokens."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


def random_state(seed: int) -> np.random.RandomState:
    """A generator whose stream NumPy keeps unchanged for good."""
    return np.random.RandomState([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF])


def model_vocabulary(model_dir: Path) -> tuple[int, int]:
    """(vocab_size, id used for padding) of the model's config.json."""
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    config = config.get("text_config") or config
    vocab = config.get("vocab_size")
    if not isinstance(vocab, int) or vocab < 1:
        raise InputError(f"{path}: vocab_size must be a positive integer, found {vocab!r}")
    pad = config.get("pad_token_id")
    return vocab, pad if isinstance(pad, int) and 0 <= pad < vocab else 0


def joined_rows(encoder: Encoder, texts: Documents, seq_len: int) -> Iterator[list[int]]:
    """Rows of a running text: whole paragraphs while they fit; only a longer one is cut."""
    room = seq_len - len(encoder.prefix)
    if room < 2:
        raise InputError(f"seq_len {seq_len} leaves no room beside the special tokens")
    pending: list[int] = []
    for start in range(0, texts.count, BATCH):
        batch = [texts.text(i) + "\n" for i in range(start, min(start + BATCH, texts.count))]
        for ids in encoder.encode(batch):
            if pending and len(pending) + len(ids) > room:
                yield encoder.prefix + pending
                pending = []
            pending += ids
            while len(pending) >= room:
                yield encoder.prefix + pending[:room]
                pending = pending[room:]
    if pending:
        yield (encoder.prefix + pending + encoder.suffix)[:seq_len]


def separate_documents(
    encoder: Encoder, texts: Documents, seq_len: int, order: np.ndarray
) -> Iterator[list[int]]:
    """Each text by itself, cut into pieces of seq_len where it is longer."""
    for start in range(0, len(order), BATCH):
        batch = [texts.text(int(i)) for i in order[start : start + BATCH]]
        for bare in encoder.encode(batch):
            ids = encoder.prefix + bare + encoder.suffix
            for cut in range(0, len(ids), seq_len):
                yield ids[cut : cut + seq_len]


def documents_of(request: Request, encoder: Encoder, texts: Documents) -> Iterator[list[int]]:
    """What becomes a document of its own, in the order in which rows are filled."""
    if texts.running and not request.packing:
        return joined_rows(encoder, texts, request.seq_len)
    order = np.arange(texts.count)
    if not texts.running:
        order = random_state(request.seed).permutation(texts.count)
    return separate_documents(encoder, texts, request.seq_len, order)


@dataclass
class Row:
    """Documents side by side, at most seq_len tokens."""

    documents: list[list[int]] = field(default_factory=list)
    used: int = 0

    def add(self, ids: list[int]) -> None:
        self.documents.append(ids)
        self.used += len(ids)


def rows_of(request: Request, documents: Iterator[list[int]]) -> Iterator[Row]:
    """Rows in the order in which they close."""
    long_enough = (ids for ids in documents if len(ids) > 1)
    open_rows: list[Row] = []
    for ids in long_enough:
        if not request.packing:
            yield Row([ids], len(ids))
            continue
        row = next((r for r in open_rows if r.used + len(ids) <= request.seq_len), None)
        if row is None:
            if len(open_rows) == OPEN_ROWS:
                yield open_rows.pop(0)
            row = Row()
            open_rows.append(row)
        row.add(ids)
        if row.used == request.seq_len:
            open_rows.remove(row)
            yield row
    yield from open_rows


def build(request: Request) -> TokenFile:
    """The token file of a request, in memory. Raises InputError."""
    vocab, pad = model_vocabulary(request.model_dir)
    needed, seq_len = request.rows_needed, request.seq_len
    note: dict[str, object] = {"seed": request.seed, "packing": request.packing}
    if request.source == "synthetic":
        ids = random_state(request.seed).randint(0, vocab, (needed, seq_len), dtype=np.uint32)
        flags = np.full((needed, seq_len), SUPERVISED, dtype=np.uint8)
        flags[:, 0] = DOCUMENT_START
        note["dataset"] = "synthetic"
        return TokenFile(ids, flags, vocab, dump(note))

    texts = open_dataset(request.source, request.format, request.text_field)
    encoder = Encoder(request.model_dir)
    rows: list[Row] = []
    for row in rows_of(request, documents_of(request, encoder, texts)):
        rows.append(row)
        if len(rows) == needed and not texts.running:
            break  # records came shuffled already: the rest isn't needed
    if not rows:
        raise InputError(f"dataset {request.source}: no document has two tokens or more")
    order = random_state(request.seed).permutation(len(rows))[:needed]
    ids = np.full((len(order), seq_len), pad, dtype=np.uint32)
    flags = np.full((len(order), seq_len), PADDING, dtype=np.uint8)
    for line, index in enumerate(order):
        at = 0
        for document in rows[index].documents:
            ids[line, at : at + len(document)] = document
            flags[line, at : at + len(document)] = SUPERVISED
            flags[line, at] = DOCUMENT_START
            at += len(document)
    if int(ids.max()) >= vocab:
        raise InputError(
            f"{request.model_dir}: tokenizer.json gives the id {int(ids.max())}, but config.json "
            f"says vocab_size {vocab}: they belong to different models"
        )
    note |= texts.note | {"tokenizer_sha256": encoder.sha256}
    return TokenFile(ids, flags, vocab, dump(note))


def dump(note: dict[str, object]) -> str:
    return json.dumps(note, sort_keys=True, separators=(",", ":"))


def write(request: Request) -> dict[str, object]:
    """Builds and writes inputs_dir/<sha256>.tokens; returns what is printed."""
    tokens = build(request)
    data = token_file_bytes(tokens)
    sha256 = hashlib.sha256(data).hexdigest()
    path = request.inputs_dir / f"{sha256}.tokens"
    if not (path.is_file() and path.read_bytes() == data):
        write_durably(path, data)
    return {
        "path": str(path),
        "sha256": sha256,
        "rows": tokens.rows,
        "supervised_tokens": tokens.supervised_tokens,
    }


def _typed(where: str, values: dict[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = values.get(key, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        found = "nothing" if value is None else json.dumps(value)
        raise InputError(f"{where}: {key} must be of type {kind.__name__}, found {found}")
    return value


def request_from_json(where: str, values: Any) -> Request:
    """Reads the request described at the top. Raises InputError naming `where` and the key."""
    if not isinstance(values, dict) or values.get("v") != 1:
        raise InputError(f'{where}: expected an object with "v": 1')
    training = _typed(where, values, "training", dict)
    inside = f"{where}: training"
    dataset = training.get("dataset", "synthetic")
    if isinstance(dataset, str):
        dataset = {"source": dataset}
    if not isinstance(dataset, dict):
        raise InputError(f"{inside}: dataset must be a string or an object")
    request = Request(
        model_dir=Path(_typed(where, values, "model_dir", str)),
        inputs_dir=Path(_typed(where, values, "inputs_dir", str)),
        source=_typed(f"{inside}: dataset", dataset, "source", str),
        format=_typed(f"{inside}: dataset", dataset, "format", str, "auto"),
        text_field=_typed(f"{inside}: dataset", dataset, "text_field", str, "text"),
        seq_len=_typed(inside, training, "seq_len", int),
        batch_size=_typed(inside, training, "batch_size", int),
        accumulation=_typed(inside, training, "gradient_accumulation_steps", int),
        steps=_typed(inside, training, "steps", int),
        seed=_typed(inside, training, "seed", int),
        packing=_typed(inside, training, "packing", bool, False),
    )
    for key in ("batch_size", "accumulation", "steps"):
        if getattr(request, key) < 1:
            raise InputError(f"{inside}: {key} must be at least 1")
    if request.seq_len < 2:
        raise InputError(f"{inside}: seq_len must be at least 2")
    if request.seed < 0:
        raise InputError(f"{inside}: seed must not be negative")
    return request


def _request_from_command_line(arguments: list[str] | None) -> Request:
    parser = argparse.ArgumentParser(
        prog="python -m poros_peers.tokenise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("request", nargs="?", type=Path, help="JSON request; else the flags below")
    parser.add_argument("--model-dir", help="folder with config.json and tokenizer.json")
    parser.add_argument("--inputs-dir", help="folder to write <sha256>.tokens into")
    parser.add_argument("--dataset", default="synthetic", help="path, hub id or `synthetic`")
    parser.add_argument("--format", default="auto", choices=["auto", "jsonl", "text"])
    parser.add_argument("--text-field", default="text")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--packing", action="store_true")
    args = parser.parse_args(arguments)
    if args.request is not None:
        try:
            values = json.loads(args.request.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{args.request}: can't be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"{args.request}: not JSON: {error}") from error
        return request_from_json(str(args.request), values)
    if args.model_dir is None or args.inputs_dir is None:
        parser.error("give a REQUEST.json, or --model-dir and --inputs-dir")
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


def main(arguments: list[str] | None = None) -> int:
    try:
        print(json.dumps(write(_request_from_command_line(arguments))))
    except InputError as error:
        print(f"tokenise: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tokenise: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(
            f"tokenise: the Python package {error.name} is missing; "
            "pip install -r scripts/requirements/base.txt",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
