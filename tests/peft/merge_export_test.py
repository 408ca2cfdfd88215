# SPDX-License-Identifier: Apache-2.0
"""`poros export`: transformers loads the merged checkpoint and computes what PEFT does with the
adapter, for every architecture.

    python tests/peft/merge_export_test.py build/tests/adapter_logits build/bin/poros [MODEL]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error} (scripts/bootstrap.sh --peers installs it)")
    sys.exit(77)

from adapter_cases import ALPHA, CHECKPOINTS, MOE, RANK, Case
from adapter_logits_test import IDS, Runner, difference, logits

TOLERANCE = 1e-5  # of the largest logit, in fp32
MUST_MOVE = 1e-2


def settings(model: str) -> dict[str, Any]:
    """All linears with rslora and patterns; experts too, alike within a layer."""
    lora: dict[str, Any] = {"rank": RANK, "alpha": ALPHA, "use_rslora": True}
    last = {"phi3": "o_proj"}.get(model, "q_proj")
    lora["rank_pattern"] = {last: 2}
    lora["alpha_pattern"] = {rf"layers\.1\..*\.{last}": 3.25}
    experts = MOE.get(model.removesuffix("_mixed"))
    if experts is None:
        lora["target_modules"] = ["all-linear"]
    else:
        lora["target_modules"] = ["q_proj", "o_proj", *experts]
    return lora


def load(runner: Runner, model: str, folder: Path) -> torch.Tensor:
    """Logits of a checkpoint; fails when transformers misses a tensor or has one too many."""
    kind = transformers.AutoModelForCausalLM
    if model == "gemma3":
        kind = transformers.Gemma3ForConditionalGeneration
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    if "moe" in model or model == "mixtral":
        options["experts_implementation"] = "eager"
    loaded, info = kind.from_pretrained(folder, output_loading_info=True, **options)
    wrong = {key: value for key, value in info.items() if value}
    if wrong:
        raise AssertionError(f"loading says {wrong}")
    return logits(loaded.eval())


def check(runner: Runner, program: str, model: str, adapter: Path, scratch: Path) -> str:
    """What is wrong; empty when nothing is."""
    wanted = runner.load(Case(model, "merge", fills=True), adapter)
    if difference(wanted, runner.base(model)) < MUST_MOVE:
        return "the adapter changes nothing"
    out = scratch / f"{model}-merged"
    done = subprocess.run(
        [program, "export", "--model", str(runner.checkpoints[model]), "--adapter", str(adapter),
         "-o", str(out), "--dtype", "fp32", "--max-shard-size", "100KB", "--json"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if done.returncode != 0:
        return done.stderr
    report = json.loads(done.stdout)
    if report["files"] < 2 or not (out / "model.safetensors.index.json").exists():
        return f"is not sharded: {report}"
    off = difference(load(runner, model, out), wanted)
    if not off < TOLERANCE:
        return f"logits differ by {off:.2e}"
    print(f"ok   {model}: {report['merged']} of {report['tensors']} tensors merged, {off:.1e}")
    return ""


def main() -> int:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    failures = 0
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        os.environ["POROS_CACHE_DIR"] = str(scratch / "cache")
        runner = Runner(sys.argv[1], scratch)
        models = [m for m in CHECKPOINTS if len(sys.argv) < 4 or m == sys.argv[3]]
        entries = [
            {
                "checkpoint": str(runner.checkpoints[model]),
                "ids": IDS.tolist(),
                "adapter": str(scratch / f"{model}-adapter"),
                "out": str(scratch / f"{model}.json"),
                "lora": settings(model),
            }
            for model in models
        ]
        runner.program_answers(entries)
        for model, entry in zip(models, entries, strict=True):
            answer = json.loads(Path(entry["out"]).read_text())
            try:
                wrong = answer.get("refused") or check(
                    runner, sys.argv[2], model, Path(entry["adapter"]), scratch
                )
            except Exception as error:  # noqa: BLE001 the libraries raise many kinds
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                failures += 1
                print(f"FAIL {model}: {wrong[:800]}")
    print(f"{len(models)} models, {failures} failed")
    return 1 if failures or not models else 0


if __name__ == "__main__":
    sys.exit(main())
