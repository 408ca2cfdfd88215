# SPDX-License-Identifier: Apache-2.0
"""The arm `unsloth`: FastLanguageModel with its own kernels and its own checkpointing.

    python -m poros_peers.unsloth REQUEST.json

unsloth changes transformers and PEFT when it is imported, so it comes before both. The adapter is
made by its get_peft_model, which puts its fast paths in, and then given the request's values.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import peft, protocol
from .errors import InputError
from .protocol import Events, Skipped
from .record import Record, file_sha256, versions_of, weights_of
from .request import Request

if TYPE_CHECKING:
    import torch

METHOD = "unsloth"
PACKAGES = ("torch",)  # the others after it was seen that there is a GPU: unsloth asks for one
LATER_PACKAGES = ("unsloth", "unsloth_zoo", "transformers", "accelerate", "bitsandbytes", "peft")
ALSO_RECORDED = ("trl", "xformers", "triton", "safetensors", "tokenizers", "numpy")


def prepare_environment(folder: Path) -> None:
    """Before the import: no statistics over the network, compiled code in a folder of the cell."""
    os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"
    os.environ["UNSLOTH_COMPILE_LOCATION"] = str(folder / "unsloth_compiled_cache")


def import_unsloth(device: str) -> None:
    """Raises Skipped(not_installed) or Skipped(no_cuda): a GPU cell never falls back to the CPU."""
    import torch

    if importlib.util.find_spec("unsloth") is None:
        raise Skipped(
            "not_installed",
            "the Python package unsloth is not installed; scripts/bootstrap.sh --peers=all "
            "installs it",
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise Skipped("no_cuda", "the cell asks for device cuda, and torch finds no CUDA device")
    try:
        protocol.import_packages(LATER_PACKAGES)
    except NotImplementedError as error:  # what unsloth_zoo raises where it sees no accelerator
        raise Skipped("unsupported", f"unsloth does not run here: {error}") from error


def complete_checkpoint(model_dir: Path, folder: Path) -> Path:
    """The checkpoint with what unsloth insists on: architectures in config.json, and a tokenizer.

    A checkpoint that has both is used as it is. Else `folder` gets links to its files, a
    config.json with the class that transformers itself takes for the model type, and a tokenizer of
    three entries, which nothing reads: every arm trains on the request's token file.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    has_tokenizer = (model_dir / "tokenizer.json").is_file()
    if config.get("architectures") and has_tokenizer:
        return model_dir
    folder.mkdir(parents=True, exist_ok=True)
    for file in model_dir.iterdir():
        if file.is_file() and file.name != "config.json":
            (folder / file.name).symlink_to(file.resolve())
    if not config.get("architectures"):
        config["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config["model_type"]]]
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if not has_tokenizer:
        write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "<pad>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>", "</s>", "<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | names
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps(names), encoding="utf-8")


def adapter_settings(request: Request) -> dict[str, Any]:
    """get_peft_model's arguments from the adapter's own config. Raises Skipped(unsupported)."""
    path = request.adapter_dir / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("rank_pattern") or config.get("alpha_pattern"):
        raise Skipped("unsupported", "unsloth's get_peft_model takes one rank and one alpha only")
    targets = config["target_modules"]
    if isinstance(targets, list):  # full names are given by their last parts
        targets = sorted({name.rsplit(".", 1)[-1] for name in targets})
    return {
        "r": config["r"],
        "lora_alpha": config["lora_alpha"],
        "lora_dropout": config.get("lora_dropout", 0.0),
        "target_modules": targets,
        "use_rslora": bool(config.get("use_rslora", False)),
        "bias": "none",
    }


def copy_adapter(model: torch.nn.Module, request: Request) -> None:
    """Gives the model's adapter the request's values. Raises InputError where names differ."""
    import torch
    from safetensors import safe_open

    from .training import trainable_parameters

    path = request.adapter_dir / "adapter_model.safetensors"
    parameters = trainable_parameters(model)
    with safe_open(path, framework="pt") as file, torch.no_grad():
        names = set(file.keys())
        if names != parameters.keys():
            odd = sorted(names ^ parameters.keys())
            raise InputError(f"{path}: {len(odd)} tensors don't fit the model, first {odd[0]}")
        for name, parameter in parameters.items():
            parameter.copy_(file.get_tensor(name).to(parameter.device, parameter.dtype))


def run(request: Request, record: Record, events: Events) -> None:
    """Loads, trains and records; protocol.main calls it."""
    with tempfile.TemporaryDirectory(prefix="poros-unsloth-") as name:
        run_in(Path(name), request, record, events)


def run_in(folder: Path, request: Request, record: Record, events: Events) -> None:
    peft.require_nf4(request)
    prepare_environment(folder)
    import_unsloth(request.device)
    from unsloth import FastLanguageModel

    from . import training

    record.versions |= versions_of(LATER_PACKAGES + ALSO_RECORDED)
    device = training.prepare_device(request, record)
    events.phase("load")
    checkpointing = "unsloth" if request.peer.get("gradient_checkpointing", True) else False
    base, _ = FastLanguageModel.from_pretrained(
        model_name=str(complete_checkpoint(request.model_dir, folder / "checkpoint")),
        max_seq_length=int(request.training["seq_len"]),
        dtype=training.DTYPES[request.compute_dtype],
        load_in_4bit=True,
        fix_tokenizer=False,
        use_exact_model_name=True,
        use_gradient_checkpointing=checkpointing,
        random_state=int(request.training["seed"]),
        local_files_only=True,
    )
    tokens = training.read_tokens(request, record, base.get_input_embeddings().num_embeddings)
    record.adapter_sha256 = file_sha256(request.adapter_dir / "adapter_model.safetensors")
    model = FastLanguageModel.get_peft_model(
        base,
        use_gradient_checkpointing=checkpointing,
        random_state=int(request.training["seed"]),
        max_seq_length=int(request.training["seq_len"]),
        **adapter_settings(request),
    )
    copy_adapter(model, request)
    model = FastLanguageModel.for_training(model, use_gradient_checkpointing=checkpointing)
    record.base_bytes = peft.base_bytes(model)
    record.arm |= peft.shared_facts(model, tokens, request, device) | {
        "gradient_checkpointing": checkpointing,
        "quantised_linears": len(peft.quantised_linears(model)),
    }
    training.train(model, tokens, request, record, events, device)
    record.weights = weights_of(request)


if __name__ == "__main__":
    sys.exit(protocol.main(METHOD, PACKAGES, run))
