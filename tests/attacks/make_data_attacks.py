#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/attacks/data: datasets to be refused, and in expected.json part of the message.

    python3 tests/attacks/make_data_attacks.py
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GOOD = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
PLAIN = {"prompt": "a", "completion": "b"}


def lines(*records: Any) -> bytes:
    return b"".join(
        (r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records
    )


def conversation(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


ATTACKS: dict[str, tuple[bytes, str]] = {
    "empty.jsonl": (b"", "holds no text"),
    "blank.jsonl": (b"\n \n\t\n", "holds no text"),
    "cut.jsonl": (lines(GOOD) + b'{"messages": [{"role": "user', ":2:24: not JSON"),
    "array.jsonl": (lines(GOOD, [1]), ":2: a record must be a JSON object, found list"),
    "number.jsonl": (b"7\n", ":1: a record must be a JSON object, found int"),
    "nan.jsonl": (b'{"text": "a b"}\n{"text": NaN}\n', ":2: holds NaN, which is not JSON"),
    "infinity.jsonl": (b'{"text": "a", "n": -Infinity}\n', ":1: holds -Infinity"),
    "deep.jsonl": (b'{"text": ' + b"[" * 20000 + b"\n", ":1: not JSON that can be read"),
    "long_number.jsonl": (b'{"text": "a", "n": ' + b"1" * 5000 + b"}\n", ":1: not JSON"),
    "latin1.jsonl": (lines(GOOD) + b'{"text": "caf\xe9"}\n', ":2: byte 14 of the line is not UTF"),
    "utf16.jsonl": ('\ufeff{"text": "a"}\n'.encode("utf-16-le"), "begins like UTF-16"),
    "half_character.jsonl": (b'{"text": "a \\ud800 b"}\n', "holds half a character (\\ud800)"),
    "half_in_message.jsonl": (
        lines(conversation({"role": "user", "content": "\ud83d"}, GOOD["messages"][1])),
        ":1: message 1 of 'messages': content holds half a character",
    ),
    "binary.jsonl": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not UTF-8"),
    "nul.jsonl": (b'{"text": "a\0b"}\n', ":1:12: not JSON: Invalid control character"),
    "mixed.jsonl": (lines(GOOD, PLAIN), ":2: is a row of prompt, but the first row is one of"),
    "mixed_text.jsonl": (lines(PLAIN, {"text": "a b"}), ":2: is a row of text, but the first row"),
    "mixed_unknown.jsonl": (lines(PLAIN, {"x": 1, "y": 2}), ":2: has x, y, but the first row"),
    "unknown_keys.jsonl": (lines({"question": "a"}), ":1: no field 'text'; the record has quest"),
    "null_text.jsonl": (lines({"text": None}), ":1: field 'text' must be a string, found nothing"),
    "text_is_list.jsonl": (lines({"text": ["a"]}), ":1: field 'text' must be a string, found list"),
    "no_messages.jsonl": (lines({"messages": []}), ":1: field 'messages' must be a list"),
    "messages_text.jsonl": (lines({"messages": "hello"}), ":1: field 'messages' must be a list"),
    "message_text.jsonl": (lines(conversation("a")), ":1: message 1 of 'messages' must be an obj"),
    "no_role.jsonl": (
        lines(GOOD, conversation({"content": "a"})),
        ":2: message 1 of 'messages': role must be a string, found nothing",
    ),
    "no_content.jsonl": (
        lines(conversation({"role": "assistant"})),
        ":1: message 1 of 'messages': content must be a string, found nothing",
    ),
    "content_number.jsonl": (
        lines(conversation({"role": "user", "content": 5})), "content must be a string, found int"
    ),
    "image_part.jsonl": (
        lines(conversation({"role": "user", "content": [{"type": "image", "url": "x"}]})),
        "only parts of type text can be read",
    ),
    "only_user.jsonl": (
        lines(GOOD, conversation({"role": "user", "content": "a"})),
        ":2: no message of the role assistant",
    ),
    "marks.jsonl": (
        lines(conversation({"role": "user", "content": "a\ufdd0"})), "which are no characters"
    ),
    "empty_answer.jsonl": (
        lines(PLAIN, {"prompt": "a", "completion": ""}), ":2: the answer is empty"
    ),
    "no_output.jsonl": (
        lines({"instruction": "a", "output": None}), ":1: field 'output' must be a string"
    ),
    "refused_by_template.jsonl": (
        lines(conversation({"role": "tool", "content": "a"}, GOOD["messages"][1])),
        ":1: the chat template refuses the row: no tools here",
    ),
    "empty.txt": (b"", "holds no text"),
    "utf16.txt": ("\ufeffa b".encode("utf-16-be"), "begins like UTF-16"),
    "latin1.txt": (b"a b\n\nd\xfcnn\n", ":3: byte 2 of the line is not UTF-8"),
    "empty.csv": (b"", "holds no text"),
    "header_only.csv": (b"prompt,completion\n", "holds no text"),
    "open_quote.csv": (b'text\n"a b\nc d\n', ":2: not CSV: unexpected end of data"),
    "stray_quote.csv": (b'text\n"a"b\n', ":2: not CSV: ',' expected after"),
    "ragged.csv": (
        b"prompt,completion\na,b\na,b,c\n", ":3: 3 fields, but the first line names 2 columns"
    ),
    "twice.csv": (b"text,text\na,b\n", ":1: the first line must name the columns, each once"),
    "no_name.csv": (b"text,\na,b\n", ":1: the first line must name the columns"),
    "no_columns.csv": (b"a b c,d\ne,f\n", ":2: no field 'text'; the record has a b c, d"),
    "latin1.csv": (b"text\ncaf\xe9\n", ":2: byte 4 of the line is not UTF-8"),
    "not_parquet.parquet": (b"PAR1 not at all", "parquet"),
}  # fmt: skip


def main() -> None:
    folder = HERE / "data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    expected = {}
    for name, (content, message) in sorted(ATTACKS.items()):
        (folder / name).write_bytes(content)
        expected[name] = message
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
