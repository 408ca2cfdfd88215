# SPDX-License-Identifier: Apache-2.0
"""Adapters between this project and a live PEFT: the same logits, in fp32 on the CPU.

    python tests/peft/adapter_logits_test.py build/tests/adapter_logits [WORD IN THE CASE'S NAME]

Ours: our program writes an adapter, PeftModel.from_pretrained loads it. Theirs: PEFT writes one, our
program reads it and writes it again, and PEFT loads that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # PEFT would look up the checkpoint's name on the hub

try:
    import numpy as np
    import peft
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error} (scripts/bootstrap.sh --peers installs it)")
    sys.exit(77)

from adapter_cases import ALPHA, CHECKPOINTS, OURS, RANK, THEIRS, Case

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "checkpoints"
TOLERANCE = 1e-5  # of the largest logit
MUST_MOVE = 1e-2  # an adapter that changes less than this tests nothing
IDS = torch.randint(3, 128, (2, 12), generator=torch.Generator().manual_seed(1))


def make_mixed(folder: Path) -> None:
    """Qwen3-MoE whose layer 0 is dense."""
    config = transformers.AutoConfig.from_pretrained(GOLDENS / "qwen3_moe_lively")
    config.mlp_only_layers, config.intermediate_size = [0], 80
    _save(transformers.Qwen3MoeForCausalLM(config), folder)


def make_gemma3(folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """A multimodal Gemma 3 with a tiny vision tower whose linears are called like the text's."""
    text = transformers.AutoConfig.from_pretrained(GOLDENS / "gemma3_window").to_dict()
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, boi_token_index=124,
        eoi_token_index=125, image_token_index=126,
    )  # fmt: skip
    _save(transformers.Gemma3ForConditionalGeneration(config), folder, dtype)


def _save(
    model: transformers.PreTrainedModel, folder: Path, dtype: torch.dtype = torch.float32
) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.25 if parameter.dim() == 1 else 0.1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    model.to(dtype).save_pretrained(folder)


class Runner:
    def __init__(self, program: str, scratch: Path) -> None:
        self.program, self.scratch = program, scratch
        self.base_logits: dict[str, torch.Tensor] = {}
        self.checkpoints: dict[str, Path] = {}
        for model, name in CHECKPOINTS.items():
            self.checkpoints[model] = GOLDENS / name
            if name.startswith("made:"):
                self.checkpoints[model] = scratch / name.removeprefix("made:")
        make_mixed(self.checkpoints["qwen3_moe_mixed"])
        make_gemma3(self.checkpoints["gemma3"])

    def model(self, name: str) -> transformers.PreTrainedModel:
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        if "moe" in name or name == "mixtral":
            options["experts_implementation"] = "eager"
        kind = transformers.AutoModelForCausalLM
        if name == "gemma3":
            kind = transformers.Gemma3ForConditionalGeneration
        return kind.from_pretrained(self.checkpoints[name], **options).eval()

    def base(self, name: str) -> torch.Tensor:
        if name not in self.base_logits:
            self.base_logits[name] = logits(self.model(name))
        return self.base_logits[name]

    def load(self, case: Case, adapter: Path) -> torch.Tensor:
        """PEFT's logits; fails when it says that tensors were missing."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model = peft.PeftModel.from_pretrained(self.model(case.model), adapter).eval()
        for warning in said:
            if "missing adapter keys" in str(warning.message).lower() and not case.fills:
                raise AssertionError(str(warning.message)[:300])
        return logits(model)

    def make(self, case: Case, folder: Path) -> torch.Tensor:
        """Writes PEFT's own adapter, with random A and B; its logits."""
        alpha = {"r": RANK, "lora_alpha": ALPHA, "task_type": "CAUSAL_LM"}
        model = peft.get_peft_model(self.model(case.model), peft.LoraConfig(**alpha, **case.peft))
        generator = torch.Generator().manual_seed(9)
        with torch.no_grad():
            for _, parameter in sorted(model.named_parameters()):
                if parameter.requires_grad:
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.copy_(noise * 0.1)
        model.eval().save_pretrained(folder)
        return logits(model)

    def program_answers(self, cases: list[dict[str, Any]]) -> None:
        path = self.scratch / "cases.json"
        path.write_text(json.dumps(cases))
        subprocess.run([self.program, str(path)], check=True, timeout=240)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits.float()


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of the largest wanted value; infinite where something isn't finite."""
    if not (torch.isfinite(got).all() and torch.isfinite(wanted).all()):
        return float("inf")
    return float((got - wanted).abs().max() / wanted.abs().max())


def check(case: Case, kind: str, answer: dict[str, Any], pairs: Any, base: torch.Tensor) -> str:
    """What is wrong with a case; empty when nothing is."""
    if case.refused:
        said = answer.get("refused", "accepted")
        return "" if case.refused in said else f'expected "{case.refused}": {said}'
    if "refused" in answer:
        return answer["refused"]
    own = torch.from_numpy(np.fromfile(answer["logits"], dtype=np.float32)).reshape(base.shape)
    worst = 0.0
    for what, theirs in pairs():
        worst = max(worst, difference(own, theirs))
        if not difference(own, theirs) <= TOLERANCE:
            return f"{what}: differs by {difference(own, theirs):.2e}"
    if not difference(base, own) >= MUST_MOVE:
        return f"the adapter changes nothing ({difference(base, own):.1e})"
    print(f"ok   {kind} {case.model} {case.name} {worst:.1e}")
    return ""


def main() -> int:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Could not find a config file")
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    word = sys.argv[2] if len(sys.argv) > 2 else ""
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        runner = Runner(sys.argv[1], Path(scratch))
        work, made = [], {}
        for kind, cases in (("ours", OURS), ("theirs", THEIRS)):
            for case in cases:
                if word not in f"{kind} {case.model} {case.name}":
                    continue
                stem = Path(scratch) / f"{kind}-{case.model}-{case.name}"
                entry = {
                    "checkpoint": str(runner.checkpoints[case.model]),
                    "ids": IDS.tolist(),
                    "adapter": str(stem),
                    "out": f"{stem}.json",
                }
                if kind == "ours":
                    entry["lora"] = {"rank": RANK, "alpha": ALPHA} | (case.lora or {})
                else:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        made[str(stem)] = runner.make(case, stem)
                    entry["again"] = f"{stem}-again"
                work.append((kind, case, entry))
        runner.program_answers([entry for _, _, entry in work])
        for kind, case, entry in work:
            answer = json.loads(Path(entry["out"]).read_text())

            def pairs(entry: dict[str, Any] = entry, case: Case = case) -> Any:
                if "lora" in entry:
                    yield "PEFT with our adapter", runner.load(case, Path(entry["adapter"]))
                    return
                yield "our reading", made[entry["adapter"]]
                yield "PEFT with what we wrote again", runner.load(case, Path(entry["again"]))

            try:
                wrong = check(case, kind, answer, pairs, runner.base(case.model))
            except Exception as error:  # noqa: BLE001 PEFT raises many kinds; each is a failed case
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                failures += 1
                print(f"FAIL {kind} {case.model} {case.name}: {wrong[:600]}")
    print(f"{len(work)} cases, {failures} failed")
    return 1 if failures or not work else 0


if __name__ == "__main__":
    sys.exit(main())
