# SPDX-License-Identifier: Apache-2.0
"""Prompts as ids and ids as text, for `poros generate`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import DEMO_MODEL
from poros_peers import prompt
from poros_peers.errors import InputError


def test_ids_and_back() -> None:
    asked = prompt.answer({"model_dir": str(DEMO_MODEL), "text": "And it came", "chat": False})
    assert asked["stop_ids"] == [0]
    assert (
        prompt.answer({"model_dir": str(DEMO_MODEL), "ids": asked["ids"]})["text"] == "And it came"
    )
    assert prompt.answer({"model_dir": str(DEMO_MODEL), "ids": [*asked["ids"], 0]})["text"] == (
        "And it came"
    )  # the end isn't text


def test_special_tokens_stand_in_front_alone(words_model: Path) -> None:
    assert prompt.prompt_ids(words_model, "a b", False) == [0, 2, 3]
    assert prompt.prompt_ids(words_model, "", False) == [0]
    assert (
        prompt.answer({"model_dir": str(words_model), "text": "a", "chat": False})["stop_ids"] == []
    )


def test_chat(words_model: Path) -> None:
    with pytest.raises(InputError, match="no chat template"):
        prompt.prompt_ids(words_model, "a", True)
    (words_model / "chat_template.jinja").write_text(
        "b {% for m in messages %}{{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}c{% endif %}{% generation %}{% endgeneration %}"
    )
    assert prompt.prompt_ids(words_model, "a", True) == [3, 2, 4]
    other = words_model / "other.jinja"
    other.write_text("{{ messages[0].role[0] }} j")
    request = {"model_dir": str(words_model), "text": "a", "chat": True}
    assert prompt.answer(request | {"chat_template": str(other)})["ids"] == [2, 11]  # u is unknown


def test_empty_prompt() -> None:
    with pytest.raises(InputError, match="the prompt is empty"):
        prompt.prompt_ids(DEMO_MODEL, "", False)


@pytest.mark.parametrize("as_file", [False, True])
def test_command_line(words_model: Path, tmp_path: Path, as_file: bool) -> None:
    request: dict[str, Any] = {"model_dir": str(words_model), "ids": [2, 3]}
    word = json.dumps(request)
    if as_file:
        (tmp_path / "request").write_text(word)
        word = str(tmp_path / "request")
    command = [sys.executable, "-m", "poros_peers.prompt", word]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {"text": "a b"}
    command[-1] = json.dumps(request | {"model_dir": "/nowhere"})
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "/nowhere/tokenizer.json" in done.stderr
