# SPDX-License-Identifier: Apache-2.0
"""A prompt's ids, and the text of ids that a model wrote.

  python -m poros_peers.prompt REQUEST        JSON text or its file; PYTHONPATH=src/peers
      {"model_dir": "...", "text": "...", "chat": false, "chat_template": ""}
                                          -> {"ids": [...], "stop_ids": [...]}
      {"model_dir": "...", "ids": [...]}  -> {"text": "..."}

With chat the text is a user's message, written by the model's chat template (or the Jinja file that
chat_template names) with the prompt for an answer. Exit code 0; 2 when something given is wrong
(stderr says what).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .chat import ChatTemplate, without_marks
from .encoder import Encoder, stop_ids
from .errors import InputError
from .token_request import json_of


def prompt_ids(
    model_dir: Path, text: str, chat: bool, chat_template: Path | None = None
) -> list[int]:
    """Ids that the model goes on from. Raises InputError."""
    encoder = Encoder(model_dir)
    if chat:
        messages = [{"role": "user", "content": text}]
        written = ChatTemplate(model_dir, chat_template).render("the prompt", messages, prompt=True)
        ids = encoder.encode([without_marks(written)])[0]
    else:
        ids = encoder.prefix + encoder.encode([text])[0]
    if not ids:
        raise InputError("the prompt is empty, and the tokenizer puts nothing before it")
    return ids


def answer(request: dict[str, Any]) -> dict[str, Any]:
    model_dir = Path(request["model_dir"])
    if "ids" in request:
        return {"text": Encoder(model_dir).decode(request["ids"])}
    template = request.get("chat_template")
    file = Path(template) if template else None
    ids = prompt_ids(model_dir, request["text"], request["chat"], file)
    return {"ids": ids, "stop_ids": stop_ids(model_dir)}


def main() -> int:
    try:
        print(json.dumps(answer(json_of(sys.argv[1])[1])))
    except InputError as error:
        print(f"prompt: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(
            f"prompt: the Python package {error.name} is missing; "
            "pip install -r scripts/requirements/base.txt",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
