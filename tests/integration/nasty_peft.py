# SPDX-License-Identifier: Apache-2.0
"""The peft runner, made to fail as POROS_NASTY says; the test puts it in the runner's place.

kill: SIGKILL after the second step. stop: SIGSTOP there. grandchild: leaves a daemon behind and
goes on. dense: loads a base that is not quantised.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from . import peft_as_it_is as peft
from . import protocol

MODE = os.environ.get("POROS_NASTY", "")


def leave_daemon() -> None:
    """Double fork and a session of its own, deaf to what would end it."""
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    os.wait()


def step(self: protocol.Events, number: int, *rest: Any) -> None:
    told(self, number, *rest)
    if number == 2 and MODE == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 2 and MODE == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if number == 2 and MODE == "grandchild":
        leave_daemon()


def load_dense(request: Any, device: Any) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(request.model_dir, dtype="float32")


told = protocol.Events.step
protocol.Events.step = step
if MODE == "dense":
    peft.load_base = load_dense
sys.exit(protocol.main(peft.METHOD, peft.PACKAGES, peft.run))
