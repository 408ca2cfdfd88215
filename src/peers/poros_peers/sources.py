# SPDX-License-Identifier: Apache-2.0
"""Where records come from: text, JSONL, CSV and parquet files, and hub datasets in the local cache.

A file is read once from its beginning to its end, which finds each record's place, checks that it
is UTF-8 and hashes it; then record by record, in any order. Memory holds the places (24 bytes a
record), never the file.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import tempfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .errors import InputError

FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
}  # fmt: skip
MAX_RECORD_BYTES = 256 << 20  # of a line, a paragraph, a CSV record
NESTED_TOO_DEEPLY = "nested too deeply"


@dataclass
class Source:
    """Records in order. `running` ones are texts, parts of one work: rows may join neighbours."""

    name: str
    count: int
    read: Callable[[int], Any]  # str of running text, else dict; raises InputError with its place
    place: Callable[[int], str]  # "data.jsonl:7"
    running: bool
    note: dict[str, object]  # what the token file's note says of the source
    check_unchanged: Callable[[], None] = lambda: None


def open_source(source: str, format_name: str, split: str, scratch: Path) -> Source:
    """Opens a path or a hub id in the local cache. `scratch`: a folder for temporary files.

    Raises InputError when there is no such file or dataset, or when it holds nothing.
    """
    path = Path(source)
    if source.startswith(("/", "./", "../")) or path.is_file():
        opened = _open_file(path, format_name, scratch)
    else:
        opened = _open_hub(source, split)
    if opened.count == 0:
        raise InputError(f"{source}: holds no text")
    return opened


def _open_file(path: Path, format_name: str, scratch: Path) -> Source:
    if format_name == "auto":
        format_name = FORMATS.get(path.suffix.lower(), "text")
    if path.exists() and not path.is_file():
        raise InputError(f"dataset {path}: is not a regular file; name a file")
    openers = {"text": _open_text, "jsonl": _open_jsonl, "csv": _open_csv}
    try:
        if format_name == "parquet":
            opened = _open_parquet(path, scratch)
        elif format_name in openers:
            opened = openers[format_name](_File(path))
        else:
            raise InputError(f"dataset {path}: format {format_name!r} is unknown")
    except OSError as error:
        raise InputError(f"dataset {path}: can't be read: {error.strerror}") from error
    opened.note["format"] = format_name
    return opened


class _File:
    """An open file: its lines with their places, then any part of it again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        self._stat = os.fstat(self._file.fileno())
        self._hash = hashlib.sha256()

    def lines(self) -> Iterator[tuple[int, int, str]]:
        """(line number from 1, byte offset, text without the line's end) of every line."""
        offset, number = 0, 0
        while raw := self._file.readline(MAX_RECORD_BYTES + 1):
            number += 1
            self._hash.update(raw)
            if len(raw) > MAX_RECORD_BYTES:
                raise InputError(
                    f"{self.path}:{number}: the line is longer than {MAX_RECORD_BYTES >> 20} MiB; "
                    "break it up"
                )
            skipped = _check_mark(self.path, raw) if number == 1 else 0
            yield number, offset + skipped, self._text(number, raw[skipped:])
            offset += len(raw)

    def _text(self, number: int, raw: bytes) -> str:
        try:
            return raw.removesuffix(b"\n").rstrip(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.path}:{number}: byte {error.start + 1} of the line is not UTF-8; convert "
                "the file with iconv -t UTF-8"
            ) from error

    def part(self, offset: int, size: int) -> str:
        return os.pread(self._file.fileno(), size, offset).decode("utf-8", errors="replace")

    def note(self) -> dict[str, object]:
        """To be asked once all lines were read."""
        return {"dataset": self.path.name, "dataset_sha256": self._hash.hexdigest()}

    def check_unchanged(self) -> None:
        now = os.fstat(self._file.fileno())
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            raise InputError(f"{self.path}: was changed while it was read; run the command again")


