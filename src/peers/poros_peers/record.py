# SPDX-License-Identifier: Apache-2.0
"""The pass record of src/receipts/pass_record.hpp, and what the process and its files say."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import write_durably
from .request import Request

MIB = float(2**20)
SERIES = (
    "loss",
    "grad_norm",
    "learning_rate",
    "s_per_step",
    "allocated_mb",
    "reserved_mb",
    "host_rss_mb",
    "supervised_tokens",
)


@dataclass
class Record:
    """The record under way. What stays None was not measured."""

    method: str
    request: Request
    status: str = "ok"
    reason: str = ""
    error_message: str = ""
    flags: list[str] = field(default_factory=list)
    started_at: str = field(default_factory=lambda: utc_now())
    steps: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SERIES})
    load_s: float | None = None
    vram_peak_mb: float | None = None
    vram_reserved_peak_mb: float | None = None
    vram_load_peak_mb: float | None = None
    host_rss_peak_mb: float | None = None
    pinned_mb: float | None = None
    trainable_params: int | None = None
    token_sha256: str = ""
    adapter_sha256: str = ""
    weights: str = ""
    base_bytes: dict[str, int] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    arm: dict[str, Any] = field(default_factory=dict)

    def add_step(self, **values: float | None) -> None:
        """Appends one value a series; a series given None stays empty."""
        for name, value in values.items():
            if value is not None:
                self.steps[name].append(value)

    def to_json(self) -> dict[str, Any]:
        timed = self.steps["s_per_step"][int(self.request.training.get("warmup_steps", 5)) :]
        return {
            "v": 1,
            "purpose": self.request.purpose,
            "cell_key": self.request.cell_key,
            "method": self.method,
            "pass": self.request.pass_index,
            "attempt": self.request.attempt,
            "status": self.status,
            "reason": self.reason,
            "error_message": self.error_message,
            "flags": self.flags,
            "started_at": self.started_at,
            "finished_at": utc_now(),
            "s_per_step": statistics.median(timed) if timed else None,
            "load_s": self.load_s,
            "vram_peak_mb": self.vram_peak_mb,
            "vram_reserved_peak_mb": self.vram_reserved_peak_mb,
            "vram_load_peak_mb": self.vram_load_peak_mb,
            "host_rss_peak_mb": self.host_rss_peak_mb,
            "pinned_mb": self.pinned_mb,
            "planned_peak_mb": None,
            "trainable_params": self.trainable_params,
            "token_sha256": self.token_sha256,
            "adapter_sha256": self.adapter_sha256,
            "weights": self.weights,
            "base_bytes": self.base_bytes,
            "device": self.device,
            "versions": self.versions,
            "arm": self.arm,
            "driver": {},
            "steps": self.steps,
            "hashes": [],
        }

    def write(self) -> None:
        """Writes the record to the request's result_path, by rename."""
        text = json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        write_durably(self.request.result_path, text.encode())


def utc_now() -> str:
    """The time as the driver writes it: 2026-01-31T12:00:00.123Z."""
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def process_memory_mb(key: str) -> float | None:
    """VmRSS (now) or VmHWM (peak) of this process [2^20 bytes]; None where not to be had."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) / 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def reset_memory_peak() -> bool:
    """Lets VmHWM count from now on; False where the kernel does not offer it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return True
    except OSError:
        return False


def host_memory_mb() -> float:
    """Memory of the machine [2^20 bytes]."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / MIB


def seconds_since_start() -> float:
    """Time since this process was started, the interpreter's own start included [s]."""
    stat = Path("/proc/self/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    started = int(stat[19]) / os.sysconf("SC_CLK_TCK")  # field 22: ticks since boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checkpoint_digest(model_dir: Path) -> str:
    """A checkpoint's identity, as src/model/checkpoint_digest.hpp defines it."""
    text = f"config.json {file_sha256(model_dir / 'config.json')}\n"
    index = model_dir / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if not (model_dir / "model.safetensors").is_file() and index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    for name in sorted(names):
        path = model_dir / name
        text += f"{name} {path.stat().st_size} {file_sha256(path)}\n"
    return hashlib.sha256(text.encode()).hexdigest()


def weights_of(request: Request) -> str:
    """pretrained@<digest of the checkpoint> or random(<seed>), as our own arms write it."""
    if (request.cell.get("model") or {}).get("weights") == "synthetic":
        return f"random({request.training['seed']})"
    return f"pretrained@{checkpoint_digest(request.model_dir)}"


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of those packages that are installed."""
    versions = {"python": sys.version.split()[0]}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
