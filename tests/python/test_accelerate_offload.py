# SPDX-License-Identifier: Apache-2.0
"""The accelerate_offload runner trains like peft, with the weights really out of the way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import RequestMaker
from poros_peers import protocol
from test_peft import dense_model, prepare, run_peft, write_tokens

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("keep_sigterm")]
LAYER_BYTES = (2 * 128 * 128 + 2 * 64 * 128 + 3 * 320 * 128) // 2 + 4 * 2 * 128  # NF4 codes, norms


def run_offload(monkeypatch: pytest.MonkeyPatch, path: Path) -> tuple[int, dict[str, Any]]:
    from poros_peers import accelerate_offload

    request = json.loads(path.read_text())
    request["cell"]["method"] = accelerate_offload.METHOD
    path.write_text(json.dumps(request))
    monkeypatch.setattr(sys, "argv", ["accelerate_offload", str(path)])
    code = protocol.main(
        accelerate_offload.METHOD, accelerate_offload.PACKAGES, accelerate_offload.run
    )
    return code, json.loads(Path(request["result_path"]).read_text())


@pytest.mark.parametrize(("fraction", "layers"), [(None, 1), (0.5, 1), (0.6, 2), (1.0, 2)])
def test_trains_like_peft(
    make_request: RequestMaker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fraction: float | None,
    layers: int,
) -> None:
    write_tokens(tmp_path / "tokens", packed=False)
    prepare(tmp_path, dense_model())
    path, _ = make_request(training={"steps": 4})
    _, expected = run_peft(monkeypatch, path)
    path, _ = make_request(training={"steps": 4}, peer={"offload_fraction": fraction})
    code, record = run_offload(monkeypatch, path)
    assert (code, record["status"], record["error_message"]) == (0, "ok", "")
    assert record["steps"]["loss"] == expected["steps"]["loss"]
    assert record["steps"]["grad_norm"] == expected["steps"]["grad_norm"]
    assert record["trainable_params"] == expected["trainable_params"]
    assert record["base_bytes"] == expected["base_bytes"]
    assert record["arm"]["offloaded_layers"] == layers
    places = record["arm"]["frozen_bytes"]
    assert places["cpu"] == layers * LAYER_BYTES and places["gpu"] > 0 and places["disk"] == 0


def test_weights_wait_outside_and_adapters_stay(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At the start of every step the offloaded weights are on no device."""
    from poros_peers import training

    seen: list[tuple[set[str], set[str]]] = []

    def watch(model: Any, *rest: Any) -> None:
        for _ in range(2):
            parameters = list(model.named_parameters())
            frozen = {
                p.device.type for n, p in parameters if "layers.1" in n and not p.requires_grad
            }
            trained = {p.device.type for n, p in parameters if p.requires_grad}
            seen.append((frozen, trained))
            real(model, *rest)

    real = training.train
    monkeypatch.setattr(training, "train", watch)
    write_tokens(tmp_path / "tokens", packed=False)
    prepare(tmp_path, dense_model())
    path, _ = make_request(training={"steps": 2})
    code, record = run_offload(monkeypatch, path)
    assert (code, record["error_message"]) == (0, "")
    assert seen == [({"meta"}, {"cpu"})] * 2


def test_without_recomputation_it_is_refused(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = make_request(peer={"gradient_checkpointing": False})
    code, record = run_offload(monkeypatch, path)
    assert (code, record["status"], record["reason"]) == (3, "skipped", "unsupported")
    assert "nothing would be offloaded" in record["error_message"]
