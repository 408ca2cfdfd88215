# SPDX-License-Identifier: Apache-2.0
"""Conversations: what text becomes of them and which tokens are learnt."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DEMO_MODEL, build
from poros_peers.chat import ChatTemplate
from poros_peers.errors import InputError
from poros_peers.token_file import PADDING, SUPERVISED, TokenFile
from tokenizers import Tokenizer

PLAIN = (
    "{{ bos_token }}{% for m in messages %}\n"
    "    {{- '<' + m.role + '>' + m['content'] | trim + '</s>\\n' -}}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}<assistant>{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}<{{ m.role }}>{{ m.content }}{% endif %}"
    "{% if loop.index0 == 7 %}{% break %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
# Thoughts of earlier answers are left out once the conversation goes on.
FORGETS = (
    "{% set last = messages | length - 1 %}{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' and loop.index0 < last %}"
    "{{ m.content.split('|')[-1] }}{% else %}{{ m.content }}{% endif %}</s>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
# The prompt for an answer opens a thought, which finished answers don't have.
OPENS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>{% endif %}"
)
TWO = [
    {"role": "system", "content": "Speak as a king"},
    {"role": "user", "content": "Who art thou?"},
    {"role": "assistant", "content": "so|I am that I am."},
    {"role": "user", "content": "And whence?"},
    {"role": "assistant", "content": "well|From everlasting; "},
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The demo model's tokenizer in a folder of its own."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, folder)
    return folder


def rows(model: Path, template: str, records: list[Any], **training: Any) -> TokenFile:
    (model / "chat_template.jinja").write_text(template)
    data = model.parent / "data.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in records))
    dataset = {"source": str(data), "shuffle": False} | training.pop("dataset", {})
    return build(model, data, **({"seq_len": 256, "dataset": dataset} | training))


def texts(model: Path, tokens: TokenFile, row: int = 0) -> tuple[str, str]:
    """A row's text, and the part of it that is learnt."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    real = (tokens.flags[row] & PADDING) == 0
    learnt = (tokens.flags[row] & SUPERVISED) > 0
    return (
        tokenizer.decode(tokens.ids[row][real].tolist(), skip_special_tokens=False),
        tokenizer.decode(tokens.ids[row][learnt].tolist(), skip_special_tokens=False),
    )


def test_answers_are_what_is_learnt(model: Path) -> None:
    whole, learnt = texts(model, rows(model, PLAIN, [{"messages": TWO}]))
    assert whole == (
        "<system>Speak as a king</s>\n<user>Who art thou?</s>\n<assistant>so|I am that I am.</s>\n"
        "<user>And whence?</s>\n<assistant>well|From everlasting;</s>\n"
    )
    assert learnt == "so|I am that I am.</s>\nwell|From everlasting;</s>\n"


def test_marked_answers_are_what_is_learnt(model: Path) -> None:
    whole, learnt = texts(model, rows(model, MARKED, [{"messages": TWO}]))
    assert "\ufdd0" not in whole and "\ufdd1" not in whole
    assert learnt == "so|I am that I am.</s>well|From everlasting; </s>"


def test_masks_of_random_conversations(model: Path) -> None:
    """Whatever the characters, the learnt text is the answers' and nothing else."""
    draw = random.Random(5)
    letters = "aB .,!?\n\té中文🙂👩\u200d👧<>/s|ﬁ\u0301"

    def words() -> str:
        return "x" + "".join(draw.choice(letters) for _ in range(draw.randrange(12))) + "y"

    records = []
    for _ in range(60):
        turns = [("system", words())] if draw.random() < 0.3 else []
        for _ in range(draw.randrange(1, 4)):
            turns += [("user", words()), ("assistant", words())]
        records.append({"messages": [{"role": r, "content": c} for r, c in turns]})
    for template in (PLAIN, MARKED):
        ending = "</s>\n" if template == PLAIN else "</s>"
        tokens = rows(model, template, records, seq_len=512)
        for row, record in enumerate(records):
            answers = [m["content"] for m in record["messages"] if m["role"] == "assistant"]
            assert texts(model, tokens, row)[1] == "".join(a + ending for a in answers)


