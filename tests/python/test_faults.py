# SPDX-License-Identifier: Apache-2.0
"""A runner that is at the end of its memory says oom, with real limits and the real libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import RequestMaker
from test_peft import dense_model, prepare, write_tokens

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("keep_sigterm")]

# The limit is set when everything is loaded: room for less than one more layer, then the step.
LIMITED = """
import re, resource, sys
from poros_peers import peft, protocol, training
real = training.train
def train(*arguments):
    {before}
    real(*arguments)
training.train = train
sys.exit(protocol.main(peft.METHOD, peft.PACKAGES, peft.run))
"""
ADDRESS_SPACE = """
    size = int(re.search(r"VmSize:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + (8 << 20), size + (8 << 20)))
    import torch
    held = torch.empty(1 << 34, dtype=torch.uint8)
"""


def run_limited(path: Path, before: str) -> tuple[int, dict[str, Any], str]:
    source = LIMITED.format(before=before.strip()).replace("\\\\", "\\")
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(n for n in sys.path if n)}
    done = subprocess.run([sys.executable, "-c", source, str(path)], capture_output=True, text=True,
                          timeout=300, env=environment)  # fmt: skip
    result = Path(json.loads(path.read_text())["result_path"])
    return done.returncode, json.loads(result.read_text()), done.stderr


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (ADDRESS_SPACE, "can't allocate memory"),
        ("held = bytearray(1 << 60)", "out of memory"),
        ("import torch; raise torch.OutOfMemoryError('the device is full')", "the device is full"),
        (
            "raise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
            "`cublasCreate(handle)`')",
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
    ],
    ids=["address space", "python", "device", "cublas"],
)
def test_want_of_memory_is_oom(
    make_request: RequestMaker, tmp_path: Path, before: str, message: str
) -> None:
    write_tokens(tmp_path / "tokens", packed=False)
    prepare(tmp_path, dense_model())
    path, _ = make_request()
    code, record, stderr = run_limited(path, before)
    assert (code, record["status"], record["reason"]) == (0, "oom", ""), stderr
    assert message in record["error_message"]
    assert record["steps"]["loss"] == [] and record["s_per_step"] is None
