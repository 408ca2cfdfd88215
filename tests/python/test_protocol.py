# SPDX-License-Identifier: Apache-2.0
"""Request, events and record, with runners that need no machine-learning library."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import ROOT, RequestMaker
from poros_peers import protocol
from poros_peers.errors import InputError
from poros_peers.record import SERIES, Record, checkpoint_digest, file_sha256
from poros_peers.request import read_request

RUNNER = """
import sys
from poros_peers import protocol
def run(request, record, events):
    {body}
sys.exit(protocol.main("peft", ({packages}), run))
"""


def run(
    request: Path, body: str, packages: str = "", fds: tuple[int, ...] = ()
) -> tuple[subprocess.CompletedProcess[str], dict | None]:
    """Runs a runner whose body is given; also returns its record, if it left one."""
    result_path = Path(json.loads(request.read_text())["result_path"])
    environment = dict(os.environ)
    if fds:
        environment["POROS_EVENT_FD"] = str(fds[0])
    process = subprocess.run(
        [sys.executable, "-c", RUNNER.format(body=body, packages=packages), str(request)],
        capture_output=True,
        text=True,
        timeout=120,
        pass_fds=fds,
        env=environment,
    )
    record = json.loads(result_path.read_text()) if result_path.exists() else None
    return process, record


def test_record_has_the_keys_of_the_driver(make_request: RequestMaker) -> None:
    source = (ROOT / "src/receipts/pass_record.cpp").read_text()
    keys = set(re.findall(r'visit\("(\w+)"', source)) | {"v", "steps", "hashes"}
    columns = re.findall(r'StepColumn\{"(\w+)"', source)
    record = Record("peft", read_request(make_request()[0]))
    assert record.to_json().keys() == keys
    assert list(SERIES) == columns


def test_ok(make_request: RequestMaker) -> None:
    request, _ = make_request(training={"warmup_steps": 1})
    body = "[record.add_step(loss=1.0, s_per_step=s, reserved_mb=None) for s in (9.0, 1.0, 4.0)]"
    process, record = run(request, body)
    assert process.returncode == 0, process.stderr
    assert record["status"] == "ok"
    assert record["s_per_step"] == 2.5  # the warm-up step is left out
    assert record["steps"]["s_per_step"] == [9.0, 1.0, 4.0]
    assert record["steps"]["reserved_mb"] == []
    assert record["load_s"] is None and record["vram_peak_mb"] is None
    assert (record["pass"], record["attempt"], record["cell_key"]) == (0, 1, "ab" * 32)


@pytest.mark.parametrize(
    ("body", "code", "status", "reason", "message"),
    [
        ("raise MemoryError()", 0, "oom", "", "out of memory"),
        ("raise RuntimeError('CUBLAS_STATUS_ALLOC_FAILED when')", 0, "oom", "", "CUBLAS"),
        (
            "raise type('OutOfMemoryError', (RuntimeError,), {})('card full')",
            0,
            "oom",
            "",
            "card full",
        ),
        (
            "raise RuntimeError('[enforce fail] DefaultCPUAllocator: can\\'t allocate memory: you')",
            0,
            "oom",
            "",
            "you",
        ),
        ("raise OSError(12, 'no room for a map')", 0, "oom", "", "no room for a map"),
        ("raise ValueError('loading failed') from MemoryError()", 0, "oom", "", "loading failed"),
        ("raise ValueError('memory is a word')", 0, "error", "failed", "memory is a word"),
        ("raise RuntimeError('shapes differ')", 0, "error", "failed", "RuntimeError: shapes"),
        ("raise protocol.ArmError('diverged', 'step 3')", 0, "error", "diverged", "step 3"),
        ("raise protocol.InputError('no such key')", 0, "error", "bad_input", "no such key"),
        ("raise protocol.Skipped('no_cuda', 'no GPU')", 3, "skipped", "no_cuda", "no GPU"),
    ],
)
def test_each_end_has_its_name(
    make_request: RequestMaker, body: str, code: int, status: str, reason: str, message: str
) -> None:
    process, record = run(make_request()[0], body)
    assert process.returncode == code
    assert (record["status"], record["reason"]) == (status, reason)
    assert message in record["error_message"]
    assert message in process.stderr
    assert ("Traceback" in process.stderr) == (reason == "failed")


def test_missing_package_is_skipped(make_request: RequestMaker) -> None:
    process, record = run(make_request()[0], "pass", packages="'json', 'no_such_package'")
    assert process.returncode == 3
    assert (record["status"], record["reason"]) == ("skipped", "not_installed")
    assert "no_such_package" in record["error_message"]
    assert "scripts/bootstrap.sh --peers" in record["error_message"]


def test_parity_is_not_for_peers(make_request: RequestMaker) -> None:
    process, record = run(make_request(purpose="parity")[0], "pass")
    assert process.returncode == 3
    assert (record["status"], record["reason"]) == ("skipped", "unsupported")
    assert record["purpose"] == "parity"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"v": 2}, "protocol version 1"),
        ({"threads": "two"}, "key 'threads' must be of type int, found 'two'"),
        ({"pass": True}, "key 'pass' must be of type int"),
        ({"cell": {"method": "peft"}}, "cell has no key 'device'"),
    ],
)
def test_unusable_request(make_request: RequestMaker, keys: dict, message: str) -> None:
    path, _ = make_request(**keys)
    with pytest.raises(InputError) as caught:
        read_request(path)
    assert f"{path}: " in str(caught.value) and message in str(caught.value)
    process, record = run(path, "pass")
    assert process.returncode == 2 and record is None
    assert message in process.stderr


def test_events_are_lines(make_request: RequestMaker) -> None:
    read, write = os.pipe()
    try:
        body = "events.phase('load'); events.phase('train'); events.step(1, 3, 2.5, 0.5, 812.0)"
        process, _ = run(make_request()[0], body, fds=(write,))
    finally:
        os.close(write)
    assert process.returncode == 0, process.stderr
    with os.fdopen(read) as pipe:
        events = [json.loads(line) for line in pipe]
    phases = [event["phase"] for event in events if event["event"] == "phase"]
    assert phases == ["import", "load", "train", "finish"]
    step = {"event": "step", "step": 1, "steps": 3, "loss": 2.5, "s_per_step": 0.5}
    assert step | {"memory_mb": 812.0} in events


def test_heartbeats_end_where_steps_begin() -> None:
    read, write = os.pipe()
    events = protocol.Events(write, heartbeat_s=0.02)
    events.phase("load")
    deadline = time.monotonic() + 30
    received = b""
    while b"heartbeat" not in received and time.monotonic() < deadline:
        received += os.read(read, 65536)
    assert b'{"event": "heartbeat"}\n' in received
    events.phase("train")
    time.sleep(0.2)  # a heartbeat under way may still come
    os.read(read, 65536)
    os.set_blocking(read, False)
    time.sleep(0.2)
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    os.close(read)
    events.step(1, 2, 1.0, 1.0, 1.0)  # the reader is gone: nothing happens
    events.phase("finish")
    os.close(write)


def test_full_pipe_does_not_hold_up_the_work() -> None:
    read, write = os.pipe()
    events = protocol.Events(write)

    def many() -> None:
        for step in range(5000):
            events.step(step, 5000, 1.0, 1.0, 1.0)

    worker = threading.Thread(target=many, daemon=True)
    worker.start()
    worker.join(timeout=60)
    assert not worker.is_alive()
    os.close(read)
    os.close(write)


def test_closed_event_descriptor_is_said(make_request: RequestMaker) -> None:
    request, _ = make_request()
    environment = os.environ | {"POROS_EVENT_FD": "999"}
    command = [sys.executable, "-c", RUNNER.format(body="pass", packages=""), str(request)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert process.returncode == 2
    assert "POROS_EVENT_FD=999" in process.stderr


def test_checkpoint_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-2.safetensors").write_bytes(b"two")
    (tmp_path / "model-1.safetensors").write_bytes(b"one!")
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    lines = tmp_path / "lines"
    lines.write_text(
        f"config.json {file_sha256(tmp_path / 'config.json')}\n"
        f"model-1.safetensors 4 {file_sha256(tmp_path / 'model-1.safetensors')}\n"
        f"model-2.safetensors 3 {file_sha256(tmp_path / 'model-2.safetensors')}\n"
    )
    assert checkpoint_digest(tmp_path) == file_sha256(lines)
