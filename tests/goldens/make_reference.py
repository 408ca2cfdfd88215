# SPDX-License-Identifier: Apache-2.0
"""Computes tests/goldens/reference with transformers and PEFT: fp32, CPU, eager attention.

    python tests/goldens/make_reference.py      (packages: scripts/requirements/peers-cpu.txt)

tests/goldens/reference/README.md says what the files hold. Variants (variants.py) are written anew
into tests/goldens/checkpoints; the checkpoints arch_* there are only read.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # PEFT would look up the checkpoint's name on the hub

import bitsandbytes
import numpy as np
import peft
import torch
import transformers
from bitsandbytes import functional
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src" / "peers")]

from poros_peers.token_file import (  # noqa: E402
    DOCUMENT_START,
    PADDING,
    SUPERVISED,
    TokenFile,
    read_token_file,
    token_file_bytes,
)
from variants import VARIANTS, write_variant  # noqa: E402

CHECKPOINTS, REFERENCE = HERE / "checkpoints", HERE / "reference"
SEQ_LEN, VOCAB = 24, 128
RANK, ALPHA = 2, 4.0
LEARNING_RATE, WEIGHT_DECAY, MAX_GRAD_NORM, STEPS = 1e-3, 0.01, 1.0, 5
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
DENSE = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
PHI3 = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
EXPERTS_CASE = "qwen3_moe_experts"  # checkpoint qwen3_moe_lively, adapters on every expert
PACKED_CASES = ("arch_llama", "mistral_window", "gemma2_window", "gemma3_window", "qwen2_window")
ADAMW_CASE = "arch_llama"
Tensors = dict[str, torch.Tensor]


def token_batch(packed: bool) -> TokenFile:
    """Two rows. Plain: a document each, the second padded. Packed: three and two documents."""
    ids = np.random.RandomState(7).randint(3, VOCAB, (2, SEQ_LEN)).astype(np.uint32)
    flags = np.full((2, SEQ_LEN), SUPERVISED, dtype=np.uint8)
    starts = [(0, 0), (1, 0)]
    if packed:
        starts += [(0, 9), (0, 20), (1, 13)]
    else:
        flags[0, 1:6] = 0  # a prompt: seen, not learned
    flags[1, 19:], ids[1, 19:] = PADDING, 0
    for row, column in starts:
        flags[row, column] = DOCUMENT_START
    return TokenFile(ids, flags, VOCAB, json.dumps({"packed": packed}))


def nf4_round_trip(weight: torch.Tensor) -> torch.Tensor:
    """What NF4 with double quantisation leaves of a matrix, fp32: decoded as one long row, since
    bitsandbytes' CPU path decodes rows that are no whole number of blocks wrongly."""
    flat = weight.float().reshape(1, -1).contiguous()
    codes, state = functional.quantize_4bit(flat, quant_type="nf4", compress_statistics=True)
    return functional.dequantize_4bit(codes, state).reshape(weight.shape)


def is_quantised(name: str, weight: torch.Tensor) -> bool:
    ends = ("embed_tokens", "lm_head", "mlp.gate", "block_sparse_moe.gate")
    return weight.dim() == 2 and not name.removesuffix(".weight").endswith(ends)


