# SPDX-License-Identifier: Apache-2.0
"""What a record is, by its keys, and the text that becomes of it.

messages      messages or conversations: a list of {role, content} (or {from, value}), written by
              the chat template; or prompt and completion as two such lists
instruction   instruction, input (may be missing or empty), output: written by the chat template
              as one question and one answer, and as headed sections where the model has none
prompt        prompt and completion: one after the other, nothing between
text          the field text_field
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chat import BEGIN, END, ChatTemplate, Messages, Span, template_text, without_marks
from .errors import InputError
from .sources import Source, is_missing

KINDS = ("messages", "instruction", "prompt", "text")
LISTS = ("messages", "conversations")
ROLES = {"human": "user", "gpt": "assistant"}  # other names are roles as they are


@dataclass
class Piece:
    """A document's text. `spans`: what of it is learnt; None: all. `chat`: special tokens are in it
    already. `ends`: the end-of-text token follows, and is learnt."""

    text: str
    spans: list[Span] | None = None
    chat: bool = False
    ends: bool = False


@dataclass
class Rules:
    """How records are read: settings of the dataset."""

    model_dir: Path
    kind: str = "auto"
    text_field: str = "text"
    loss_on: str = "responses"
    chat_template: Path | None = None


def _kind_of(record: dict[str, Any], text_field: str) -> str | None:
    if text_field != "text" and text_field in record:
        return "text"
    if any(key in record for key in LISTS):
        return "messages"
    if "prompt" in record and "completion" in record:
        return "messages" if isinstance(record["prompt"], list) else "prompt"
    if "instruction" in record and "output" in record:
        return "instruction"
    return "text" if text_field in record else None


class RecordReader:
    """Reads records of one kind. Raises InputError naming the record's place."""

    def __init__(self, source: Source, rules: Rules) -> None:
        self._source, self._rules = source, rules
        self._template: ChatTemplate | None = None
        self.kind = "text"
        if source.running:
            return
        if rules.kind == "auto":
            found = _kind_of(self._record(0), rules.text_field)
            self.kind = found or "text"
        else:
            self.kind = rules.kind
        if self.kind == "messages" or (self.kind == "instruction" and self._has_template()):
            self._template = ChatTemplate(rules.model_dir, rules.chat_template)

    @property
    def form(self) -> str:
        """For the note: how the text was made."""
        return self.kind if self._template is None else f"{self.kind} by chat template"

    @property
    def template_text(self) -> str | None:
        return None if self._template is None else self._template.text

    def piece(self, index: int) -> Piece:
        if self._source.running:
            return Piece(self._source.read(index))
        record, place = self._record(index), self._source.place(index)
        if self._rules.kind == "auto" and self.kind != "text":
            found = _kind_of(record, self._rules.text_field)
            if found != self.kind:
                what = f"is a row of {found}" if found else f"has {_keys(record)}"
                raise InputError(
                    f"{place}: {what}, but the first row is one of {self.kind}; keep one kind of "
                    "row in a file"
                )
        if self.kind == "text":
            return Piece(_text(place, record, self._rules.text_field))
        if self.kind == "messages":
            return self._conversation(place, *_messages(place, record), record.get("tools"))
        if self.kind == "instruction":
            return self._instruction(place, record)
        prompt = _text(place, record, "prompt")
        completion = _text(place, record, "completion")
        return self._plain(place, prompt, completion)

    def _has_template(self) -> bool:
        rules = self._rules
        return rules.chat_template is not None or template_text(rules.model_dir) is not None

    def _record(self, index: int) -> dict[str, Any]:
        record = self._source.read(index)
        if not isinstance(record, dict):
            found = type(record).__name__
            raise InputError(
                f"{self._source.place(index)}: a record must be a JSON object, found {found}"
            )
        return record

    def _plain(self, place: str, prompt: str, answer: str) -> Piece:
        if not answer:
            raise InputError(f"{place}: the answer is empty, so there is nothing to learn from")
        spans = None if self._rules.loss_on == "all" else [(len(prompt), len(prompt + answer))]
        return Piece(prompt + answer, spans, ends=True)

    def _instruction(self, place: str, record: dict[str, Any]) -> Piece:
        question = _text(place, record, "instruction")
        answer = _text(place, record, "output")
        more = "" if is_missing(record.get("input")) else _text(place, record, "input")
        if self._template is None:
            prompt = f"### Instruction:\n{question}\n\n"
            prompt += f"### Input:\n{more}\n\n" if more else ""
            return self._plain(place, prompt + "### Response:\n", answer)
        if more:
            question = f"{question}\n\n{more}"
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return self._conversation(place, messages, 0, None)

    def _conversation(self, place: str, messages: Messages, first: int, tools: Any) -> Piece:
        assert self._template is not None
        if self._rules.loss_on == "all":
            text = without_marks(self._template.render(place, messages, tools=tools))
            return Piece(text, None, chat=True)
        last = self._rules.loss_on == "last"
        text, spans = self._template.answers(place, messages, first, last, tools)
        return Piece(text, spans, chat=True)


def _keys(record: dict[str, Any]) -> str:
    return ", ".join(sorted(record)) or "none"


def _text(place: str, record: dict[str, Any], field: str) -> str:
    if field not in record:
        raise InputError(
            f"{place}: no field {field!r}; the record has {_keys(record)}; known are messages or "
            "conversations, instruction and output, prompt and completion, and text, whose field "
            "the dataset's text_field names"
        )
    return _string(place, f"field {field!r}", record[field])


def _string(place: str, what: str, value: Any) -> str:
    if not isinstance(value, str):
        found = "nothing" if is_missing(value) else type(value).__name__
        raise InputError(f"{place}: {what} must be a string, found {found}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{place}: {what} holds half a character (\\u{ord(value[error.start]):04x}), which no "
            "text has"
        ) from error
    if BEGIN in value or END in value:
        raise InputError(f"{place}: {what} holds U+FDD0 or U+FDD1, which are no characters")
    return value


def _messages(place: str, record: dict[str, Any]) -> tuple[Messages, int]:
    """The conversation, and the index of the first message that can be an answer."""
    for key in LISTS:
        if key in record:
            return _message_list(place, key, record[key]), 0
    prompt = _message_list(place, "prompt", record.get("prompt"))
    return prompt + _message_list(place, "completion", record.get("completion")), len(prompt)


def _message_list(place: str, key: str, values: Any) -> Messages:
    if not isinstance(values, list) or not values:
        raise InputError(f"{place}: field {key!r} must be a list of messages that isn't empty")
    messages = []
    for number, value in enumerate(values, 1):
        where = f"message {number} of {key!r}"
        if not isinstance(value, dict):
            raise InputError(f"{place}: {where} must be an object, found {type(value).__name__}")
        message = {k: v for k, v in value.items() if not is_missing(v)}
        if "role" not in message and "from" in message:
            message["role"] = message.pop("from")
            message["content"] = message.pop("value", None)
        role = _string(place, f"{where}: role", message.get("role"))
        message["role"] = ROLES.get(role, role)
        content = message.get("content")
        if isinstance(content, list):  # parts, as multimodal records have them
            content = _joined_parts(place, where, content)
        if content is None and message.get("tool_calls"):
            content = ""
        message["content"] = _string(place, f"{where}: content", content)
        messages.append(message)
    return messages


def _joined_parts(place: str, where: str, parts: list[Any]) -> str:
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise InputError(f"{place}: {where}: only parts of type text can be read")
        texts.append(_string(place, f"{where}: text", part.get("text")))
    return "".join(texts)
