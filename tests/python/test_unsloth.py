# SPDX-License-Identifier: Apache-2.0
"""The unsloth runner: the same losses as peft where unsloth is installed, else what it says."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import RequestMaker
from test_peft import dense_model, prepare, run_peft, write_tokens

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("keep_sigterm")]
INSTALLED = importlib.util.find_spec("unsloth") is not None


def run_unsloth(path: Path) -> tuple[int, dict[str, Any]]:
    """In a process of its own: unsloth changes the libraries of the process that imports it."""
    request = json.loads(path.read_text())
    request["cell"]["method"] = "unsloth"
    path.write_text(json.dumps(request))
    command = [sys.executable, "-m", "poros_peers.unsloth", str(path)]
    paths = os.pathsep.join(name for name in sys.path if name)
    environment = dict(os.environ) | {"PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode in (0, 3), done.stderr[-2000:]
    return done.returncode, json.loads(Path(request["result_path"]).read_text())


@pytest.mark.skipif(INSTALLED, reason="unsloth is installed")
def test_missing_library_is_named(make_request: RequestMaker) -> None:
    code, record = run_unsloth(make_request()[0])
    assert (code, record["status"], record["reason"]) == (3, "skipped", "not_installed")
    assert "scripts/bootstrap.sh --peers" in record["error_message"]


@pytest.mark.skipif(not INSTALLED, reason="unsloth is not installed")
def test_trains_like_peft(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "tokens", packed=False)
    prepare(tmp_path, dense_model())
    path, _ = make_request(training={"steps": 4, "compute_dtype": "fp32"})
    _, expected = run_peft(monkeypatch, path)
    code, record = run_unsloth(path)
    assert (code, record["status"], record["error_message"]) == (0, "ok", "")
    assert record["steps"]["loss"] == pytest.approx(expected["steps"]["loss"], rel=1e-4)
    assert record["steps"]["grad_norm"] == pytest.approx(expected["steps"]["grad_norm"], rel=1e-3)
    for key in ("trainable_params", "base_bytes", "token_sha256", "adapter_sha256"):
        assert record[key] == expected[key], key


@pytest.mark.skipif(not INSTALLED, reason="unsloth is not installed")
def test_gpu_cell_does_not_fall_back_to_the_cpu(make_request: RequestMaker) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    path, request = make_request()
    request["cell"]["device"] = "cuda"
    path.write_text(json.dumps(request))
    code, record = run_unsloth(path)
    assert (code, record["status"], record["reason"]) == (3, "skipped", "no_cuda")


def test_best_shape_regroups_the_rows_of_a_step(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "tokens", packed=False)
    prepare(tmp_path, dense_model())
    path, _ = make_request()
    _, spec_shape = run_peft(monkeypatch, path)
    path, _ = make_request(peer={"best_shape": True})
    _, regrouped = run_peft(monkeypatch, path)
    shape = {"batch_size": 2, "gradient_accumulation_steps": 1, "regrouped": True}
    assert regrouped["arm"]["shape"] == shape
    assert spec_shape["arm"]["shape"] == {
        "batch_size": 1, "gradient_accumulation_steps": 2, "regrouped": False
    }  # fmt: skip
    assert regrouped["steps"]["supervised_tokens"] == spec_shape["steps"]["supervised_tokens"]
    assert regrouped["steps"]["loss"] == pytest.approx(spec_shape["steps"]["loss"], rel=1e-5)
