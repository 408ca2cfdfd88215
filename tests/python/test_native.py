# SPDX-License-Identifier: Apache-2.0
"""`protocol: native`: a bare AdamW whatever the spec says, on what the token file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RequestMaker
from poros_peers.token_file import DOCUMENT_START, SUPERVISED, TokenFile, token_file_bytes
from test_peft import SEQ_LEN, dense_model, prepare, run_peft

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("keep_sigterm")]


def write_one_row(path: Path) -> None:
    """One micro-batch of one row, as the driver makes it for this protocol."""
    ids = np.random.RandomState(4).randint(0, 300, (1, SEQ_LEN)).astype(np.uint32)
    flags = np.full((1, SEQ_LEN), SUPERVISED, dtype=np.uint8)
    flags[0, 0] = DOCUMENT_START
    path.write_bytes(token_file_bytes(TokenFile(ids, flags, 300, "{}")))


def test_bare_adamw_on_one_batch(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from poros_peers import training

    seen: list[np.ndarray] = []
    real = training.Batches.step

    def watch(self: Any, step: int) -> Any:
        micro_batches, supervised = real(self, step)
        seen.extend(inputs["input_ids"].numpy() for inputs in micro_batches)
        return micro_batches, supervised

    monkeypatch.setattr(training.Batches, "step", watch)
    write_one_row(tmp_path / "tokens")
    prepare(tmp_path, dense_model())
    spec = {"steps": 4, "lr_scheduler": "cosine", "lr_warmup_steps": 2, "max_grad_norm": 0.01,
            "weight_decay": 0.5}  # fmt: skip
    path, request = make_request(training=spec)
    request["cell"]["protocol"] = "native"
    path.write_text(json.dumps(request))
    code, native = run_peft(monkeypatch, path)
    assert (code, native["status"], native["error_message"]) == (0, "ok", "")
    assert len(seen) == 8 and all((ids == seen[0]).all() for ids in seen)
    assert native["steps"]["learning_rate"] == [1e-3] * 4
    assert native["arm"]["trained_with"] == {
        "protocol": "native", "token_rows": 1, "lr_scheduler": "constant", "lr_warmup_steps": 0,
        "max_grad_norm": 0.0, "weight_decay": 0.01,
    }  # fmt: skip
    # The same settings written out under the shared protocol train the same, in every bit.
    bare = {"lr_scheduler": "constant", "lr_warmup_steps": 0, "max_grad_norm": 0.0,
            "weight_decay": 0.01}  # fmt: skip
    path, _ = make_request(training=spec | bare)
    _, written_out = run_peft(monkeypatch, path)
    for name in ("loss", "grad_norm"):
        assert native["steps"][name] == written_out["steps"][name], name
    path, _ = make_request(training=spec)
    _, shared = run_peft(monkeypatch, path)
    assert shared["arm"]["trained_with"]["protocol"] == "shared"
    assert shared["steps"]["learning_rate"][0] == 0.0  # its warm-up
    assert shared["steps"]["loss"][3] != native["steps"]["loss"][3]
