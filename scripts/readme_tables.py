#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the README's table of ready-made specs, or with --check says whether it is what the specs say.

readme_tables.py --poros build/bin/poros [--check]

Each row is what `poros bench plan` makes of a file; device memory and time are its estimates.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- specs: scripts/readme_tables.py -->", "<!-- end of specs -->"


def plan_of(poros: str, spec: pathlib.Path) -> dict:
    done = subprocess.run([poros, "bench", "plan", spec, "--json"], text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def listed(values: list[str]) -> str:
    """Each value once, in the order in which they come."""
    return ", ".join(dict.fromkeys(values))


def shown_gpu(name: str) -> str:
    return "any GPU" if name == "unknown" else name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def row_of(spec: pathlib.Path, plan: dict) -> str:
    cells = plan["cells"]
    gpus = ["CPU" if cell["device"] == "cpu" else shown_gpu(cell["gpu_name"]) for cell in cells]
    own = [cell["estimate"]["vram_bytes"] for cell in cells
           if cell["method"] == "poros" and cell["estimate"]["vram_bytes"] is not None]
    memory = "--" if not own else f"{max(own) / 1e9:.1f}"
    hours = list(plan["gpu_hours"].values())
    total = "--" if None in hours else f"{sum(hours):.1f}"
    name = spec.relative_to(ROOT)
    return (f"| [{name}]({name}) | {listed([cell['display_name'] for cell in cells])} "
            f"| {listed([cell['method'] for cell in cells])} | {listed(gpus)} | {len(cells)} "
            f"| {memory} | {total} |")


def table(poros: str) -> str:
    specs = sorted((ROOT / "configs" / "bench").glob("*.yaml")) + \
        sorted((ROOT / "campaigns").glob("*.yaml"))
    lines = ["| spec | models | methods | on | cells | poros device GB, most (estimate) "
             "| GPU hours (estimate) |", "|---|---|---|---|---|---|---|"]
    lines += [row_of(spec, plan_of(poros, spec)) for spec in specs]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--poros", required=True)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    new = f"{text[:begin]}\n{table(arguments.poros)}\n{text[end:]}"
    if new == text:
        return
    if arguments.check:
        sys.exit(f"{readme}: its table of specs is not what the specs say; run "
                 "scripts/readme_tables.py --poros build/bin/poros")
    readme.write_text(new)


if __name__ == "__main__":
    main()