def load_model(folder: Path, nf4: bool) -> transformers.PreTrainedModel:
    """The checkpoint in fp32; with nf4 its linears (experts included) quantised and decoded."""
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    config = transformers.AutoConfig.from_pretrained(folder)
    if hasattr(config, "num_experts_per_tok"):
        options["experts_implementation"] = "eager"
    if not nf4:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    with tempfile.TemporaryDirectory() as scratch:
        tensors = load_file(folder / "model.safetensors")
        whole = {
            k: nf4_round_trip(t) if is_quantised(k, t) else t.float() for k, t in tensors.items()
        }
        save_file(whole, Path(scratch) / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(folder / "config.json", scratch)
        return transformers.AutoModelForCausalLM.from_pretrained(scratch, **options).eval()


def seeded_adapter(shapes: dict[str, tuple[int, ...]], seed: int) -> Tensors:
    """Non-zero A and B: uniform like PEFT's A, and normal with standard deviation 0.05."""
    generator = torch.Generator().manual_seed(seed)
    values: Tensors = {}
    for name in sorted(shapes):
        if ".lora_A." in name:
            bound = shapes[name][1] ** -0.5
            values[name] = (2 * torch.rand(shapes[name], generator=generator) - 1) * bound
        else:
            values[name] = 0.05 * torch.randn(shapes[name], generator=generator)
    return values


class Peft:
    """A model with PEFT's LoRA; `weights` are its trainable parameters by stored name."""

    def __init__(
        self, model: transformers.PreTrainedModel, lora: dict[str, Any], seed: int
    ) -> None:
        targets = DENSE
        if model.config.model_type == "phi3":
            targets = PHI3
        elif hasattr(model.config, "num_experts_per_tok"):
            targets = ATTENTION
        config = peft.LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules=targets, task_type="CAUSAL_LM", **lora
        )
        self.model = peft.get_peft_model(model, config).eval()
        named = self.model.named_parameters()
        self.weights = {n.replace(".default.", "."): p for n, p in named if p.requires_grad}
        values = seeded_adapter({n: tuple(p.shape) for n, p in self.weights.items()}, seed)
        with torch.no_grad():
            for name, parameter in self.weights.items():
                parameter.copy_(values[name])

    def logits(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs, use_cache=False).logits

    def save(self, folder: Path, checkpoint: str) -> None:
        self.model.peft_config["default"].base_model_name_or_path = checkpoint
        self.model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        path = folder / "adapter_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["target_modules"].sort()  # a set: its order differs from run to run
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class ExpertLora:
    """LoRA on the three linears of every expert, y = W x + s B A x, by effective weights W + s B A.

    transformers keeps experts as one fused parameter a layer, which PEFT can only adapt as a whole
    (one A for gate and up); here each linear has its own, under the name it has in the checkpoint.
    """

    def __init__(self, model: transformers.PreTrainedModel, seed: int) -> None:
        self.model, self.weights = model.requires_grad_(False), {}
        sizes = (model.config.hidden_size, model.config.moe_intermediate_size)
        shapes = {}
        for layer in range(model.config.num_hidden_layers):
            for expert in range(model.config.num_experts):
                for linear in ("gate_proj", "up_proj", "down_proj"):
                    inner, outer = sizes if linear != "down_proj" else sizes[::-1]
                    stem = self.stem(layer, expert, linear)
                    shapes[f"{stem}.lora_A.weight"] = (RANK, inner)
                    shapes[f"{stem}.lora_B.weight"] = (outer, RANK)
        values = seeded_adapter(shapes, seed)
        self.weights = {n: torch.nn.Parameter(v) for n, v in values.items()}

    @staticmethod
    def stem(layer: int, expert: int, linear: str) -> str:
        return f"base_model.model.model.layers.{layer}.mlp.experts.{expert}.{linear}"

    def delta(self, layer: int, linear: str) -> torch.Tensor:
        """[experts, out, in]"""
        stems = [self.stem(layer, e, linear) for e in range(self.model.config.num_experts)]
        a = torch.stack([self.weights[f"{s}.lora_A.weight"] for s in stems])
        b = torch.stack([self.weights[f"{s}.lora_B.weight"] for s in stems])
        return ALPHA / RANK * (b @ a)

    def logits(self, **inputs: torch.Tensor) -> torch.Tensor:
        effective = {}
        for layer in range(self.model.config.num_hidden_layers):
            stem = f"model.layers.{layer}.mlp.experts."
            deltas = {k: self.delta(layer, k) for k in ("gate_proj", "up_proj", "down_proj")}
            gate_up = torch.cat([deltas["gate_proj"], deltas["up_proj"]], dim=1)
            parameters = dict(self.model.named_parameters())
            effective[stem + "gate_up_proj"] = parameters[stem + "gate_up_proj"] + gate_up
            effective[stem + "down_proj"] = parameters[stem + "down_proj"] + deltas["down_proj"]
        call = torch.func.functional_call
        return call(self.model, effective, kwargs={**inputs, "use_cache": False}).logits

    def save(self, folder: Path, checkpoint: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": checkpoint,
            "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none",
            "target_modules": ["gate_proj", "up_proj", "down_proj"], "fan_in_fan_out": False,
            "inference_mode": True, "init_lora_weights": True, "use_dora": False,
            "use_rslora": False, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {},
        }  # fmt: skip
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        weights = {n: p.detach().clone() for n, p in self.weights.items()}
        save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def forward_backward(
    lora: Peft | ExpertLora, batch: TokenFile
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and mean loss over supervised tokens; leaves the gradients in lora.weights."""
    rows = np.arange(batch.rows)
    ids = torch.from_numpy(batch.ids.astype(np.int64))
    inputs = {"input_ids": ids}
    if batch.is_packed():  # restarting positions make transformers keep documents apart
        inputs["position_ids"] = torch.from_numpy(batch.positions(rows))
    for parameter in lora.weights.values():
        parameter.grad = None
    logits = lora.logits(**inputs)
    chosen = torch.from_numpy(batch.flags[:, 1:] & SUPERVISED > 0)
    loss = cross_entropy(logits[:, :-1][chosen].float(), ids[:, 1:][chosen])
    loss.backward()
    return logits.detach(), loss.detach()


def gradients(lora: Peft | ExpertLora) -> Tensors:
    return {n: p.grad.detach().clone() for n, p in lora.weights.items()}


def adamw_steps(lora: Peft | ExpertLora, batch: TokenFile, every_step: bool) -> Tensors:
    """Weights after STEPS steps of clipping and AdamW on one batch, at a constant rate."""
    optimizer = torch.optim.AdamW(
        lora.weights.values(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
    )
    kept: Tensors = {}
    for step in range(1, STEPS + 1):
        _, loss = forward_backward(lora, batch)
        if every_step:
            kept |= {f"step{step}.gradient.{n}": t for n, t in gradients(lora).items()}
        norm = torch.nn.utils.clip_grad_norm_(lora.weights.values(), MAX_GRAD_NORM)
        optimizer.step()
        kept |= {f"step{step}.loss": loss, f"step{step}.grad_norm": norm.detach()}
        if every_step or step == STEPS:
            for name, parameter in lora.weights.items():
                kept[f"step{step}.weight.{name}"] = parameter.detach().clone()
        if every_step and step == STEPS:
            for name, parameter in lora.weights.items():
                for moment in ("exp_avg", "exp_avg_sq"):
                    kept[f"step{step}.{moment}.{name}"] = optimizer.state[parameter][moment]
    return kept


def make_lora(case: str, checkpoint: str, nf4: bool) -> Peft | ExpertLora:
    model = load_model(CHECKPOINTS / checkpoint, nf4)
    seed = zlib.crc32(case.encode())
    if case == EXPERTS_CASE:
        return ExpertLora(model, seed)
    settings = VARIANTS[checkpoint].lora if checkpoint in VARIANTS else {}
    return Peft(model, settings, seed)


def make_case(case: str, checkpoint: str, batches: dict[str, TokenFile]) -> None:
    folder = REFERENCE / case
    tensors: Tensors = {}
    for base in ("fp32", "nf4"):
        for kind, batch in batches.items():
            if kind == "packed" and (case not in PACKED_CASES or base == "nf4"):
                continue
            lora = make_lora(case, checkpoint, nf4=base == "nf4")
            if base == "fp32" and kind == "plain":
                lora.save(folder / "adapter", checkpoint)
            logits, loss = forward_backward(lora, batch)
            stem = f"{base}.{kind}"
            tensors |= {f"{stem}.logits": logits, f"{stem}.loss": loss}
            tensors |= {f"{stem}.gradient.{n}": t for n, t in gradients(lora).items()}
    lora = make_lora(case, checkpoint, nf4=False)
    steps = adamw_steps(lora, batches["plain"], every_step=case == ADAMW_CASE)
    tensors |= {f"fp32.plain.{n}": t for n, t in steps.items()}
    bad = [n for n, t in tensors.items() if not torch.isfinite(t).all()]
    if bad:
        raise SystemExit(f"{case}: not finite: {bad}")
    note = {
        "checkpoint": checkpoint,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "bitsandbytes": bitsandbytes.__version__,
    }
    whole = {n: t.detach().reshape(t.shape or (1,)).contiguous() for n, t in tensors.items()}
    save_file(whole, folder / "reference.safetensors", metadata={"note": json.dumps(note)})
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # the library makes files that only their owner can read
    losses = {n: round(float(t), 4) for n, t in tensors.items() if n.endswith(".loss")}
    print(case, losses, flush=True)


def main() -> None:
    torch.set_num_threads(1)
    REFERENCE.mkdir(exist_ok=True)
    for name in VARIANTS:
        write_variant(CHECKPOINTS, name)
    batches = {}
    for kind in ("plain", "packed"):
        path = REFERENCE / f"{kind}.tokens"
        path.write_bytes(token_file_bytes(token_batch(kind == "packed")))
        batches[kind] = read_token_file(path)
    cases = {p.name: p.name for p in sorted(CHECKPOINTS.iterdir()) if p.name.startswith("arch_")}
    cases |= {name: name for name in VARIANTS} | {EXPERTS_CASE: "qwen3_moe_lively"}
    for case, checkpoint in cases.items():
        make_case(case, checkpoint, batches)


if __name__ == "__main__":
    main()