def _check_mark(path: Path, raw: bytes) -> int:
    """Bytes of a UTF-8 byte order mark."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(
            f"{path}:1: begins like UTF-16; convert the file with iconv -f UTF-16 -t UTF-8"
        )
    return 3 if raw.startswith(b"\xef\xbb\xbf") else 0


class _Places:
    """Offset, size and line number of each record."""

    def __init__(self) -> None:
        self.offsets, self.sizes, self.numbers = array("Q"), array("Q"), array("Q")

    def add(self, offset: int, size: int, number: int) -> None:
        self.offsets.append(offset)
        self.sizes.append(size)
        self.numbers.append(number)

    def __len__(self) -> int:
        return len(self.offsets)


def _open_text(file: _File) -> Source:
    """Runs of non-blank lines; in a file without blank lines each line stands alone."""
    lines = _Places()  # that are not blank
    for number, offset, text in file.lines():
        if text.strip():
            lines.add(offset, len(text.encode("utf-8")), number)
    last = lines.numbers[-1] if len(lines) else 0
    begins = array("Q")  # of each paragraph, as an index into lines
    each_line = last == len(lines)  # none before the last is blank
    for i in range(len(lines)):
        if each_line or i == 0 or lines.numbers[i] != lines.numbers[i - 1] + 1:
            begins.append(i)
    begins.append(len(lines))

    def place(index: int) -> str:
        return f"{file.path}:{lines.numbers[begins[index]]}"

    def read(index: int) -> str:
        first, end = begins[index], begins[index + 1] - 1
        offset = lines.offsets[first]
        size = lines.offsets[end] + lines.sizes[end] - offset
        if size > MAX_RECORD_BYTES:
            raise InputError(
                f"{place(index)}: the paragraph is longer than {MAX_RECORD_BYTES >> 20} MiB; put "
                "blank lines into it"
            )
        return "\n".join(line.rstrip("\r") for line in file.part(offset, size).split("\n"))

    return Source(
        str(file.path), len(begins) - 1, read, place, True, file.note(), file.check_unchanged
    )


def _open_jsonl(file: _File) -> Source:
    lines = _Places()
    for number, offset, text in file.lines():
        if text.strip():
            lines.add(offset, len(text.encode("utf-8")), number)

    def place(index: int) -> str:
        return f"{file.path}:{lines.numbers[index]}"

    def read(index: int) -> Any:
        return parse_json(place(index), file.part(lines.offsets[index], lines.sizes[index]))

    return Source(str(file.path), len(lines), read, place, False, file.note(), file.check_unchanged)


def parse_json(place: str, text: str) -> Any:
    """A JSON value. Raises InputError with place and column; NaN and Infinity are no JSON."""

    def refuse(constant: str) -> Any:
        raise InputError(
            f"{place}: holds {constant}, which is not JSON; write null or leave it out"
        )

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}:{error.colno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        reason = NESTED_TOO_DEEPLY if isinstance(error, RecursionError) else error
        raise InputError(f"{place}: not JSON that can be read: {reason}") from error


def _open_csv(file: _File) -> Source:
    """The first record names the columns. Fields in quotes may hold line breaks."""
    delimiter = "\t" if file.path.suffix.lower() == ".tsv" else ","
    csv.field_size_limit(MAX_RECORD_BYTES)
    records = _Places()
    first, end = [0, 0], [0]  # (offset, line) where the record begins; where the last line ends

    def fed() -> Iterator[str]:
        for number, offset, text in file.lines():
            if first[1] == 0:
                first[:] = [offset, number]
            end[0] = offset + len(text.encode("utf-8"))
            yield text + "\n"

    columns: list[str] = []
    try:
        for fields in csv.reader(fed(), delimiter=delimiter, strict=True):
            if not columns:
                columns = _columns(f"{file.path}:{first[1]}", fields)
            elif fields:  # not a blank line
                if len(fields) != len(columns):
                    raise InputError(
                        f"{file.path}:{first[1]}: {len(fields)} fields, but the first line names "
                        f"{len(columns)} columns; put fields with commas or quotes in quotes"
                    )
                if end[0] - first[0] > MAX_RECORD_BYTES:
                    raise InputError(f"{file.path}:{first[1]}: the record is too long")
                records.add(first[0], end[0] - first[0], first[1])
            first[1] = 0
    except csv.Error as error:
        raise InputError(f"{file.path}:{first[1]}: not CSV: {error}") from error

    def place(index: int) -> str:
        return f"{file.path}:{records.numbers[index]}"

    def read(index: int) -> dict[str, str]:
        text = file.part(records.offsets[index], records.sizes[index])
        lines = (line.rstrip("\r") + "\n" for line in text.split("\n"))
        try:
            fields = next(csv.reader(lines, delimiter=delimiter, strict=True))
        except (csv.Error, StopIteration) as error:
            raise InputError(f"{place(index)}: not CSV: {error}") from error
        return dict(zip(columns, fields, strict=True))

    return Source(
        str(file.path), len(records), read, place, False, file.note(), file.check_unchanged
    )


def _columns(place: str, fields: list[str]) -> list[str]:
    names = [name.strip() for name in fields]
    if not names or "" in names or len(set(names)) != len(names):
        raise InputError(
            f"{place}: the first line must name the columns, each once; it reads "
            f"{', '.join(fields)[:80]!r}"
        )
    return names


def _open_parquet(path: Path, scratch: Path) -> Source:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(
            f"dataset {path}: parquet needs the Python package pyarrow "
            "(pip install -r scripts/requirements/data.txt)"
        ) from error
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    lines = _Places()
    # Rows as JSON lines in a file without a name: parquet has no cheap way to a single row.
    copy: IO[bytes] = tempfile.TemporaryFile(dir=scratch)
    try:
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    text = json.dumps(row, default=lambda value: {"": type(value).__name__})
                    lines.add(copy.tell(), len(text), len(lines))
                    copy.write(text.encode("ascii"))
    except (pyarrow.ArrowException, ValueError) as error:
        raise InputError(f"dataset {path}: not a parquet file that can be read: {error}") from error
    copy.flush()

    def place(index: int) -> str:
        return f"{path}, row {index}"

    def read(index: int) -> dict[str, Any]:
        return json.loads(os.pread(copy.fileno(), lines.sizes[index], lines.offsets[index]))

    note = {"dataset": path.name, "dataset_sha256": digest.hexdigest()}
    return Source(str(path), len(lines), read, place, False, note)


def _open_hub(name: str, split: str) -> Source:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    try:
        import datasets as hub
    except ImportError as error:
        raise InputError(
            f"dataset {name}: no such file, and reading a hub dataset needs the Python package "
            "datasets (pip install -r scripts/requirements/data.txt); for a file write its path"
        ) from error
    try:
        data = hub.load_dataset(name, split=split)
    except Exception as error:
        raise InputError(
            f"dataset {name}: not a file, and its split {split!r} was not found in the local hub "
            f"cache ({error}); fetch it first where there is network, or give the path of a file"
        ) from error

    def place(index: int) -> str:
        return f"dataset {name}, row {index}"

    note: dict[str, object] = {"dataset": name, "split": split}
    return Source(name, len(data), data.__getitem__, place, False, note)


def is_missing(value: Any) -> bool:
    """What stands where there is no value: null, or NaN in a table."""
    return value is None or (isinstance(value, float) and math.isnan(value))
