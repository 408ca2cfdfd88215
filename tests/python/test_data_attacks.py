# SPDX-License-Identifier: Apache-2.0
"""tests/attacks/data: each file is refused by name, and nothing is left behind."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from conftest import ROOT, build
from poros_peers.errors import InputError

ATTACKS = ROOT / "tests" / "attacks" / "data"
EXPECTED = json.loads((ATTACKS / "expected.json").read_text())
TEMPLATE = (
    "{%- for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}{{ m.role }} {{ m.content }} {% endfor %}"
    "{%- if add_generation_prompt %}assistant {% endif %}"
)


def test_every_file_is_tried() -> None:
    assert {p.name for p in ATTACKS.iterdir()} - {"expected.json"} == set(EXPECTED)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_is_refused(words_model: Path, tmp_path: Path, name: str, packing: bool) -> None:
    (words_model / "chat_template.jinja").write_text(TEMPLATE)
    inputs = tmp_path / "inputs"
    with pytest.raises(InputError) as caught:
        build(words_model, ATTACKS / name, inputs, packing=packing)
    assert EXPECTED[name] in str(caught.value)
    assert name in str(caught.value)  # which file
    assert not inputs.exists()


def test_damaged_files_are_read_or_refused(words_model: Path, tmp_path: Path) -> None:
    """Bytes that are changed, removed or doubled: never another exception than InputError."""
    (words_model / "chat_template.jinja").write_text(TEMPLATE)
    draw = random.Random(11)
    messages = [{"role": r, "content": c} for r, c in (("user", "a b"), ("assistant", "c"))]
    originals = {
        "d.jsonl": "".join(json.dumps({"messages": messages * n}) + "\n" for n in (1, 2)),
        "e.jsonl": '{"instruction": "a", "input": "b", "output": "c d"}\n' * 2,
        "d.csv": 'prompt,completion\n"a ""b""\nc",d\ne,f\n',
        "d.txt": "a b\n\nc d\ne\n",
    }
    refused = 0
    for name, text in originals.items():
        for _ in range(80):
            data = bytearray(text.encode())
            for _ in range(draw.randrange(1, 4)):
                at = draw.randrange(len(data))
                kind = draw.randrange(3)
                if kind == 0:
                    data[at] = draw.choice(b'\x00\xff"{}[],:\n\r0a\\')
                elif kind == 1:
                    del data[at : at + draw.randrange(1, 20)]
                else:
                    data[at:at] = data[at : at + 10]
                data = data or bytearray(b"\n")
            path = tmp_path / name
            path.write_bytes(data)
            try:
                build(words_model, path, seq_len=16)
            except InputError as error:
                assert name in str(error)
                refused += 1
    assert 100 < refused < 300  # some of both
