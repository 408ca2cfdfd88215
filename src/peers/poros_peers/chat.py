# SPDX-License-Identifier: Apache-2.0
"""A model's chat template: what a conversation reads like, and which parts of it are answers.

Templates are Jinja, as tokenizer folders hold them: chat_template.jinja, or chat_template in
tokenizer_config.json. They run in Jinja's sandbox, since they come with a model.

Answers are found in one of two ways. A template that marks them with {% generation %} says itself.
Else answer i is what the conversation up to it has more than the conversation before it with the
prompt for an answer, as far as that goes. That holds only where a later turn doesn't change how earlier ones are written;
where it does, the row is refused with what can be done.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from .errors import InputError

BEGIN, END = "\ufdd0", "\ufdd1"  # noncharacters: around an answer while a text is being made
# The date that templates get which ask for today's: the same rows must give the same bytes.
FIXED_DATE = datetime(2024, 7, 26)
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token",
           "mask_token")  # fmt: skip

Messages = list[dict[str, Any]]
Span = tuple[int, int]  # characters


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; {} where there is no such file. Raises InputError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object")
    return value


def special_tokens(model_dir: Path) -> dict[str, str]:
    """bos_token, eos_token, ... of the model's tokenizer."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = read_json(model_dir / name)
        for key in SPECIAL:
            token = values.get(key)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                found[key] = token
    return found


def template_text(model_dir: Path) -> tuple[str, Path] | None:
    """The model's chat template and the file that holds it."""
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return _read_text(path), path
    path = model_dir / "tokenizer_config.json"
    template = read_json(path).get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    return (template, path) if isinstance(template, str) else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"chat template {path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"chat template {path}: not UTF-8") from error


class ChatTemplate:
    """Raises InputError for a template that is missing or isn't one."""

    def __init__(self, model_dir: Path, file: Path | None = None) -> None:
        import jinja2

        found = (_read_text(file), file) if file is not None else template_text(model_dir)
        if found is None:
            raise InputError(
                f"{model_dir}: the model has no chat template (chat_template.jinja, or "
                "chat_template in tokenizer_config.json), which rows of messages need: name a "
                "Jinja file as the dataset's chat_template, such as that of the model's instruct "
                "version"
            )
        self.text, self._path = found
        self._special = special_tokens(model_dir)
        self._error = jinja2.TemplateError
        try:
            self._template = _environment().from_string(self.text)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(
                f"{self._path}: chat template, line {error.lineno}: {error.message}"
            ) from error

    def render(
        self, place: str, messages: Messages, prompt: bool = False, tools: Any = None
    ) -> str:
        """The conversation as the model reads it, answers between BEGIN and END where the template
        marks them."""
        try:
            return self._template.render(
                messages=messages, tools=tools, add_generation_prompt=prompt, **self._special
            )
        except self._error as error:
            raise InputError(f"{place}: the chat template refuses the row: {error}") from error
        except Exception as error:  # what a template's expressions raise
            kind = type(error).__name__
            raise InputError(
                f"{place}: the chat template fails with the row: {kind}: {error}"
            ) from error

    def answers(
        self, place: str, messages: Messages, first: int = 0, last_only: bool = False,
        tools: Any = None,
    ) -> tuple[str, list[Span]]:  # fmt: skip
        """The text and the spans of its answers. Messages before `first` are none."""
        wanted = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i >= first]
        if not wanted:
            raise InputError(
                f"{place}: no message of the role assistant, so nothing to learn from; give an "
                "answer, or set the dataset's loss_on: all"
            )
        if last_only:
            wanted = wanted[-1:]
        marked = self.render(place, messages, tools=tools)
        if BEGIN in marked:
            text, spans = _take_marks(place, marked)
            answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
            if len(spans) != len(answers):
                raise InputError(
                    f"{place}: the chat template marks {len(spans)} answers of {len(answers)}; "
                    "its {% generation %} must stand around each answer"
                )
            return text, [spans[answers.index(i)] for i in wanted]
        spans = []
        for i in wanted:
            before = self.render(place, messages[:i], tools=tools)
            prompt = self.render(place, messages[:i], prompt=True, tools=tools)
            through = marked
            if i + 1 < len(messages):
                through = self.render(place, messages[: i + 1], tools=tools)
            if not (marked.startswith(through) and through.startswith(before)):
                self._refuse_unstable(place, i, last_only)
            # The prompt may open more than this answer has, such as a thought.
            begin = len(os.path.commonprefix([prompt, through]))
            if begin < len(through):
                spans.append((max(begin, len(before)), len(through)))
        return marked, spans

    def _refuse_unstable(self, place: str, index: int, last_only: bool) -> None:
        ways = [
            "mark the answers in the template with {% generation %} ... {% endgeneration %}",
            "set the dataset's loss_on: all",
        ]
        if not last_only:
            ways.insert(0, "set the dataset's loss_on: last")
        raise InputError(
            f"{place}: the chat template writes the conversation up to message {index + 1} "
            f"otherwise than the same part of the whole, so its answer can't be told apart: "
            f"{', or '.join(ways)}"
        )


def _take_marks(place: str, marked: str) -> tuple[str, list[Span]]:
    text, spans, begin = [], [], None
    size = 0
    for piece in _split_keeping(marked):
        if piece == BEGIN and begin is None:
            begin = size
        elif piece == END and begin is not None:
            spans.append((begin, size))
            begin = None
        elif piece in (BEGIN, END):
            raise InputError(f"{place}: the chat template's {{% generation %}} blocks are nested")
        else:
            text.append(piece)
            size += len(piece)
    return "".join(text), spans


def without_marks(text: str) -> str:
    return text.replace(BEGIN, "").replace(END, "")


def _split_keeping(text: str) -> list[str]:
    pieces = []
    for part in text.split(BEGIN):
        pieces.append(BEGIN)
        inner = part.split(END)
        for k, piece in enumerate(inner):
            if k > 0:
                pieces.append(END)
            if piece:
                pieces.append(piece)
    return pieces[1:]


def _environment() -> Any:
    """Jinja as tokenizers' templates expect it."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _mark_tag()]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(
        value: Any, ensure_ascii: bool = False, indent: int | None = None,
        separators: tuple[str, str] | None = None, sort_keys: bool = False,
    ) -> str:  # fmt: skip
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)  # fmt: skip

    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = FIXED_DATE.strftime
    return environment


def _mark_tag() -> type:
    """The tag {% generation %} ... {% endgeneration %}."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return BEGIN + caller() + END

    return Generation
