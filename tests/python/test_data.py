# SPDX-License-Identifier: Apache-2.0
"""File formats, validation rows, statistics, and memory that doesn't grow with the data."""

from __future__ import annotations

import csv
import importlib.util
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import build, contents
from poros_peers import sources, tokenise
from poros_peers.encoder import Encoder
from poros_peers.errors import InputError
from poros_peers.token_file import read_token_file
from poros_peers.token_request import request_from_json

RECORDS = [
    {"prompt": "a b", "completion": " c"},
    {"prompt": "d", "completion": " e, \"f\"\ng"},
    {"prompt": "h\r\ni", "completion": " j"},
]  # fmt: skip


def write_csv(path: Path, delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8-sig", newline="") as file:  # as spreadsheets save it
        writer = csv.DictWriter(file, ["prompt", "completion"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(RECORDS)
    return path


def answer(
    model: Path, source: Path, dataset: dict[str, Any] | None = None, **training: Any
) -> Any:
    values = {
        "v": 1, "model_dir": str(model), "inputs_dir": str(model.parent / "inputs"),
        "training": {
            "dataset": {"source": str(source)} | (dataset or {}), "seq_len": 8, "batch_size": 1,
            "gradient_accumulation_steps": 1, "steps": 100, "seed": 3,
        } | training,
    }  # fmt: skip
    return tokenise.write(request_from_json("test", values))


def test_csv_and_jsonl_give_the_same_rows(words_model: Path, tmp_path: Path) -> None:
    jsonl = tmp_path / "d.jsonl"
    jsonl.write_text("\ufeff" + "".join(json.dumps(r) + "\r\n" for r in RECORDS))
    expected = contents(build(words_model, jsonl))
    assert sorted(len(row) for row in expected) == [5, 5, 6]
    assert contents(build(words_model, write_csv(tmp_path / "d.csv"))) == expected
    assert contents(build(words_model, write_csv(tmp_path / "d.tsv", "\t"))) == expected
    named = write_csv(tmp_path / "named_otherwise")
    assert contents(build(words_model, named, dataset={"source": str(named), "format": "csv"}))


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="not installed: pyarrow")
def test_parquet_gives_the_same_rows(words_model: Path, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [r | {"when": None, "bytes": b"\xff", "n": float("nan")} for r in RECORDS]
    path = tmp_path / "d.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    assert contents(build(words_model, path)) == contents(
        build(words_model, write_csv(tmp_path / "d.csv"))
    )
    parquet.write_table(pyarrow.Table.from_pylist([{"text": "a b"}, {"text": None}]), path)
    with pytest.raises(InputError, match="d.parquet, row 1: field 'text' must be a string"):
        build(words_model, path)


def test_text_with_a_mark_and_dos_lines(words_model: Path, tmp_path: Path) -> None:
    plain, dos = tmp_path / "a.txt", tmp_path / "b.txt"
    plain.write_text("a b\nc\n\nd e\n")
    dos.write_bytes(b"\xef\xbb\xbfa b\r\nc\r\n\r\nd e\r\n")
    assert contents(build(words_model, plain)) == contents(build(words_model, dos))


def test_order_of_the_file(words_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps({"text": w}) + "\n" for w in "jihgfedcb"))
    tokens = build(words_model, data, dataset={"source": str(data), "shuffle": False})
    assert tokens.ids[:, 1].tolist() == list(range(11, 2, -1))


def test_too_long(words_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text(json.dumps({"text": "a b c d e f g h i"}) + "\n" + '{"text": "j"}\n')

    def rows(too_long: str) -> list[list[int]]:
        return contents(
            build(words_model, data, dataset={"source": str(data), "too_long": too_long})
        )

    assert rows("auto") == rows("split") == [[0, 2, 3, 4, 5, 6, 7, 8], [0, 11, 1], [9, 10, 1]]
    assert rows("truncate") == [[0, 2, 3, 4, 5, 6, 7, 8], [0, 11, 1]]
    assert rows("drop") == [[0, 11, 1]]


def test_validation_rows_are_kept_apart(words_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    words = [a + " " + b for a in "abcde" for b in "fghij"]
    data.write_text("".join(json.dumps({"text": t}) + "\n" for t in words))
    every = contents(build(words_model, data))
    made = answer(words_model, data, {"validation_fraction": 0.2})
    train = contents(read_token_file(Path(made["path"])))
    held_out = contents(read_token_file(Path(made["validation"]["path"])))
    assert (len(train), len(held_out)) == (20, 5)
    assert sorted(train + held_out) == every
    assert made == answer(words_model, data, {"validation_fraction": 0.2})  # the same bytes
    other = answer(words_model, data, {"validation_fraction": 0.2}, seed=4)
    assert other["validation"]["sha256"] != made["validation"]["sha256"]

    apart = tmp_path / "apart.jsonl"
    apart.write_text('{"text": "a a"}\n{"text": "b b"}\n')
    made = answer(words_model, data, {"validation": str(apart)})
    assert contents(read_token_file(Path(made["path"]))) == every
    found = read_token_file(Path(made["validation"]["path"]))
    assert found.ids[:, 1].tolist() == [2, 3]  # in the order of the file
    assert made["validation"]["statistics"]["documents"] == 2
    for dataset, message in [
        ({"validation_fraction": 0.2, "validation": str(apart)}, "not both"),
        ({"validation_fraction": 0.99}, "can't be parted"),
        ({"validation": str(tmp_path / "none.jsonl")}, "can't be read"),
    ]:
        with pytest.raises(InputError, match=message):
            answer(words_model, data, dataset)


def test_validation_of_a_text_is_its_end(words_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "d.txt"
    data.write_text("\n\n".join("abcdefghij"))
    made = answer(words_model, data, {"validation_fraction": 0.3})
    assert contents(read_token_file(Path(made["path"]))) == [
        [0, 2, 3, 4, 5, 6, 7, 8]
    ]  # a to g fill a row; of the end there is nothing left but </s>
    assert contents(read_token_file(Path(made["validation"]["path"]))) == [[0, 9, 10, 11, 1]]


def test_statistics(words_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    texts = ["a"] * 5 + ["a b c"] * 4 + ["a b c d e f g h i j"]  # 3, 5 and 12 tokens
    data.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    made = answer(words_model, data)
    values = made["statistics"]
    assert values["records"] == {"in_source": 10, "read": 10}
    assert values["document_tokens"] == {
        "min": 3, "p50": 3, "p90": 5, "p99": 12, "max": 12, "mean": 4.7
    }  # fmt: skip
    assert (values["split"], values["truncated"]) == (1, 0)
    assert values["rows"] == made["rows"] == 11
    assert values["tokens"] == 47 and values["supervised_tokens"] == 47 - 11
    assert values["padding_share"] == pytest.approx(1 - 47 / 88)
    for part in ("10 read of 10, text", "3 / 3 / 5 / 12 / 12", "1 split", "36 of them learnt"):
        assert part in made["text"]
    few = answer(words_model, data, steps=2)["statistics"]
    assert few["rows"] == 2 and few["records"]["in_source"] == 10
    values = json.loads(json.dumps(made))  # is JSON
    whole = request_from_json(
        "test",
        {"v": 1, "model_dir": str(words_model), "inputs_dir": str(tmp_path), "all_rows": True,
         "training": {"dataset": str(data), "seq_len": 8, "batch_size": 1, "steps": 1, "seed": 3,
                      "gradient_accumulation_steps": 1}},
    )  # fmt: skip
    assert tokenise.write(whole)["rows"] == 11


def test_settings_that_are_at_their_default_change_no_file(
    words_model: Path, tmp_path: Path
) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text('{"text": "a b"}\n{"text": "c"}\n')
    note = json.loads(build(words_model, data).note)
    assert set(note) == {
        "dataset", "dataset_sha256", "format", "packing", "seed", "text_field", "tokenizer_sha256"
    }  # fmt: skip
    # The hash of this file before rows of other kinds were read.
    made = answer(words_model, data)["sha256"]
    assert made == answer(words_model, data, {"rows": "text"})["sha256"]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"rows": "chat"}, "rows must be one of auto"),
        ({"validation_fraction": 1}, "validation_fraction must be at least 0 and below 1"),
        ({"shuffle": 1}, "shuffle must be of type bool"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"chat_template": "nowhere.jinja", "rows": "messages"}, "nowhere.jinja: can't be read"),
    ],
)
def test_wrong_settings(words_model: Path, tmp_path: Path, dataset: Any, message: str) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text('{"text": "a b"}\n')
    with pytest.raises(InputError, match=message):
        answer(words_model, data, dataset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a tokenizer"),
        (b"{}", "not a tokenizer"),
        (b'{"version": "1.0", "model": {"type": "Unheard"}}', "not a tokenizer"),
        (b"\x80\x81", "not a tokenizer"),
        (None, "can't be read: No such file"),
    ],
)
def test_unreadable_tokenizers(words_model: Path, tmp_path: Path, content, message) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text('{"text": "a b"}\n')
    path = words_model / "tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"tokenizer.json: {message}"):
        answer(words_model, data)


