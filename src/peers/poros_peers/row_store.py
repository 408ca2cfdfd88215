# SPDX-License-Identifier: Apache-2.0
"""Rows on their way into a token file: kept on disk, so that memory doesn't grow with the data."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from .encoder import Document
from .errors import InputError
from .token_file import DOCUMENT_START, PADDING, SUPERVISED, token_file_head


@dataclass
class Written:
    """A finished token file."""

    path: Path
    sha256: str
    rows: int
    tokens: int
    supervised_tokens: int


class RowStore:
    """Rows of seq_len ids and flags, in two files without a name. Closed, they are gone."""

    def __init__(self, scratch: Path, seq_len: int, pad: int) -> None:
        self.rows = 0
        self.largest_id = 0
        self._seq_len, self._pad = seq_len, pad
        self._ids = tempfile.TemporaryFile(dir=scratch)
        self._flags = tempfile.TemporaryFile(dir=scratch)

    def __enter__(self) -> RowStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.close()
        self._flags.close()

    def add(self, documents: list[Document]) -> None:
        """One row: documents side by side, then padding."""
        ids = np.full(self._seq_len, self._pad, dtype="<u4")
        flags = np.full(self._seq_len, PADDING, dtype=np.uint8)
        at = 0
        for document in documents:
            end = at + len(document)
            ids[at:end] = document.ids
            flags[at:end] = SUPERVISED
            if document.learnt is not None:
                flags[at:end] = np.frombuffer(document.learnt, dtype=np.uint8) * SUPERVISED
            flags[at] = DOCUMENT_START
            at = end
        self.add_arrays(ids, flags)

    def add_arrays(self, ids: np.ndarray, flags: np.ndarray) -> None:
        self.largest_id = max(self.largest_id, int(ids.max()))
        self._ids.write(ids.astype("<u4", copy=False).tobytes())
        self._flags.write(flags.tobytes())
        self.rows += 1

    def write(self, folder: Path, order: np.ndarray, vocab: int, note: str) -> Written:
        """folder/<sha256>.tokens with the rows of `order`; the same bytes aren't written twice."""
        self._ids.flush()
        self._flags.flush()
        digest = hashlib.sha256()
        tokens = supervised = 0
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".making-tokens-", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:

                def put(data: bytes) -> None:
                    digest.update(data)
                    file.write(data)

                put(token_file_head(self._seq_len, len(order), vocab, note))
                for row in order:
                    put(_row(self._ids, int(row), 4 * self._seq_len))
                for row in order:
                    part = _row(self._flags, int(row), self._seq_len)
                    flags = np.frombuffer(part, dtype=np.uint8)
                    tokens += int(np.count_nonzero(flags & PADDING == 0))
                    supervised += int(np.count_nonzero(flags & SUPERVISED))
                    put(part)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            sha256 = digest.hexdigest()
            path = folder / f"{sha256}.tokens"
            if supervised == 0:
                raise InputError(
                    "no token is learnt in any of the rows; a longer seq_len may reach the answers"
                )
            if not _holds(path, sha256):
                os.replace(name, path)
                _sync(folder)
        finally:
            Path(name).unlink(missing_ok=True)
        return Written(path, sha256, len(order), tokens, supervised)


def _row(file: IO[bytes], row: int, size: int) -> bytes:
    return os.pread(file.fileno(), size, row * size)


def _holds(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
