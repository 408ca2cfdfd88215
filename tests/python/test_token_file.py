# SPDX-License-Identifier: Apache-2.0
"""The token file's bytes, as src/model/token_file.hpp lays them out."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from poros_peers.errors import InputError
from poros_peers.token_file import (
    DOCUMENT_START,
    PADDING,
    SUPERVISED,
    TokenFile,
    read_token_file,
    token_file_bytes,
)


def small() -> TokenFile:
    """Two rows of four tokens: one document and padding; two documents."""
    ids = np.array([[5, 6, 7, 0], [1, 2, 3, 4]], dtype=np.uint32)
    flags = np.array(
        [
            [DOCUMENT_START, SUPERVISED, SUPERVISED, PADDING],
            [DOCUMENT_START, SUPERVISED, DOCUMENT_START, SUPERVISED],
        ],
        dtype=np.uint8,
    )
    return TokenFile(ids, flags, 300, '{"seed":1}')


def test_bytes_are_as_specified(tmp_path: Path) -> None:
    data = token_file_bytes(small())
    note = b'{"seed":1}'
    head = b"POROSTOK" + struct.pack("<IIQII", 1, 4, 2, 300, len(note)) + note
    expected = head + b"\0" * (64 - len(head))
    expected += struct.pack("<8I", 5, 6, 7, 0, 1, 2, 3, 4) + bytes([2, 1, 1, 4, 2, 1, 2, 1])
    assert data == expected
    path = tmp_path / "x.tokens"
    path.write_bytes(data)
    tokens = read_token_file(path)
    assert tokens.sha256 == hashlib.sha256(data).hexdigest()
    assert (tokens.rows, tokens.seq_len, tokens.vocab, tokens.note) == (2, 4, 300, '{"seed":1}')
    assert tokens.ids.tolist() == small().ids.tolist()
    assert tokens.flags.tolist() == small().flags.tolist()
    assert tokens.supervised_tokens == 4


def test_positions_and_documents() -> None:
    tokens = small()
    rows = np.array([1, 0])
    assert tokens.positions(rows).tolist() == [[0, 1, 0, 1], [0, 1, 2, 3]]
    assert tokens.documents(rows).tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]
    assert tokens.is_packed()
    assert tokens.row_indices(1, 4).tolist() == [1, 0, 1, 0]  # the first row follows the last


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "need 104"),
        (lambda data: b"X" + data[1:], "not a token file"),
        (lambda data: data[:8] + b"\2" + data[9:], "version 2"),
        (lambda data: data[:24] + struct.pack("<I", 7) + data[28:], "the id 7"),
        (lambda data: data[:-4] + b"\0" + data[-3:], "row 1 does not begin"),
        (lambda data: data[:-4] + b"\3" + data[-3:], "row 1, column 0 is supervised"),
        (lambda data: data[:-5] + b"\5" + data[-4:], "row 0, column 3 is supervised"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage, message: str) -> None:
    path = tmp_path / "x.tokens"
    path.write_bytes(damage(token_file_bytes(small())))
    with pytest.raises(InputError, match=message) as caught:
        read_token_file(path)
    assert str(path) in str(caught.value)
