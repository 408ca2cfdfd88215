# SPDX-License-Identifier: Apache-2.0
"""The tokenising step: what rows hold, that bytes repeat, and what it says of wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DEMO_MODEL, DEMO_TEXT, build, contents
from poros_peers.errors import InputError
from poros_peers.token_file import DOCUMENT_START, PADDING, SUPERVISED, read_token_file
from tokenizers import Tokenizer


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_records_one_a_row(words_model: Path, tmp_path: Path) -> None:
    # ids: a=2, b=3, ...; a record of nine words and two special tokens goes on in a second row
    data = write_jsonl(tmp_path / "d.jsonl", ["a b", "c", "a b c d e f g h i"])
    tokens = build(words_model, data)
    assert contents(tokens) == [[0, 2, 3, 1], [0, 2, 3, 4, 5, 6, 7, 8], [0, 4, 1], [9, 10, 1]]
    assert (tokens.ids[tokens.flags & PADDING > 0] == 11).all()
    assert ((tokens.flags & DOCUMENT_START) > 0).sum(axis=1).tolist() == [1] * 4
    real = (tokens.flags & PADDING) == 0
    assert tokens.supervised_tokens == real.sum() - 4  # all but each document's first


def test_packed_documents_stay_apart(words_model: Path, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "d.jsonl", ["a b", "c", "d e", "f"])  # 4, 3, 4, 3 tokens
    tokens = build(words_model, data, packing=True)
    assert tokens.rows == 2
    found = []
    for row in range(2):
        documents = tokens.documents(np.array([row]))[0]
        for number in range(documents.max() + 1):
            chosen = (documents == number) & ((tokens.flags[row] & PADDING) == 0)
            found.append(tokens.ids[row][chosen].tolist())
            assert tokens.positions(np.array([row]))[0][chosen].tolist() == list(
                range(chosen.sum())
            )
            assert not tokens.flags[row][chosen][0] & SUPERVISED
    assert sorted(found) == [[0, 2, 3, 1], [0, 4, 1], [0, 5, 6, 1], [0, 7, 1]]


def test_joined_paragraphs(words_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "d.txt"
    data.write_text("a b\nc\n\nd e\n\n\nf g h\n\n" + "i " * 9)
    tokens = build(words_model, data)
    # <s> at each row's start; whole paragraphs (3 + 2, then 3), only the long one is cut; </s> last
    assert contents(tokens) == [[0, 2, 3, 4, 5, 6], [0, 7, 8, 9], [0, 10, 10, 1], [0] + [10] * 7]


def test_lines_are_paragraphs_where_no_line_is_blank(words_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "d.txt"
    data.write_text("a b c d\ne f g h\n")
    assert contents(build(words_model, data)) == [[0, 2, 3, 4, 5], [0, 6, 7, 8, 9, 1]]


def test_only_as_many_rows_as_the_steps_need(words_model: Path, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "d.jsonl", [f"a {w}" for w in "bcdefghij"])
    every = contents(build(words_model, data))
    assert len(every) == 9
    some = build(words_model, data, steps=2, batch_size=2)
    assert some.rows == 4
    assert all(row in every for row in contents(some))
    others = [contents(build(words_model, data, steps=2, batch_size=2, seed=s)) for s in range(5)]
    assert any(rows != contents(some) for rows in others)  # the seed decides which


def test_synthetic_needs_no_tokenizer(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"text_config": {"vocab_size": 50}}')
    tokens = build(model, "synthetic", steps=3, batch_size=2, gradient_accumulation_steps=2)
    assert tokens.ids.shape == (12, 8)
    expected = np.random.RandomState([3, 0]).randint(0, 50, (12, 8), dtype=np.uint32)
    assert (tokens.ids == expected).all()
    assert tokens.supervised_tokens == 12 * 7


@pytest.mark.parametrize("packing", [False, True])
def test_demo_text_comes_back(packing: bool, tmp_path: Path) -> None:
    tokens = build(DEMO_MODEL, DEMO_TEXT, tmp_path, seq_len=256, steps=10**4, packing=packing)
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    text = DEMO_TEXT.read_text()
    pieces = []
    for row in range(tokens.rows):
        documents = tokens.documents(np.array([row]))[0]
        real = (tokens.flags[row] & PADDING) == 0
        for number in range(documents.max() + 1):
            pieces.append(tokenizer.decode(tokens.ids[row][real & (documents == number)].tolist()))
    assert sorted("".join(pieces).replace("\n", "")) == sorted(text.replace("\n", ""))
    squeezed = " ".join(text.split())
    for piece in pieces:
        assert " ".join(piece.split()) in squeezed
    assert 0.8 < (tokens.flags & PADDING == 0).mean() <= 1  # rows are well filled


def test_note_holds_no_path(words_model: Path, tmp_path: Path) -> None:
    note = json.loads(build(words_model, write_jsonl(tmp_path / "d.jsonl", ["a b"])).note)
    assert note["dataset"] == "d.jsonl"
    assert note["packing"] is False and note["seed"] == 3
    assert len(note["tokenizer_sha256"]) == len(note["dataset_sha256"]) == 64
    assert str(tmp_path) not in json.dumps(note)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":2:2: not JSON"),
        ("[1]", ":2: a record must be a JSON object, found list"),
        ('{"body": "x"}', ":2: no field 'text'; the record has body"),
        ('{"text": 7}', ":2: field 'text' must be a string, found int"),
    ],
)
def test_wrong_records_are_named(words_model: Path, tmp_path: Path, line, message) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text('{"text": "a"}\n' + line + "\n")
    with pytest.raises(InputError) as caught:
        build(words_model, data)
    assert f"{data}{message}" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "training", "message"),
    [
        (b"a b\n\xff\n", {}, "d.txt:2: byte 1 of the line is not UTF-8"),
        (b"\n \n", {}, "holds no text"),
        (b"a", {"seq_len": 1}, "seq_len must be at least 2"),
        (b"a", {"steps": 0}, "steps must be at least 1"),
        (b"a", {"packing": "yes"}, "packing must be of type bool"),
        (b"a", {"seq_len": True}, "seq_len must be of type int"),
    ],
)
def test_other_faults_are_named(
    words_model: Path, tmp_path: Path, content, training, message
) -> None:
    data = tmp_path / "d.txt"
    data.write_bytes(content)
    with pytest.raises(InputError, match=message):
        build(words_model, data, **training)


def test_missing_files_and_models(words_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing.txt: can't be read: No such file"):
        build(words_model, tmp_path / "missing.txt")
    with pytest.raises(InputError, match="is not a regular file"):
        build(words_model, tmp_path)
    with pytest.raises(InputError, match="dataset org/name: "):
        build(words_model, "org/name")
    with pytest.raises(InputError, match=r"config.json: can't be read"):
        build(tmp_path / "nowhere", "synthetic")
    (words_model / "config.json").write_text('{"vocab_size": 3}')
    data = write_jsonl(tmp_path / "d.jsonl", ["a b c"])
    with pytest.raises(InputError, match="belong to different models"):
        build(words_model, data)


class FakeHub:
    """As much of the package datasets as the tokenising step uses."""

    column_names = ("body", "number")

    def __init__(self, texts: list[Any]) -> None:
        self.texts = texts
        self.asked: list[tuple[str, str]] = []

    def load_dataset(self, name: str, split: str) -> FakeHub:
        self.asked.append((name, split))
        if name != "org/name":
            raise FileNotFoundError("not in the cache")
        return self

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"body": self.texts[index], "number": index}


def test_hub_dataset(words_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(["a b", "c", "d e f"])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    tokens = build(words_model, "x", dataset={"source": "org/name", "text_field": "body"})
    assert contents(tokens) == [[0, 2, 3, 1], [0, 4, 1], [0, 5, 6, 7, 1]]
    assert hub.asked == [("org/name", "train")]
    assert json.loads(tokens.note)["dataset"] == "org/name"
    with pytest.raises(InputError, match="org/name, row .*no field 'text'; .* has body, number"):
        build(words_model, "org/name")
    with pytest.raises(InputError, match="org/other: .*not in the cache"):
        build(words_model, "org/other")
    hub.texts[1] = 5
    with pytest.raises(InputError, match="org/name, row 1: field 'body' must be a string"):
        build(words_model, "x", dataset={"source": "org/name", "text_field": "body"})


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "poros_peers.tokenise", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_command_line(words_model: Path, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "d.jsonl", ["a b", "c d"])
    inputs = tmp_path / "in" / "puts"
    flags = ["--model-dir", str(words_model), "--inputs-dir", str(inputs), "--seq-len", "8"]
    flags += ["--dataset", str(data), "--steps", "2", "--accumulation", "1", "--seed", "3"]
    first = run(flags)
    assert (first.returncode, first.stderr) == (0, "")
    answer = json.loads(first.stdout)
    assert first.stdout.count("\n") == 1
    tokens = read_token_file(Path(answer["path"]))
    assert answer["path"] == str(inputs / f"{answer['sha256']}.tokens")
    assert answer["sha256"] == tokens.sha256
    assert (answer["rows"], answer["supervised_tokens"]) == (2, 6)
    before = Path(answer["path"]).stat()
    assert run(flags).stdout == first.stdout
    assert Path(answer["path"]).stat() == before  # the same bytes are not written again

    request = tmp_path / "request.json"
    training = {"dataset": str(data), "seq_len": 8, "batch_size": 1, "steps": 2, "seed": 3}
    training["gradient_accumulation_steps"] = 1
    values = {"v": 1, "model_dir": str(words_model), "inputs_dir": str(inputs)}
    request.write_text(json.dumps(values | {"training": training}))
    assert run([str(request)]).stdout == first.stdout  # the two ways to ask are one


def test_wrong_input_exits_2_and_leaves_nothing(words_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text("{\n")
    inputs = tmp_path / "inputs"
    flags = ["--model-dir", str(words_model), "--inputs-dir", str(inputs), "--dataset", str(data)]
    result = run(flags)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"{data}:1:2: not JSON" in result.stderr
    assert "Traceback" not in result.stderr
    assert not inputs.exists()