def test_records_that_are_too_long(
    words_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 1000)
    for name, content, message in [
        ("d.jsonl", '{"text": "a"}\n' + " " * 1001, "d.jsonl:2: the line is longer"),
        ("d.txt", "a\n\n" + "b c\n" * 300, "d.txt:3: the paragraph is longer"),
        ("d.csv", 'text\n"' + "a\n" * 600 + '"\n', "d.csv:2: "),
    ]:
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=message):
            build(words_model, tmp_path / name)


def test_a_file_that_changes_is_noticed(
    words_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text('{"text": "a b"}\n' * 3)
    encode = Encoder.documents

    def change(self: Any, pieces: Any) -> Any:
        data.write_text('{"text": "a b"}\n' * 4)
        return encode(self, pieces)

    monkeypatch.setattr(Encoder, "documents", change)
    with pytest.raises(InputError, match="was changed while it was read"):
        build(words_model, data)
    assert not (words_model.parent / "inputs").exists()


def test_full_disk(words_model: Path, tmp_path: Path) -> None:
    """With a limit on the size of files, as with a full disk, nothing half-written is left."""
    data = tmp_path / "d.jsonl"
    data.write_text('{"text": "a b c d e f"}\n' * 2000)
    inputs = tmp_path / "inputs"
    command = [sys.executable, "-m", "poros_peers.tokenise", "--model-dir", str(words_model),
               "--inputs-dir", str(inputs), "--dataset", str(data), "--steps", "250",
               "--seq-len", "16"]  # fmt: skip

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (140_000, 140_000))

    result = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=limit)
    assert result.returncode == 2
    assert "File too large" in result.stderr and "Traceback" not in result.stderr
    assert list(inputs.glob("*")) + list(inputs.glob(".*")) == []


def test_memory_does_not_grow_with_the_data(words_model: Path, tmp_path: Path) -> None:
    """Peak memory of 16 MB of records stays near that of 1 MB."""
    peaks = []
    for megabytes in (1, 16):
        data = tmp_path / f"{megabytes}.jsonl"
        line = json.dumps({"text": "a b c " * 800}) + "\n"
        with data.open("w") as file:
            for _ in range(megabytes * 1_000_000 // len(line)):
                file.write(line)
        script = (
            "import resource, sys; from poros_peers import tokenise; "
            "assert tokenise.main(sys.argv[1:]) == 0; "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        command = [sys.executable, "-c", script, "--model-dir", str(words_model), "--inputs-dir",
                   str(tmp_path / "in"), "--dataset", str(data), "--steps", "100000",
                   "--accumulation", "1", "--seq-len", "2048"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        peaks.append(int(done.stdout.splitlines()[-1]) / 1024)
    assert peaks[1] < peaks[0] + 64  # [MiB]; 8 million tokens in lists take over 128
