#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""configs/bench/demo_matrix.yaml over four ranks leaves the records of one process.

demo_matrix_test.py --poros PROGRAM

The records are compared field by field; what a clock or the machine's memory decides is left out
and listed below. Ends with 77 where mpirun or the Python environments of scripts/bootstrap.sh are
missing.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = ROOT / "configs" / "bench" / "demo_matrix.yaml"
SKIPPED = 77
RANKS = 4

# Times, memory, and what follows from them.
MEASURED = re.compile(
    r"s_per_step|tok_per_sec|^load_s$|slowdown|vram_(peak|avg|saved|resident|poros|unsloth)"
    r"|host_rss|reserved|allocated|timestamp|^started_at$|^finished_at$|_s$|sha256$|_mb$"
)
# Where it ran, and the order in which records came.
PLACE = {"seq", "epoch", "run_id", "host", "flags", "reason", "environment", "driver", "device"}


def lasting(value: Any, name: str = "") -> Any:
    """The value without what differs from run to run."""
    if isinstance(value, dict):
        return {
            key: lasting(item, key)
            for key, item in sorted(value.items())
            if key not in PLACE and (not MEASURED.search(key) or key == "token_sha256")
        }
    if isinstance(value, list):
        return [lasting(item) for item in value]
    return value


def records(folder: pathlib.Path) -> dict[str, Any]:
    """Every record by what it is: receipt and the file that it names."""
    found: dict[str, Any] = {}
    for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines():
        receipt = json.loads(line)
        name = " ".join(
            str(receipt.get(key, "")) for key in ("kind", "key", "purpose", "pass", "attempt")
        )
        artifact = json.loads((folder / receipt["artifact_path"]).read_text(encoding="utf-8"))
        assert name not in found, f"{name}: recorded twice"
        found[name] = {"receipt": lasting(receipt), "artifact": lasting(artifact)}
    return found


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths at which two values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted(set(a) | set(b))
        return [
            text for key in keys for text in differences(a.get(key), b.get(key), f"{path}/{key}")
        ]
    return [] if a == b else [f"{path}: {str(a)[:200]} and {str(b)[:200]}"]


def run(command: list[str], environment: dict[str, str]) -> None:
    """Runs a command that must end well."""
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert result.returncode == 0, f"{command}: {result.returncode}\n{result.stdout}{result.stderr}"


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--poros", required=True)
    program = parser.parse_args().poros
    deps = ROOT / ".deps"
    python = os.environ.get("POROS_PYTHON") or str(deps / "python" / "bin" / "python")
    peers = os.environ.get("POROS_PEERS_PYTHON") or str(deps / "peers" / "bin" / "python")
    for needed in ("mpirun", python, peers):
        if shutil.which(needed) is None:
            print(f"skipped: {needed} is missing")
            return SKIPPED
    with tempfile.TemporaryDirectory(prefix="poros-demo-matrix.") as name:
        folder = pathlib.Path(name)
        environment = os.environ | {
            "POROS_PYTHON": python,
            "POROS_PEERS_PYTHON": peers,
            "POROS_CACHE_DIR": str(folder / "cache"),
            "POROS_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        alone, ranks = folder / "alone", folder / "ranks"
        command = [program, "bench", "matrix", str(SPEC), "--plain", "--output-dir"]
        run([*command, str(alone)], environment)
        mpirun = ["mpirun", "-n", str(RANKS), "--oversubscribe"]
        run([*mpirun, *command, str(ranks)], environment)

        expected, found = records(alone), records(ranks)
        cells = [value for key, value in expected.items() if key.startswith("cell ")]
        assert len(cells) == 12, f"{len(cells)} cells"
        bad = [cell["receipt"] for cell in cells if cell["receipt"]["status"] != "ok"]
        assert not bad, f"cells that did not end ok: {bad}"
        wrong = differences(expected, found)
        assert not wrong, "\n".join(wrong[:20])
        print(f"{len(expected)} records of {RANKS} ranks are those of one process")
        agrees = [python, str(pathlib.Path(__file__).with_name("h5_agrees.py"))]
        run([*agrees, str(alone), str(ranks)], environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
