# SPDX-License-Identifier: Apache-2.0
"""Documents of a dataset, and the rows that they fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .encoder import Document, Encoder
from .errors import InputError
from .records import Piece, RecordReader
from .sources import Source
from .statistics import Statistics
from .token_request import Request

OPEN_ROWS = 64  # packing: a document goes into the first of these rows that has room
BATCH, BATCH_CHARACTERS = 512, 1 << 18  # documents encoded at a time, and what ends a batch early


def batches(items: Iterator[Any]) -> Iterator[list[Any]]:
    """Texts or pieces in order, so many at a time that memory stays small."""
    batch: list[Any] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(item.text if isinstance(item, Piece) else item)
        if len(batch) == BATCH or size > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def joined_rows(
    encoder: Encoder, source: Source, part: range, seq_len: int, counts: Statistics
) -> Iterator[Document]:
    """Rows of a running text: whole paragraphs while they fit; only a longer one is cut."""
    room = seq_len - len(encoder.prefix)
    if room < 2:
        raise InputError(f"seq_len {seq_len} leaves no room beside the special tokens")
    pending: list[int] = []
    for batch in batches(source.read(i) + "\n" for i in part):
        counts.records_read += len(batch)
        for ids in encoder.encode(batch):
            counts.lengths.append(len(ids))
            counts.split += len(ids) > room
            if pending and len(pending) + len(ids) > room:
                yield Document(encoder.prefix + pending)
                pending = []
            pending += ids
            while len(pending) >= room:
                yield Document(encoder.prefix + pending[:room])
                pending = pending[room:]
    if pending:
        yield Document((encoder.prefix + pending + encoder.suffix)[:seq_len])


def fitted(
    document: Document, seq_len: int, too_long: str, counts: Statistics
) -> Iterator[Document]:
    """The parts of a document that become documents of rows; none where it is dropped."""
    counts.lengths.append(len(document))
    if len(document) < 2:
        counts.too_short += 1
    elif len(document) <= seq_len:
        if document.learns():
            yield document
        else:
            counts.nothing_learnt += 1
    elif too_long == "drop":
        counts.too_long += 1
    elif too_long == "truncate":
        kept = document.part(0, seq_len)
        counts.truncated += 1
        if kept.learns():
            yield kept
        else:
            counts.nothing_learnt += 1
    else:
        counts.split += 1
        for begin in range(0, len(document), seq_len):
            part = document.part(begin, begin + seq_len)
            if part.learns():
                yield part


def separate_documents(
    request: Request, encoder: Encoder, reader: RecordReader, order: np.ndarray, counts: Statistics
) -> Iterator[Document]:
    """Each record by itself, cut or dropped where it is longer than a row."""
    too_long = request.dataset.too_long
    if too_long == "auto":
        too_long = "split" if reader.kind == "text" else "truncate"
    for pieces in batches(reader.piece(int(i)) for i in order):
        for document in encoder.documents(pieces):
            counts.records_read += 1
            yield from fitted(document, request.seq_len, too_long, counts)


@dataclass
class Row:
    """Documents side by side, at most seq_len tokens."""

    documents: list[Document] = field(default_factory=list)
    used: int = 0

    def add(self, document: Document) -> None:
        self.documents.append(document)
        self.used += len(document)


def rows_of(request: Request, documents: Iterator[Document]) -> Iterator[Row]:
    """Rows in the order in which they close."""
    open_rows: list[Row] = []
    for document in documents:
        if len(document) < 2:  # the last piece of a text
            continue
        if not request.packing:
            yield Row([document], len(document))
            continue
        row = next((r for r in open_rows if r.used + len(document) <= request.seq_len), None)
        if row is None:
            if len(open_rows) == OPEN_ROWS:
                yield open_rows.pop(0)
            row = Row()
            open_rows.append(row)
        row.add(document)
        if row.used == request.seq_len:
            open_rows.remove(row)
            yield row
    yield from open_rows
