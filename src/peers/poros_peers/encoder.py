# SPDX-License-Identifier: Apache-2.0
"""The model's tokenizer: texts to ids and back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chat import read_json, special_tokens
from .errors import InputError
from .records import Piece


@dataclass
class Document:
    """Ids, and which of them are learnt (None: all). The first never is."""

    ids: list[int]
    learnt: bytes | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, begin: int, end: int) -> Document:
        learnt = None if self.learnt is None else self.learnt[begin:end]
        return Document(self.ids[begin:end], learnt)

    def learns(self) -> bool:
        return len(self.ids) > 1 and (self.learnt is None or any(self.learnt[1:]))


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
            self._tokenizer = Tokenizer.from_str(json.dumps(_exact(json.loads(data))))
        except Exception as error:  # the library raises plain Exception
            raise InputError(f"{path}: not a tokenizer: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._model_dir = model_dir
        self.sha256 = hashlib.sha256(data).hexdigest()
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a").ids
        extra = len(whole) - len(bare)
        at = next((i for i in range(extra + 1) if whole[i : i + len(bare)] == bare), 0)
        self.prefix, self.suffix = whole[:at], whole[at + len(bare) :]

    def end_of_text(self) -> list[int]:
        """What ends an answer where the tokenizer adds nothing: its eos_token, if it has one."""
        if self.suffix:
            return self.suffix
        token = special_tokens(self._model_dir).get("eos_token")
        found = None if token is None else self._tokenizer.token_to_id(token)
        if found is not None:
            return [found]
        return stop_ids(self._model_dir)[:1]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text without special tokens."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def documents(self, pieces: list[Piece]) -> list[Document]:
        """Each piece whole, with its special tokens. A token is learnt when a character of it is
        inside one of the piece's spans."""
        encodings = self._tokenizer.encode_batch([p.text for p in pieces], add_special_tokens=False)
        result = []
        for piece, encoding in zip(pieces, encodings, strict=True):
            prefix = [] if piece.chat else self.prefix
            suffix = self.end_of_text() if piece.ends else [] if piece.chat else self.suffix
            learnt = None
            if piece.spans is not None:
                inside = _inside(encoding.offsets, piece.spans)
                learnt = bytes(len(prefix)) + inside + bytes([1]) * len(suffix)
            result.append(Document(prefix + encoding.ids + suffix, learnt))
        return result

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def stop_ids(model_dir: Path) -> list[int]:
    """Ids that end what a model writes: eos_token_id of generation_config.json or config.json."""
    for name in ("generation_config.json", "config.json"):
        values = read_json(model_dir / name)
        value = values.get("eos_token_id")
        if value is None:
            value = (values.get("text_config") or {}).get("eos_token_id")
        found = value if isinstance(value, list) else [value]
        ids = [i for i in found if isinstance(i, int) and not isinstance(i, bool)]
        if ids:
            return ids
    return []


def _exact(part: Any) -> Any:
    """The tokenizer's description with offsets that hold the blanks of a token too; the ids are the
    same."""
    if isinstance(part, dict):
        return {k: False if k == "trim_offsets" else _exact(v) for k, v in part.items()}
    return [_exact(v) for v in part] if isinstance(part, list) else part


def _inside(offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> bytes:
    """For each token whether it reaches into a span. Both are in order."""
    flags = bytearray(len(offsets))
    at = 0
    for index, (begin, end) in enumerate(offsets):
        while at < len(spans) and spans[at][1] <= begin:
            at += 1
        if at < len(spans):
            flags[index] = begin < spans[at][1] and max(end, begin + 1) > spans[at][0]
    return bytes(flags)
