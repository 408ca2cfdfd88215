#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`poros train` as people use it: stops and kills, then the same bits; a full disk; wrong input.

Usage: train_test.py POROS SOURCE_DIR cli|demo. Exit code 77: the tokenizing packages are missing. With
`demo` the shipped config is trained whole: held-out perplexity must fall by at least 10 %.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

POROS, SOURCE = Path(sys.argv[1]), Path(sys.argv[2])
STEPS = 14
CONFIG = f"""
model: {SOURCE}/configs/models/kjv-qwen2
device: cpu
threads: 1
training:
  steps: {STEPS}
  dataset: {{path: {SOURCE}/configs/data/alice.txt, format: text, validation_fraction: 0.1}}
  seq_len: 64
  batch_size: 2
  gradient_accumulation_steps: 2
  learning_rate: 4.0e-3
  lr_warmup_steps: 2
lora: {{rank: 8, alpha: 16, dropout: 0.05}}
eval_rows: 8
save_every: 3
"""


def command(config: Path, out: Path, *more: str) -> list[str]:
    return [str(POROS), "train", str(config), "-o", str(out), *more]


def run(config: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(config, out, *more), capture_output=True, text=True, timeout=300, check=False
    )


def events(out: Path, kind: str) -> list[dict[str, Any]]:
    path = out / "events.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off by a kill
        if event["event_type"] == kind:
            found.append(event)
    return found


def steps_done(out: Path) -> int:
    return max((event["step"] for event in events(out, "step")), default=0)


def trainer_of(out: Path) -> int:
    """Process id of the poros-cell that trains into a folder; 0: none."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"poros-cell") and any(os.fsencode(out) in word for word in words):
            return int(entry.name)
    return 0


def interrupted(config: Path, out: Path, step: int, act: Callable[[subprocess.Popen[str]], None]) -> int:
    """Starts a run, acts on it once `step` steps are done; returns its exit code."""
    with subprocess.Popen(
        command(config, out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        while steps_done(out) < step and process.poll() is None:
            time.sleep(0.005)
        act(process)
        output, _ = process.communicate(timeout=120)
        print(f"  interrupted at step {step}: exit {process.returncode}: {output.splitlines()[-1:]}")
        return process.returncode


def kill_trainer(process: subprocess.Popen[str], out: Path) -> None:
    pid = trainer_of(out)
    if pid:
        os.kill(pid, signal.SIGKILL)


def curve(out: Path) -> dict[int, tuple[float, float]]:
    return {e["step"]: (e["data"]["loss"], e["data"]["grad_norm"]) for e in events(out, "step")}


def expect(holds: bool, what: object) -> None:
    if not holds:
        raise AssertionError(what)


def bytes_of(out: Path) -> list[bytes]:
    last = out / "checkpoints" / f"step-{STEPS:08}"
    files = [out / "adapter" / "adapter_model.safetensors", last / "moments.safetensors"]
    return [file.read_bytes() for file in files]


def check_stops(folder: Path, config: Path) -> None:
    whole, parts = folder / "whole", folder / "parts"
    done = run(config, whole, "--json")
    if done.returncode == 2 and "Python package" in done.stderr:
        print(done.stderr)
        sys.exit(77)
    expect(done.returncode == 0, done.stderr)
    result = json.loads(done.stdout)
    expect(result["status"] == "ok" and result["steps_done"] == STEPS, result)
    expect(result["final_eval_perplexity"] > 1, result)

    # A signal ends it after a checkpoint, unless the run was quicker than the signal.
    code = interrupted(config, parts, 2, lambda process: process.send_signal(signal.SIGTERM))
    expect(code == 75 and not (parts / "adapter").exists(), code)
    code = interrupted(config, parts, 5, lambda process: process.send_signal(signal.SIGUSR1))
    expect(code == 75, code)
    code = interrupted(config, parts, 8, lambda process: kill_trainer(process, parts))
    expect(code in (0, 1), code)  # 0: it was done before it could be killed
    code = interrupted(config, parts, 10, lambda process: process.kill())
    expect(code in (0, -signal.SIGKILL), code)
    done = run(config, parts)
    expect(done.returncode == 0, done.stderr)
    expect(bytes_of(parts) == bytes_of(whole), "the bits differ")
    expect(curve(parts) == curve(whole), "the curves differ")
    expect(len({e["run_id"] for e in events(parts, "setup")}) >= 3, events(parts, "setup"))


def check_faults(folder: Path, config: Path) -> None:
    out = folder / "faults"
    bad = folder / "bad.yaml"
    bad.write_text(CONFIG + "sav_every: 3\n", encoding="utf-8")
    done = run(bad, out)
    expect(done.returncode == 2 and 'did you mean "save_every"?' in done.stderr, done.stderr)
    expect(f"{bad}:" in done.stderr and not out.exists(), done.stderr)
    expect(run(config, out, "--resume", "nowhere").returncode == 2, "--resume nowhere")
    changed = folder / "changed.yaml"
    changed.write_text(CONFIG.replace("4.0e-3", "5.0e-3"), encoding="utf-8")
    done = run(changed, folder / "whole")
    expect(done.returncode == 2, done)
    expect("training.learning_rate: 0.004 -> 0.005" in done.stderr, done.stderr)


def check_full_disk(folder: Path, config: Path) -> None:
    """In a user namespace of its own, where a small disk can be mounted."""
    disk = folder / "disk"
    disk.mkdir()
    script = f"""
mount -t tmpfs -o size=6m none {disk} || exit 77
{POROS} train {config} -o {disk}/out 2>&1; first=$?
ls {disk}/out/checkpoints
mount -o remount,size=100m {disk}
{POROS} train {config} -o {disk}/out 2>&1; second=$?
cmp {disk}/out/adapter/adapter_model.safetensors {folder}/whole/adapter/adapter_model.safetensors \
  && echo "codes $first $second"
"""
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        print("  full disk: not tried, no user namespaces here")
        return
    expect("No space left" in done.stdout and "codes 1 0" in done.stdout, done.stdout + done.stderr)
    expect("goes on from" in done.stdout, done.stdout)


def check_demo(folder: Path) -> None:
    done = run(SOURCE / "configs/train/alice.yaml", folder / "demo", "--json")
    expect(done.returncode == 0, done.stderr)
    evals = [e["data"]["eval_perplexity"] for e in events(folder / "demo", "eval")]
    print(f"  held-out perplexity {evals[0]:.1f} -> {evals[-1]:.1f}")
    expect(evals[-1] <= 0.9 * evals[0], evals)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["POROS_CACHE_DIR"] = str(folder / "cache")
        if sys.argv[3:] == ["demo"]:
            check_demo(folder)
            return 0
        config = folder / "config.yaml"
        config.write_text(CONFIG, encoding="utf-8")
        check_stops(folder, config)
        check_faults(folder, config)
        check_full_disk(folder, config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
