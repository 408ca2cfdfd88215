# SPDX-License-Identifier: Apache-2.0
"""Where training text comes from: text and JSONL files, and hub datasets in the local cache."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError

JSONL_SUFFIXES = (".jsonl", ".ndjson")


@dataclass
class Documents:
    """Texts in order. `running` texts are parts of one work: rows may join neighbours."""

    count: int
    text: Callable[[int], str]  # reads one text; raises InputError naming its place
    running: bool
    note: dict[str, object]  # what the token file's note says of the source


def open_dataset(source: str, format_name: str, text_field: str) -> Documents:
    """Opens a path (text: paragraphs; JSONL: one record a line) or a hub id in the local cache.

    Raises InputError when there is no such file or dataset, or when it holds no text.
    """
    path = Path(source)
    if source.startswith(("/", "./", "../")) or path.is_file():
        documents = _open_file(path, format_name, text_field)
    else:
        documents = _open_hub(source, text_field)
    if documents.count == 0:
        raise InputError(f"{source}: holds no text")
    return documents


def _open_file(path: Path, format_name: str, text_field: str) -> Documents:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"dataset {path}: can't be read: {error.strerror}") from error
    if format_name == "auto":
        format_name = "jsonl" if path.suffix.lower() in JSONL_SUFFIXES else "text"
    note: dict[str, object] = {
        "dataset": path.name,
        "dataset_sha256": hashlib.sha256(data).hexdigest(),
        "format": format_name,
    }
    lines = _decode_lines(path, data)
    if format_name == "text":
        paragraphs = _paragraphs(lines)
        return Documents(len(paragraphs), paragraphs.__getitem__, True, note)
    if format_name == "jsonl":
        note["text_field"] = text_field
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]

        def record(index: int) -> str:
            number, line = numbered[index]
            return _jsonl_text(f"{path}:{number}", line, text_field)

        return Documents(len(numbered), record, False, note)
    raise InputError(f"dataset {path}: format {format_name!r} is unknown; use text or jsonl")


def _decode_lines(path: Path, data: bytes) -> list[str]:
    lines = data.split(b"\n")
    result = []
    for number, line in enumerate(lines, 1):
        try:
            result.append(line.rstrip(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8; convert the "
                "file with iconv -t UTF-8"
            ) from error
    return result


def _paragraphs(lines: Sequence[str]) -> list[str]:
    """Runs of non-blank lines; in a file without blank lines each line stands alone."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    if all(line.strip() for line in lines):
        return list(lines)
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return ["\n".join(paragraph) for paragraph in paragraphs if paragraph]


def _jsonl_text(place: str, line: str, text_field: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}:{error.colno}: not JSON: {error.msg}") from error
    if not isinstance(row, dict):
        raise InputError(f"{place}: a record must be a JSON object, found {type(row).__name__}")
    if text_field not in row:
        raise InputError(
            f"{place}: no field {text_field!r}; the record has {', '.join(sorted(row)) or 'none'}; "
            "name the right one as the dataset's text_field"
        )
    if not isinstance(row[text_field], str):
        found = type(row[text_field]).__name__
        raise InputError(f"{place}: field {text_field!r} must be a string, found {found}")
    return row[text_field]


def _open_hub(name: str, text_field: str) -> Documents:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    try:
        import datasets as hub  # not this module: imports are absolute
    except ImportError as error:
        raise InputError(
            f"dataset {name}: no such file, and reading a hub dataset needs the Python package "
            "datasets (pip install datasets); for a file write its path"
        ) from error
    try:
        data = hub.load_dataset(name, split="train")
    except Exception as error:
        raise InputError(
            f"dataset {name}: not a file, and not found in the local hub cache ({error}); fetch it "
            "first where there is network, or give the path of a file"
        ) from error
    if text_field not in data.column_names:
        raise InputError(
            f"dataset {name}: no column {text_field!r}; it has {', '.join(data.column_names)}"
        )

    def text(index: int) -> str:
        value = data[index][text_field]
        if not isinstance(value, str):
            raise InputError(f"dataset {name}, row {index}: column {text_field!r} is not a string")
        return value

    note: dict[str, object] = {"dataset": name, "split": "train", "text_field": text_field}
    return Documents(len(data), text, False, note)
