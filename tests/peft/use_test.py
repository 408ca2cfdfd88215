# SPDX-License-Identifier: Apache-2.0
"""`poros eval`, `poros export` and `poros generate` on the demo model, against transformers + peft.

    python tests/peft/use_test.py build/bin/poros build/tests/train_adapter
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

try:
    import peft
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error} (scripts/bootstrap.sh --peers installs it)")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src" / "peers"))
from poros_peers import tokenise  # noqa: E402 found by the path above
from poros_peers.token_file import PADDING, read_token_file  # noqa: E402
from poros_peers.token_request import request_from_json  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "configs" / "models" / "kjv-qwen2"
TEXT = ROOT / "configs" / "data" / "alice.txt"
PROMPTS = ["And it came to pass", "Alice was beginning", "In the beginning God", "1"]
PERPLEXITY = 1e-3  # relative
STEPS = 40  # of the fine-tuning
LOSS = 1e-3  # [nat], of an export rounded to bf16
Rows = list[tuple[list[int], int]]  # ids, and how many of them are the prompt


class Use:
    def __init__(self, program: str, scratch: Path) -> None:
        self.program, self.scratch = program, scratch
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
        self.base = self.load(MODEL)
        self.adapter = scratch / "adapter"
        self.adapted = self.with_adapter()
        paragraphs = [p.replace("\n", " ") for p in TEXT.read_text().split("\n\n") if p.strip()]
        self.paragraphs = [p for p in paragraphs if 40 < len(p) < 900][:24]

    def load(self, folder: Path) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def with_adapter(self) -> Any:
        config = peft.LoraConfig(
            r=4, lora_alpha=8, use_rslora=True, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        torch.manual_seed(3)
        model = peft.get_peft_model(self.load(MODEL), config)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.08)
        model.save_pretrained(self.adapter)
        return model.eval()

    def poros(self, *arguments: Any) -> dict[str, Any]:
        command = [self.program, *(str(a) for a in arguments), "--json"]
        if command[1] != "export":
            command += ["--device", "cpu"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            raise AssertionError(f"{command[1]}: exit code {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def eval(self, data: Path, *arguments: Any) -> dict[str, Any]:
        return self.poros("eval", "--model", MODEL, "--data", data, *arguments)

    def loss(self, model: Any, rows: Rows) -> float:
        """Mean over the predicted tokens behind each row's prompt [nat]."""
        total, count = 0.0, 0
        for ids, prompt in rows:
            tokens = torch.tensor([ids])
            with torch.no_grad():
                found = model(input_ids=tokens).logits[0, prompt - 1 : -1].double()
            wanted = tokens[0, prompt:]
            total += float(torch.nn.functional.cross_entropy(found, wanted, reduction="sum"))
            count += len(wanted)
        return total / count

    def written(self, name: str, records: list[dict[str, str]]) -> Path:
        path = self.scratch / name
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
        return path

    def texts(self) -> tuple[Path, Rows]:
        data = self.written("texts.jsonl", [{"text": p} for p in self.paragraphs])
        return data, [(self.tokenizer(p).input_ids, 1) for p in self.paragraphs]


def near(what: str, got: float, wanted: float, tolerance: float) -> None:
    print(f"{what}: {got:.6f}, wanted {wanted:.6f}")
    if not abs(got - wanted) <= tolerance:
        raise AssertionError(f"{what}: {got}, wanted {wanted} within {tolerance}")


def check_eval(use: Use) -> None:
    data, rows = use.texts()
    got = use.eval(data, "--precision", "fp32", "--adapter", use.adapter, "--compare")
    base, adapted = (math.exp(use.loss(m, rows)) for m in (use.base, use.adapted))
    assert got["tokens"] == sum(len(ids) - 1 for ids, _ in rows)
    near("perplexity of the base", got["base"]["perplexity"], base, PERPLEXITY * base)
    near("perplexity with the adapter", got["perplexity"], adapted, PERPLEXITY * adapted)
    near("their ratio", got["perplexity_ratio"], adapted / base, PERPLEXITY)
    assert abs(adapted / base - 1) > 10 * PERPLEXITY, "the adapter changes nothing"


