# SPDX-License-Identifier: Apache-2.0
"""Our NF4 checkpoints, loaded by transformers + bitsandbytes, give the same bits back.

    python tests/peft/export_bits_test.py build/tests/export_checkpoint

For each architecture, with and without double quantisation: every tensor of our file comes back from
the loaded model unchanged, and equals what bitsandbytes makes of the 16-bit checkpoint itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

try:
    import bitsandbytes
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error} (scripts/bootstrap.sh --peers installs it)")
    sys.exit(77)

from adapter_logits_test import GOLDENS, make_gemma3

CHECKPOINTS = sorted(p.name for p in GOLDENS.iterdir() if (p / "config.json").exists())
NESTED = "gemma3 with a vision tower"
Tensors = dict[str, torch.Tensor]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def stored(folder: Path) -> Tensors:
    """All tensors of a checkpoint of one file."""
    return load_file(folder / "model.safetensors")


def load(folder: Path, config: object = None) -> transformers.PreTrainedModel:
    options = {} if config is None else {"quantization_config": config}
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager", device_map="cpu", **options
    )


def state(model: transformers.PreTrainedModel) -> Tensors:
    """The model's tensors (of NF4 linears as bitsandbytes stores them), under stored names."""
    tensors = {}
    tied = model.config.get_text_config().tie_word_embeddings
    mixtral = model.config.model_type == "mixtral"
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        if mixtral:
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensor
            continue
        stem, _, fused = name.rpartition(".")
        names = ("gate_proj", "up_proj", "down_proj") if not mixtral else ("w1", "w3", "w2")
        for expert, matrix in enumerate(tensor):
            parts = [matrix] if fused == "down_proj" else matrix.chunk(2)
            for part, last in zip(parts, names[2:] if fused == "down_proj" else names[:2]):
                tensors[f"{stem}.{expert}.{last}.weight"] = part
    return tensors


def unequal(one: Tensors, other: Tensors) -> list[str]:
    """Names of tensors that are in one of them only, or differ in a bit."""
    names = set(one) ^ set(other)
    for name in set(one) & set(other):
        a, b = one[name], other[name]
        if a.dtype != b.dtype or a.shape != b.shape or raw(a) != raw(b):
            names.add(name)
    return sorted(names)


def check(program: str, name: str, checkpoint: Path, precision: str, scratch: Path) -> str:
    """What is wrong; empty when nothing is."""
    out = scratch / f"{name}-{precision}"
    subprocess.run([program, checkpoint, precision, out], check=True, stdout=subprocess.DEVNULL)
    ours = stored(out)
    model = load(out)
    linears = [m for m in model.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]
    if not linears or any(m.weight.quant_state is None for m in linears):
        return "no linear was loaded as NF4"
    if model.config.quantization_config.bnb_4bit_use_double_quant != (precision == "nf4"):
        return "quantization_config does not say what is stored"
    if wrong := unequal(ours, state(model)):
        return f"come back changed: {wrong[:5]}"
    experts = [n for n in ours if ".experts." in n]
    if any(ours[n].dtype != torch.bfloat16 for n in experts):
        return "experts are not bf16"
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=precision == "nf4",
    )  # fmt: skip
    theirs = {n: t for n, t in state(load(checkpoint, config)).items() if ".experts." not in n}
    if name == NESTED:  # of which we write the text part alone
        text = "model.language_model."
        theirs = {n.replace(text, "model."): t for n, t in theirs.items() if n.startswith(text)}
    plain = {n: t for n, t in ours.items() if ".experts." not in n}
    if wrong := unequal(plain, theirs):
        return f"differ from bitsandbytes' own: {wrong[:5]}"
    print(f"ok   {name} {precision}: {len(linears)} linears, {len(ours)} tensors")
    return ""


def main() -> int:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    failures = 0
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        nested = scratch / "gemma3"
        make_gemma3(nested, torch.bfloat16)
        cases = [(n, GOLDENS / n) for n in CHECKPOINTS] + [(NESTED, nested)]
        for name, checkpoint in cases:
            for precision in ("nf4", "nf4-single"):
                try:
                    wrong = check(sys.argv[1], name, checkpoint, precision, scratch)
                except Exception as error:  # noqa: BLE001 the libraries raise many kinds
                    wrong = f"{type(error).__name__}: {error}"
                if wrong:
                    failures += 1
                    print(f"FAIL {name} {precision}: {wrong[:600]}")
    print(f"{2 * len(cases)} checkpoints, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