def test_last_answer_alone_and_all(model: Path) -> None:
    for template in (PLAIN, MARKED, FORGETS):
        tokens = rows(model, template, [{"messages": TWO}], dataset={"loss_on": "last"})
        assert texts(model, tokens)[1].startswith("well|From everlasting;")
        tokens = rows(model, template, [{"messages": TWO}], dataset={"loss_on": "all"})
        assert tokens.supervised_tokens == int((tokens.flags & PADDING == 0).sum()) - 1


def test_a_template_that_rewrites_is_noticed(model: Path) -> None:
    with pytest.raises(InputError, match=r"data.jsonl:2: .*message 3 .*loss_on: last"):
        rows(model, FORGETS, [{"messages": TWO[:3]}, {"messages": TWO}])
    one = rows(
        model, FORGETS, [{"messages": TWO[:3]}]
    )  # with one answer there is nothing to rewrite
    assert texts(model, one)[1] == "so|I am that I am.</s>"


def test_a_prompt_that_opens_more_than_the_answer_has(model: Path) -> None:
    learnt = texts(model, rows(model, OPENS, [{"messages": TWO}]))[1]
    assert learnt == "so|I am that I am.</s>well|From everlasting; </s>"


def test_other_ways_to_write_a_conversation(model: Path) -> None:
    expected = rows(model, PLAIN, [{"messages": TWO}])
    shared = {"from": "human", "value": TWO[1]["content"]}
    answer = {"from": "gpt", "value": TWO[2]["content"]}
    records: list[Any] = [
        {"conversations": [TWO[0], shared, answer, *TWO[3:]]},
        {"messages": [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]}
                      for m in TWO]},
    ]  # fmt: skip
    for record in records:
        assert (rows(model, PLAIN, [record]).ids == expected.ids).all()
    # Answers of the prompt are no answers to learn.
    apart = rows(model, PLAIN, [{"prompt": TWO[:4], "completion": TWO[4:]}])
    assert (apart.ids == expected.ids).all()
    assert texts(model, apart)[1] == "well|From everlasting;</s>\n"


def test_instructions(model: Path) -> None:
    record = {"instruction": "Say it.", "input": "Now", "output": "It is."}
    whole, learnt = texts(model, rows(model, PLAIN, [record, record | {"input": ""}]))
    assert whole == "<user>Say it.\n\nNow</s>\n<assistant>It is.</s>\n"
    assert learnt == "It is.</s>\n"
    tokens = rows(model, PLAIN, [record, record | {"input": ""}])
    assert texts(model, tokens, 1)[0] == "<user>Say it.</s>\n<assistant>It is.</s>\n"
    (model / "chat_template.jinja").unlink()
    data = model.parent / "data.jsonl"
    plain = build(model, data, seq_len=64, dataset={"source": str(data), "shuffle": False})
    whole, learnt = texts(model, plain)
    assert whole == (
        "### Instruction:\nSay it.\n\n### Input:\nNow\n\n### Response:\nIt is.<|endoftext|>"
    )
    assert learnt == "It is.<|endoftext|>"
    assert "### Input" not in texts(model, plain, 1)[0]


def test_prompt_and_completion(model: Path) -> None:
    tokens = rows(model, PLAIN, [{"prompt": "In the beginning", "completion": " God created"}])
    whole, learnt = texts(model, tokens)
    assert whole == "In the beginning God created<|endoftext|>"
    assert learnt == " God created<|endoftext|>"


