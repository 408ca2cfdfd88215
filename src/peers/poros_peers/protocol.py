# SPDX-License-Identifier: Apache-2.0
"""A runner's life: request in, events out, and a record however it ends.

src/cell/protocol.hpp describes the protocol. A runner is

    sys.exit(protocol.main("peft", ("torch", "transformers", ...), run))

where run(request, record, events) fills the record or raises; main names how it ended. Exit codes:
0 with a record (its status may be error or oom), 3 when the arm can't run here (status skipped),
2 for a request that can't be used (no record).
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import InputError
from .record import Record, utc_now, versions_of
from .request import Request, read_request

EVENT_FD_VARIABLE = "POROS_EVENT_FD"
EXIT_DONE, EXIT_INPUT, EXIT_SKIPPED = 0, 2, 3
MAX_EVENT_BYTES = 4096
HEARTBEAT_S = 5.0
OOM_MESSAGES = (  # of exceptions that are not of an out-of-memory class of their own
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory",  # ENOMEM, as libraries write it
    "std::bad_alloc",
)


class Skipped(Exception):
    """The arm can't run here: `reason` is a word of the record (unsupported, no_cuda, ...)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ArmError(Exception):
    """The arm ran and ended in a way that has a name: diverged, drained, ..."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Events:
    """JSON lines on the event pipe; silent where none was given.

    Telling never ends the work: a reader that is gone silences the pipe for good.
    """

    def __init__(self, fd: int | None = None, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._fd = fd
        self._heartbeat_s = heartbeat_s
        self._lock = threading.Lock()
        self._beating = threading.Event()
        self.stop_requested = False
        if fd is not None:
            os.set_inheritable(fd, False)
            os.set_blocking(fd, False)
            threading.Thread(target=self._beat, daemon=True).start()

    @classmethod
    def from_environment(cls) -> Events:
        """The pipe named by POROS_EVENT_FD. Raises InputError when it is not an open descriptor."""
        name = os.environ.get(EVENT_FD_VARIABLE)
        if not name:
            return cls()
        try:
            os.fstat(int(name))
        except (ValueError, OSError) as error:
            raise InputError(f"{EVENT_FD_VARIABLE}={name}: not an open descriptor") from error
        return cls(int(name))

    def phase(self, name: str) -> None:
        """import, load, quantise, warmup, train or finish. Before the steps, heartbeats follow."""
        self._send({"event": "phase", "phase": name})
        print(f"{utc_now()} phase {name}", flush=True)
        if name in ("warmup", "train"):
            self._beating.clear()  # from here on silence is news: it means that a step hangs
        else:
            self._beating.set()

    def step(self, step: int, steps: int, loss: float, s_per_step: float, memory_mb: float) -> None:
        """One finished step, from 1."""
        event = {"event": "step", "step": step, "steps": steps, "loss": loss}
        self._send(event | {"s_per_step": s_per_step, "memory_mb": memory_mb})
        print(f"{utc_now()} step {step}/{steps} loss {loss:.4f} {s_per_step:.3f} s", flush=True)

    def _beat(self) -> None:
        while self._beating.wait():
            time.sleep(self._heartbeat_s)
            if self._beating.is_set():
                self._send({"event": "heartbeat"})

    def _send(self, event: dict[str, Any]) -> None:
        with self._lock:
            if self._fd is None:
                return
            line = json.dumps(event).encode() + b"\n"
            try:
                os.write(self._fd, line[:MAX_EVENT_BYTES])
            except BlockingIOError:
                pass  # the pipe is full: this line is dropped
            except OSError:
                self._fd = None  # the reader is gone


RunFunction = Callable[[Request, Record, Events], None]


def is_out_of_memory(error: BaseException) -> bool:
    """Allocator, cuBLAS, cuDNN or the host's allocator had no memory left.

    By type where there is one: Python's MemoryError, the OutOfMemoryError of torch, ENOMEM; else by
    what the allocators write. An error that was raised from such a one counts too.
    """
    cause: BaseException | None = error
    for _ in range(16):
        if cause is None:
            break
        names = {kind.__name__ for kind in type(cause).__mro__}
        if names & {"MemoryError", "OutOfMemoryError"}:
            return True
        if getattr(cause, "errno", 0) == errno.ENOMEM:
            return True
        if isinstance(cause, Exception) and any(m in str(cause) for m in OOM_MESSAGES):
            return True
        cause = cause.__cause__
    return False


def name_failure(error: Exception, record: Record) -> None:
    """Sets status, reason and message; prints the traceback where the cause is not ours."""
    record.error_message = str(error)
    if isinstance(error, Skipped):
        record.status, record.reason = "skipped", error.reason
    elif is_out_of_memory(error):
        record.status = "oom"
        record.error_message = f"out of memory: {error}"
    elif isinstance(error, ArmError):
        record.status, record.reason = "error", error.reason
    elif isinstance(error, InputError):
        record.status, record.reason = "error", "bad_input"
    else:
        record.status, record.reason = "error", "failed"
        record.error_message = f"{type(error).__name__}: {error}"
        traceback.print_exception(error)


def import_packages(packages: tuple[str, ...]) -> None:
    """Raises Skipped(not_installed) naming the package that is missing."""
    for name in packages:
        try:
            importlib.import_module(name)
        except (ImportError, OSError) as error:  # OSError: a shared library is missing
            if is_out_of_memory(error):
                raise
            raise Skipped(
                "not_installed",
                f"the Python package {name} can't be imported ({error}); "
                "scripts/bootstrap.sh --peers installs the peers",
            ) from error


def main(method: str, packages: tuple[str, ...], run: RunFunction) -> int:
    """python -m poros_peers.<method> REQUEST.json. Returns the exit code."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(f"usage: python -m poros_peers.{method} REQUEST.json", file=sys.stderr)
        return EXIT_INPUT
    try:
        request = read_request(Path(sys.argv[1]))
        events = Events.from_environment()
    except InputError as error:
        print(f"{method}: {error}", file=sys.stderr)
        return EXIT_INPUT

    def stop(*_: object) -> None:
        events.stop_requested = True  # the training loop ends after the step under way

    signal.signal(signal.SIGTERM, stop)
    os.environ["OMP_NUM_THREADS"] = str(request.threads)  # read when the libraries are loaded
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the checkpoint is local; no look at the hub
    record = Record(method, request)
    try:
        if request.cell["method"] != method:
            raise InputError(f"the cell's method is {request.cell['method']}, not {method}")
        if request.purpose != "timed":
            raise Skipped(
                "unsupported",
                f"a {request.purpose} pass is for poros and resident; peers are compared by their "
                "records",
            )
        events.phase("import")
        record.versions = versions_of(packages)
        import_packages(packages)
        run(request, record, events)
    except Exception as error:  # whatever a library raises must end in a record
        name_failure(error, record)
        traceback.clear_frames(error.__traceback__)  # a model in them takes the record's memory
        reason = f"/{record.reason}" if record.reason else ""
        message = f"{method}: {record.status}{reason}: {record.error_message}"
        print(message, file=sys.stderr, flush=True)
    events.phase("finish")
    record.write()
    return EXIT_SKIPPED if record.status == "skipped" else EXIT_DONE
