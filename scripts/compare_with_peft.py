#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is our training the same training as peft's? A small real model learns for some hundred steps in
three ways from the same adapter and tokens: peft with one attention implementation, peft with
another, and our arms. peft's two runs differ only in the order of their sums, so their distance is
what rounding alone does; ours may be at most twice as far from peft.

    python scripts/compare_with_peft.py --output /tmp/compare               on a GPU
    python scripts/compare_with_peft.py --output /tmp/compare --device cpu --steps 30

The distance is the largest difference of the mean losses over 10 steps each. Needs the Python
packages of the arm peft (`poros doctor` says which). Exit code 1: too far, or a run failed.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WINDOW = 10  # steps of one mean
LIMIT = 2.0  # of the distance between peft's two runs


def write_spec(folder: Path, attention: str, methods: list[str], args: argparse.Namespace) -> Path:
    """A spec as JSON, which is YAML too. No dropout: its masks differ between libraries."""
    spec = {
        "spec_id": f"compare-{attention}",
        "device": args.device,
        "parity": "off",
        "models": [{"model_id": str(args.model.resolve()), "display_name": args.model.name}],
        "methods": methods,
        "precisions": ["nf4"],
        "training": {
            "steps": args.steps,
            "warmup_steps": 1,
            "n_passes": 1,
            "seq_len": args.seq_len,
            "batch_size": 1,
            "gradient_accumulation_steps": args.accumulation,
            "dataset": {"path": str(args.text.resolve()), "format": "text"},
            "learning_rate": 2e-4,
            "lr_scheduler": "constant",
            "seed": 42,
        },
        "lora": {"rank": 16, "alpha": 32, "dropout": 0.0},
        "poros": {"block_size": 1},
        "peers": {"peft": {"attn_implementation": attention}},
        "reporting": {"output_dir": str(folder / attention)},
    }
    path = folder / f"{attention}.yaml"
    path.write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    return path


def run(poros: Path, spec: Path, campaign: Path) -> dict[str, dict]:
    """Runs a spec, or goes on with it; the record of the first pass of each method."""
    subprocess.run([poros, "bench", "run", spec, "--output-dir", campaign], check=True)
    passes = {}
    for path in sorted(campaign.glob("*_nf4.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["status"] != "ok" or not record["passes"]:
            raise SystemExit(
                f"{record['method']}: {record['status']}, "
                f"{record.get('error_message') or record.get('reason')}"
            )
        artifact = campaign / record["passes"][0]["artifact_path"]
        passes[record["method"]] = json.loads(artifact.read_text(encoding="utf-8"))
    return passes


def window_means(losses: list[float]) -> list[float]:
    """Means over WINDOW steps each; a rest of fewer steps is left out."""
    if not all(math.isfinite(loss) for loss in losses):
        raise SystemExit("a loss is not finite")
    starts = range(0, len(losses) - WINDOW + 1, WINDOW)
    return [sum(losses[start : start + WINDOW]) / WINDOW for start in starts]


def distance(first: list[float], second: list[float]) -> float:
    """The largest distance of the window means."""
    if len(first) != len(second):
        raise SystemExit(f"runs of {len(first)} and {len(second)} windows can't be compared")
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of the campaigns")
    parser.add_argument("--poros", type=Path, default=ROOT / "build" / "bin" / "poros")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--model", type=Path, default=ROOT / "configs" / "models" / "kjv-qwen2")
    parser.add_argument("--text", type=Path, default=ROOT / "configs" / "data" / "alice.txt")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.steps < WINDOW:
        parser.error(f"--steps: at least {WINDOW}")
    return args


def main() -> int:
    args = parse_arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    passes = {}
    for attention, methods in [("sdpa", ["poros", "resident", "peft"]), ("eager", ["peft"])]:
        spec = write_spec(args.output, attention, methods, args)
        for method, made in run(args.poros, spec, args.output / attention).items():
            passes[f"{method}-{attention}" if method == "peft" else method] = made
    for name in ("token_sha256", "adapter_sha256"):
        if len({made[name] for made in passes.values()}) != 1:
            raise SystemExit(f"the runs differ in {name}")
    means = {name: window_means(made["steps"]["loss"]) for name, made in passes.items()}
    rounding = distance(means["peft-sdpa"], means["peft-eager"])
    ours = {name: distance(means[name], means["peft-sdpa"]) for name in ("poros", "resident")}
    good = all(far <= LIMIT * rounding for far in ours.values())
    result = {
        "steps": args.steps,
        "peft_sdpa_to_eager": rounding,
        "to_peft_sdpa": ours,
        "limit": LIMIT * rounding,
        "last_window_loss": {name: values[-1] for name, values in means.items()},
        "within_limit": good,
    }
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"largest distance of the means over {WINDOW} steps, {args.steps} steps:")
        print(f"  peft sdpa to peft eager  {rounding:.3e}")
        for name, far in ours.items():
            print(f"  {name:8} to peft sdpa     {far:.3e}  (limit {LIMIT * rounding:.3e})")
        print("within the limit" if good else "TOO FAR")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