def test_truncation_keeps_the_beginning_and_drops_what_teaches_nothing(model: Path) -> None:
    long = {"prompt": "of " * 40, "completion": " God"}
    short = {"prompt": "of", "completion": " God" * 40}
    tokens = rows(model, PLAIN, [long, short], seq_len=16)
    assert tokens.rows == 1
    assert texts(model, tokens)[0] == "of" + " God" * 15
    with pytest.raises(InputError, match="1 have no answer within 16 tokens"):
        rows(model, PLAIN, [long], seq_len=16)


def test_where_the_template_stands(model: Path) -> None:
    with pytest.raises(InputError, match="has no chat template"):
        ChatTemplate(model)
    config = model / "tokenizer_config.json"
    values = json.loads(config.read_text())
    values["chat_template"] = [
        {"name": "tool", "template": "x"},
        {"name": "default", "template": "y"},
    ]
    config.write_text(json.dumps(values))
    assert ChatTemplate(model).text == "y"
    values["chat_template"] = PLAIN
    config.write_text(json.dumps(values))
    assert ChatTemplate(model).text == PLAIN
    (model / "chat_template.jinja").write_text(MARKED)
    assert ChatTemplate(model).text == MARKED
    other = model / "other.jinja"
    other.write_text(FORGETS)
    assert ChatTemplate(model, other).text == FORGETS
    record = {"messages": TWO[:3]}
    tokens = rows(model, PLAIN, [record], dataset={"chat_template": str(other)})
    assert texts(model, tokens)[0].startswith("<system>Speak as a king</s><user>")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("\n{% for m in messages %}", "chat_template.jinja: chat template, line 2"),
        ("{{ nothing.here }}", ":1: the chat template refuses the row: 'nothing' is undefined"),
        ("{{ 1 / 0 }}", ":1: the chat template fails with the row: ZeroDivisionError"),
        ("{{ messages.append(1) }}", ":1: the chat template refuses the row: access to attribute"),
        ("{{ ''.__class__.__mro__ }}", ":1: the chat template refuses the row"),
        ("{% generation %}x{% endgeneration %}", ":1: the chat template marks 1 answers of 2"),
    ],
)
def test_wrong_templates(model: Path, template: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        rows(model, template, [{"messages": TWO}])
    assert message in str(caught.value)


def test_packed_answers_keep_their_masks(model: Path) -> None:
    records = [{"prompt": "of", "completion": " God" * (n + 1)} for n in range(9)]
    apart = rows(model, PLAIN, records)
    packed = rows(model, PLAIN, records, packing=True, seq_len=32)
    assert packed.rows < apart.rows
    assert packed.supervised_tokens == apart.supervised_tokens
    for row in range(packed.rows):
        documents = packed.documents(np.array([row]))[0]
        real = (packed.flags[row] & PADDING) == 0
        for number in range(int(documents[real].max()) + 1):
            inside = real & (documents == number)
            learnt = (packed.flags[row][inside] & SUPERVISED) > 0
            assert learnt.tolist() == [False] + [True] * (inside.sum() - 1)  # prompt of one token


@pytest.mark.peers
@pytest.mark.parametrize("template", [PLAIN, MARKED, FORGETS])
def test_equals_transformers(model: Path, template: str) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template
    tokens = rows(model, template, [{"messages": TWO}], dataset={"loss_on": "last"})
    real = (tokens.flags[0] & PADDING) == 0
    theirs = tokenizer.apply_chat_template(
        TWO, return_dict=True, return_assistant_tokens_mask=template == MARKED
    )
    assert tokens.ids[0][real].tolist() == theirs["input_ids"]
    ours = ChatTemplate(model, None).render("test", TWO[:4], prompt=True)
    for mark in "\ufdd0\ufdd1":
        ours = ours.replace(mark, "")
    assert ours == tokenizer.apply_chat_template(
        TWO[:4], add_generation_prompt=True, tokenize=False
    )
    if template == MARKED:
        tokens = rows(model, template, [{"messages": TWO}])
        learnt = (tokens.flags[0][real] & SUPERVISED) > 0
        assert learnt.astype(int).tolist() == theirs["assistant_masks"]
