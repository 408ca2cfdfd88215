# SPDX-License-Identifier: Apache-2.0
"""The token file inputs/<sha256>.tokens; src/model/token_file.hpp describes the format."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import InputError

MAGIC = b"POROSTOK"
VERSION = 1
HEADER = struct.Struct("<8sIIQII")  # magic, version, seq_len, rows, vocab, bytes of the note
SUPERVISED, DOCUMENT_START, PADDING = 1, 2, 4


@dataclass
class TokenFile:
    """ids: uint32 [rows, seq_len]; flags: uint8 [rows, seq_len], bits of the constants above."""

    ids: np.ndarray
    flags: np.ndarray
    vocab: int
    note: str
    sha256: str = ""

    @property
    def rows(self) -> int:
        return int(self.ids.shape[0])

    @property
    def seq_len(self) -> int:
        return int(self.ids.shape[1])

    @property
    def supervised_tokens(self) -> int:
        return int((self.flags & SUPERVISED).astype(bool).sum())

    def row_indices(self, first: int, count: int) -> np.ndarray:
        """Rows first, first + 1, ...; after the last row the first follows."""
        return np.arange(first, first + count) % self.rows

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Rotary positions, int64 [len(rows), seq_len]: 0 at each document's first token."""
        index = np.arange(self.seq_len)
        starts = np.where(self.flags[rows] & DOCUMENT_START, index, 0)
        return index - np.maximum.accumulate(starts, axis=1)

    def documents(self, rows: np.ndarray) -> np.ndarray:
        """Number of the document within its row, int64 [len(rows), seq_len], from 0."""
        return np.cumsum((self.flags[rows] & DOCUMENT_START) > 0, axis=1) - 1

    def is_packed(self) -> bool:
        """Whether some row holds more than one document (padding's own start not counted)."""
        real = (self.flags & DOCUMENT_START > 0) & (self.flags & PADDING == 0)
        return bool((real.sum(axis=1) > 1).any())


def token_file_head(seq_len: int, rows: int, vocab: int, note: str) -> bytes:
    """What stands before the ids."""
    text = note.encode("utf-8")
    head = HEADER.pack(MAGIC, VERSION, seq_len, rows, vocab, len(text)) + text
    return head + b"\0" * (-len(head) % 64)


def token_file_bytes(tokens: TokenFile) -> bytes:
    """The file's bytes; equal content gives equal bytes."""
    head = token_file_head(tokens.seq_len, tokens.rows, tokens.vocab, tokens.note)
    ids = np.ascontiguousarray(tokens.ids, dtype="<u4").tobytes()
    return head + ids + np.ascontiguousarray(tokens.flags, dtype=np.uint8).tobytes()


def read_token_file(path: Path) -> TokenFile:
    """Reads and checks a token file. Raises InputError naming the path and what is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from error
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise InputError(f"{path}: not a token file (it does not begin with POROSTOK)")
    _, version, seq_len, rows, vocab, note_bytes = HEADER.unpack_from(data)
    if version != VERSION:
        raise InputError(f"{path}: version {version} of the token file; this program reads 1")
    start = HEADER.size + note_bytes
    start += -start % 64
    expected = start + 5 * rows * seq_len
    if rows == 0 or seq_len == 0 or len(data) != expected:
        raise InputError(
            f"{path}: {len(data)} bytes, but {rows} rows of {seq_len} tokens need {expected}; "
            "make the file again"
        )
    count = rows * seq_len
    ids = np.frombuffer(data, dtype="<u4", count=count, offset=start).reshape(rows, seq_len)
    flags = np.frombuffer(data, dtype=np.uint8, offset=start + 4 * count).reshape(rows, seq_len)
    if int(ids.max()) >= vocab:
        raise InputError(f"{path}: holds the id {int(ids.max())}; the vocabulary ends at {vocab}")
    if not (flags[:, 0] & DOCUMENT_START).all():
        row = int(np.argmin(flags[:, 0] & DOCUMENT_START))
        raise InputError(f"{path}: row {row} does not begin with the start of a document")
    wrong = (flags & SUPERVISED > 0) & (flags & (DOCUMENT_START | PADDING) > 0)
    if wrong.any():
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"{path}: row {row}, column {column} is supervised, but is padding or the first token "
            "of a document, which nothing predicts"
        )
    note = data[HEADER.size : HEADER.size + note_bytes].decode("utf-8")
    return TokenFile(ids, flags, vocab, note, hashlib.sha256(data).hexdigest())