def check_eval_of_answers(use: Use) -> None:
    records, rows = [], []
    for paragraph in use.paragraphs:
        cut = paragraph.index(" ", len(paragraph) // 2)
        prompt, answer = paragraph[:cut], paragraph[cut:]
        records.append({"prompt": prompt, "completion": answer})
        before = use.tokenizer(prompt).input_ids
        ids = use.tokenizer(paragraph).input_ids
        assert ids[: len(before)] == before  # cut between words, it stays the beginning
        rows.append((ids + [use.tokenizer.eos_token_id], len(before)))
    got = use.eval(use.written("answers.jsonl", records), "--precision", "fp32")
    assert got["tokens"] == sum(len(ids) - prompt for ids, prompt in rows)
    wanted = math.exp(use.loss(use.base, rows))
    near("perplexity of answers", got["perplexity"], wanted, PERPLEXITY * wanted)


def check_export(use: Use) -> None:
    data, rows = use.texts()
    for base, dtype in (("checkpoint", "bf16"), ("nf4", "fp32"), ("nf4", "bf16")):
        out = use.scratch / f"merged-{base}-{dtype}"
        report = use.poros("export", "--model", MODEL, "--adapter", use.adapter, "-o", out,
                           "--base", base, "--dtype", dtype)  # fmt: skip
        assert report["merged"] == 42, report
        precision = "fp32" if base == "checkpoint" else "nf4"
        trained = use.eval(data, "--precision", precision, "--adapter", use.adapter)["loss"]
        near(f"loss of the export, {base}, {dtype}", use.loss(use.load(out), rows), trained, LOSS)
        assert transformers.AutoTokenizer.from_pretrained(out)("a b").input_ids


def check_fine_tuning(use: Use) -> None:
    """Trained on nine tenths of the shipped text, the model knows the last tenth better."""
    request = {
        "v": 1, "model_dir": str(MODEL), "inputs_dir": str(use.scratch / "inputs"),
        "training": {"seq_len": 256, "batch_size": 1, "gradient_accumulation_steps": 4,
                     "steps": STEPS, "seed": 1,
                     "dataset": {"source": str(TEXT), "validation_fraction": 0.1}},
    }  # fmt: skip
    made = tokenise.write(request_from_json("test", request))
    adapter = use.scratch / "trained"
    subprocess.run([sys.argv[2], MODEL, made["path"], str(STEPS), adapter], check=True, timeout=240,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    tokens = made["validation"]["path"]
    got = use.poros("eval", "--model", MODEL, "--tokens", tokens, "--adapter", adapter, "--compare",
                    "--precision", "bf16")  # fmt: skip
    print(f"held-out perplexity {got['base']['perplexity']:.2f} -> {got['perplexity']:.2f}")
    assert got["perplexity_ratio"] < 0.9, got["perplexity_ratio"]
    held_out = read_token_file(Path(tokens))
    rows = [(row[flags != PADDING].tolist(), 1)
            for row, flags in zip(held_out.ids, held_out.flags, strict=True)]  # fmt: skip
    model = peft.PeftModel.from_pretrained(use.load(MODEL), adapter).eval()
    wanted = math.exp(use.loss(model, rows))
    near("the same by transformers", got["perplexity"], wanted, PERPLEXITY * wanted)
    out = use.scratch / "trained-merged"
    use.poros("export", "--model", MODEL, "--adapter", adapter, "-o", out)
    near("loss of the export", use.loss(use.load(out), rows), got["loss"], LOSS)
    text = use.poros("generate", "--model", MODEL, "--adapter", adapter, "--prompt", "Alice",
                     "--max-new-tokens", 24)["text"]  # fmt: skip
    assert text.strip()
    print(f"Alice{text!r}")


def check_generate(use: Use) -> None:
    for model, adapter in ((use.base, []), (use.adapted, ["--adapter", use.adapter])):
        for prompt in PROMPTS:
            got = use.poros("generate", "--model", MODEL, "--prompt", prompt, "--precision", "fp32",
                            "--max-new-tokens", 24, *adapter)  # fmt: skip
            ids = use.tokenizer(prompt, return_tensors="pt").input_ids
            with torch.no_grad():
                wanted = model.generate(
                    input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                    max_new_tokens=24,
                )[0].tolist()  # fmt: skip
            assert got["prompt_ids"] + got["ids"] == wanted, (prompt, got, wanted)
            decoded = use.tokenizer.decode(wanted[ids.shape[1] :], skip_special_tokens=True)
            assert got["text"] == decoded
            print(f"{prompt}{got['text']!r}")
    drawn = [
        use.poros("generate", "--model", MODEL, "--prompt", PROMPTS[0], "--temperature", 1,
                  "--top-p", 0.9, "--seed", seed, "--max-new-tokens", 12)["ids"]
        for seed in (1, 1, 2)
    ]  # fmt: skip
    assert drawn[0] == drawn[1] != drawn[2], drawn


def main() -> int:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    failures = 0
    with tempfile.TemporaryDirectory() as made:
        os.environ["POROS_CACHE_DIR"] = str(Path(made) / "cache")
        use = Use(sys.argv[1], Path(made))
        checks = [check_eval, check_eval_of_answers, check_export, check_generate]
        for check in [*checks, check_fine_tuning]:
            try:
                check(use)
                print(f"ok   {check.__name__}")
            except AssertionError as error:
                failures += 1
                print(f"FAIL {check.__name__}: {error}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
