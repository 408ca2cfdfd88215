# SPDX-License-Identifier: Apache-2.0
"""Makes the token files that a trainer and every arm of a comparison group read.

Two ways to call it, PYTHONPATH=src/peers:

  python -m poros_peers.tokenise REQUEST       a JSON file, or its text itself
      {"v": 1, "model_dir": "...", "inputs_dir": "DIR/inputs", "training": {TrainingSpec},
       "all_rows": false}
      TrainingSpec is the `training` object of a cell; of it are read: seq_len, batch_size,
      gradient_accumulation_steps, steps, seed, packing, and dataset, which is an object (keys as in
      DatasetSpec; source and validation may be paths) or the source alone. With all_rows every row
      of the data is written, whatever the steps need.
  python -m poros_peers.tokenise --model-dir DIR --inputs-dir DIR --dataset SOURCE --seq-len 512 ...

stdout is one line: {"path", "sha256", "rows", "supervised_tokens", "statistics", "validation":
null or the same of the validation rows, "text": the statistics for people}. Exit code 0; 2 when
something given is wrong (stderr says what, where and how to mend it; nothing is written). The same
request gives the same bytes. docs/data.md says which files and records are read.

What a row holds. packing false: one document a row, padded. A record is a document; of a text file,
neighbouring paragraphs are joined by a line break until the row is full. packing true: several
documents a row (records, or single paragraphs), each with its own positions and attention. Special
tokens are added as the tokenizer's own post-processor does: around a record; of joined text, those
in front at each row's start, those behind at the text's end. A chat template brings its own.
Rows are shuffled by the seed; as many are written as the steps need, fewer if the data end (arms
then begin again). `synthetic` draws ids evenly over the vocabulary, every row one full document.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from .encoder import Encoder
from .errors import InputError
from .records import RecordReader, Rules
from .row_store import RowStore, Written
from .rows import joined_rows, rows_of, separate_documents
from .sources import Source, open_source
from .statistics import Statistics, text_of
from .token_file import DOCUMENT_START, SUPERVISED
from .token_request import Dataset, Request, request_from_command_line


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


@dataclass
class Part:
    """Records of a source that become one token file: all of them, in order for running text."""

    source: Source
    order: np.ndarray
    shuffle: bool  # the rows
    limit: int | None  # rows


def parts_of(request: Request, source: Source, scratch: Path) -> tuple[Part, Part | None]:
    """What is trained on, and what is evaluated on."""
    dataset = request.dataset
    order = np.arange(source.count)
    if dataset.shuffle and not source.running:
        order = random_state(request.seed).permutation(source.count)
    validation = None
    if dataset.validation:
        name, split = dataset.validation, dataset.split
        if "split" in source.note and not name.startswith(("/", "./", "../")):
            name, split = dataset.source, dataset.validation
        apart = open_source(name, dataset.format, split, scratch)
        validation = Part(apart, np.arange(apart.count), False, None)
    elif dataset.validation_fraction > 0:
        count = max(1, round(source.count * dataset.validation_fraction))
        if count >= source.count:
            raise InputError(
                f"dataset {source.name}: {source.count} documents can't be parted with a "
                f"validation_fraction of {dataset.validation_fraction}"
            )
        validation = Part(source, order[-count:], False, None)  # of running text its end
        order = order[:-count]
    return Part(source, order, dataset.shuffle, request.rows_needed), validation


class Tokeniser:
    """Makes the token files of a request. Raises InputError."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.vocab, self.pad = model_vocabulary(request.model_dir)
        self.scratch = _existing(request.inputs_dir)

    def run(self) -> dict[str, Any]:
        """What is printed."""
        request = self.request
        if request.dataset.source == "synthetic":
            return self._answer(*self._synthetic())
        dataset = request.dataset
        source = open_source(dataset.source, dataset.format, dataset.split, self.scratch)
        train, validation = parts_of(request, source, self.scratch)
        encoder = Encoder(request.model_dir)
        rules = Rules(
            request.model_dir,
            dataset.rows,
            dataset.text_field,
            dataset.loss_on,
            Path(dataset.chat_template) if dataset.chat_template else None,
        )
        made = None if validation is None else self._make(validation, encoder, rules, "validation")
        answer = self._answer(*self._make(train, encoder, rules, "train"))
        if made is not None:
            answer["validation"] = self._answer(*made)
            answer["text"] += f"to evaluate on:\n{answer['validation'].pop('text')}"
        return answer

    def _answer(self, written: Written, counts: Statistics) -> dict[str, Any]:
        counts.rows, counts.tokens = written.rows, written.tokens
        counts.supervised_tokens = written.supervised_tokens
        statistics = counts.to_json()
        return {
            "path": str(written.path),
            "sha256": written.sha256,
            "rows": written.rows,
            "supervised_tokens": written.supervised_tokens,
            "statistics": statistics,
            "validation": None,
            "text": text_of(statistics),
        }

    def _make(
        self, part: Part, encoder: Encoder, rules: Rules, use: str
    ) -> tuple[Written, Statistics]:
        request, source = self.request, part.source
        reader = RecordReader(source, rules)
        counts = Statistics(reader.kind, request.seq_len, source.count)
        if source.running and not request.packing:
            paragraphs = range(int(part.order[0]), int(part.order[-1]) + 1)
            documents = joined_rows(encoder, source, paragraphs, request.seq_len, counts)
        else:
            documents = separate_documents(request, encoder, reader, part.order, counts)
        with RowStore(self.scratch, request.seq_len, self.pad) as store:
            for row in rows_of(request, documents):
                store.add(row.documents)
                # Records came shuffled already: the rest isn't needed.
                if store.rows == part.limit and not (source.running and part.shuffle):
                    break
            source.check_unchanged()
            if store.rows == 0:
                raise InputError(
                    f"dataset {source.name}: no document of {source.count} can be learnt from: "
                    f"{counts.too_short} have under two tokens, {counts.too_long} are too long, "
                    f"{counts.nothing_learnt} have no answer within {request.seq_len} tokens"
                )
            if store.largest_id >= self.vocab:
                raise InputError(
                    f"{request.model_dir}: tokenizer.json gives the id {store.largest_id}, but "
                    f"config.json says vocab_size {self.vocab}: they belong to different models"
                )
            order = np.arange(store.rows)
            if part.shuffle:
                order = random_state(request.seed).permutation(store.rows)
            note = self._note(source, reader, encoder, use)
            return store.write(request.inputs_dir, order[: part.limit], self.vocab, note), counts

    def _note(self, source: Source, reader: RecordReader, encoder: Encoder, use: str) -> str:
        """Settings at their default are left out, so that a new one changes no file."""
        request, dataset = self.request, asdict(self.request.dataset)
        note: dict[str, object] = {"seed": request.seed, "packing": request.packing}
        note |= source.note | {"tokenizer_sha256": encoder.sha256}
        if not source.running and reader.kind == "text":
            note["text_field"] = request.dataset.text_field
        if reader.kind != "text":
            note["rows"] = reader.form
            note["loss_on"] = request.dataset.loss_on
        if reader.template_text is not None:
            note["chat_template_sha256"] = hashlib.sha256(reader.template_text.encode()).hexdigest()
        for key in ("too_long", "shuffle", "validation_fraction"):
            if dataset[key] != next(f.default for f in fields(Dataset) if f.name == key):
                note[key] = dataset[key]
        if use != "train":
            note["use"] = use
        return dump(note)

    def _synthetic(self) -> tuple[Written, Statistics]:
        request = self.request
        if request.dataset.validation or request.dataset.validation_fraction:
            raise InputError("the dataset `synthetic` holds nothing to learn, so no validation")
        if request.rows_needed is None:
            raise InputError("the dataset `synthetic` has no end: say how many rows by the steps")
        note = {"seed": request.seed, "packing": request.packing, "dataset": "synthetic"}
        counts = Statistics("synthetic", request.seq_len)
        flags = np.full(request.seq_len, SUPERVISED, dtype=np.uint8)
        flags[0] = DOCUMENT_START
        state = random_state(request.seed)
        with RowStore(self.scratch, request.seq_len, self.pad) as store:
            for _ in range(request.rows_needed):
                store.add_arrays(state.randint(0, self.vocab, request.seq_len, np.uint32), flags)
            order = np.arange(store.rows)
            return store.write(request.inputs_dir, order, self.vocab, dump(note)), counts


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there: for files without a name."""
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def dump(note: dict[str, object]) -> str:
    return json.dumps(note, sort_keys=True, separators=(",", ":"))


def write(request: Request) -> dict[str, Any]:
    """Writes inputs_dir/<sha256>.tokens; returns what is printed."""
    return Tokeniser(request).run()


def main(arguments: list[str] | None = None) -> int:
    try:
        request = request_from_command_line(arguments, __doc__ or "")
        print(json.dumps(write(request)))
    except InputError as error:
        print(f"tokenise: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"tokenise: {where}{error.strerror}", file=sys.stderr)
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
