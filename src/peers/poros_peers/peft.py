# SPDX-License-Identifier: Apache-2.0
"""The arm `peft`: transformers + bitsandbytes + PEFT, as a careful user sets them up.

    python -m poros_peers.peft REQUEST.json

The base is loaded in the compute dtype with its linears in double-quantised NF4; the adapter is the
one of the request. `prepare_model_for_kbit_training` is not called: besides enabling gradient
checkpointing it casts embeddings, norms and head to fp32, which costs memory that this comparison
would charge to PEFT. With bf16 the steps run under autocast, as transformers' Trainer does.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from . import protocol
from .errors import InputError
from .protocol import Events, Skipped
from .record import Record, file_sha256, versions_of, weights_of
from .request import Request

if TYPE_CHECKING:
    import torch

    from .token_file import TokenFile

METHOD = "peft"
PACKAGES = ("torch", "transformers", "accelerate", "bitsandbytes", "peft")
ALSO_RECORDED = ("safetensors", "tokenizers", "numpy")
NF4_BLOCK = 64


def load_base(request: Request, device: torch.device) -> torch.nn.Module:
    """The frozen base; a checkpoint that already is NF4 is loaded as it is."""
    import torch
    import transformers

    from .training import DTYPES

    dtype = DTYPES[request.compute_dtype]
    options: dict[str, Any] = {"dtype": dtype, "device_map": {"": str(device)}}
    attention = request.peer.get("attn_implementation", "auto")
    if attention != "auto":
        options["attn_implementation"] = attention
    config = json.loads((request.model_dir / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" not in config:
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(request.model_dir, **options)
    for linear in quantised_linears(model).values():
        linear.compute_dtype, linear.compute_type_is_set = dtype, True
    if torch.device(device).type == "cpu":
        refuse_wrong_rows(model)
    return model


def quantised_linears(model: torch.nn.Module) -> dict[str, Any]:
    import bitsandbytes

    kind = bitsandbytes.nn.Linear4bit
    return {name: m for name, m in model.named_modules() if isinstance(m, kind)}


def refuse_wrong_rows(model: torch.nn.Module) -> None:
    """bitsandbytes 0.50.2 with AVX-512 decodes wrongly when a row is no whole number of blocks."""
    for name, linear in quantised_linears(model).items():
        columns = linear.in_features
        if columns % NF4_BLOCK != 0:
            raise Skipped(
                "unsupported",
                f"{name} has rows of {columns} values: on the CPU bitsandbytes can decode such NF4 "
                f"weights wrongly unless the row is a multiple of {NF4_BLOCK}",
            )


def base_bytes(model: torch.nn.Module) -> dict[str, int]:
    """Bytes of the frozen parameters by storage; nf4 counts codes, absmax and nested absmax."""
    import bitsandbytes

    from .training import dtype_name

    sizes: dict[str, int] = {}
    for parameter in model.parameters():  # tied parameters come once
        if parameter.requires_grad:
            continue
        size = parameter.numel() * parameter.element_size()
        name = dtype_name(parameter.dtype)
        if isinstance(parameter, bitsandbytes.nn.Params4bit):
            state, name = parameter.quant_state, "nf4"
            for absmax in (state.absmax, state.state2.absmax if state.nested else None):
                size += 0 if absmax is None else absmax.numel() * absmax.element_size()
        sizes[name] = sizes.get(name, 0) + size
    return sizes


def ends_dtypes(model: torch.nn.Module) -> dict[str, str]:
    """Dtypes of what is not quantised, and of the adapter."""
    from .training import dtype_name

    dtypes: dict[str, set[str]] = {}
    kinds = {"embed_tokens": "embedding", "lm_head": "head", "lora_": "adapter", "norm": "norm"}
    named = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in named.items():
        kind = next((kinds[part] for part in kinds if part in name), None)
        if kind is not None:
            dtypes.setdefault(kind, set()).add(dtype_name(parameter.dtype))
    return {kind: "+".join(sorted(names)) for kind, names in sorted(dtypes.items())}


def attach_adapter(model: torch.nn.Module, request: Request) -> torch.nn.Module:
    """The request's adapter, trainable. Raises InputError when a tensor of it finds no place."""
    from peft import PeftModel
    from safetensors import safe_open

    from .training import trainable_parameters

    model = PeftModel.from_pretrained(model, request.adapter_dir, is_trainable=True)
    path = request.adapter_dir / "adapter_model.safetensors"
    with safe_open(path, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}
    parameters = trainable_parameters(model)
    if stored.keys() != parameters.keys():
        odd = sorted(stored.keys() ^ parameters.keys())
        raise InputError(f"{path}: {len(odd)} tensors don't fit the model, first {odd[0]}")
    for name, parameter in parameters.items():
        if not parameter.detach().cpu().equal(stored[name].to(parameter.dtype)):
            raise InputError(f"{path}: {name} was not loaded as stored")
    return model


def require_nf4(request: Request) -> None:
    """Raises Skipped for a precision that these libraries are not run in."""
    if request.cell["precision"] != "nf4":
        raise Skipped("unsupported", f"precision {request.cell['precision']}: this arm loads nf4")


def shared_facts(
    model: torch.nn.Module, tokens: TokenFile, request: Request, device: torch.device
) -> dict[str, Any]:
    """What every arm of these libraries records of itself."""
    return {
        "attn_implementation": getattr(model.config, "_attn_implementation", None),
        "compute_dtype": request.compute_dtype,
        "autocast": device.type == "cuda" and request.compute_dtype == "bf16",
        "dtypes": ends_dtypes(model),
        "packed": tokens.is_packed(),
    }


def run(request: Request, record: Record, events: Events) -> None:
    """Loads, trains and records; protocol.main calls it."""
    from . import training

    require_nf4(request)
    record.versions |= versions_of(ALSO_RECORDED)
    device = training.prepare_device(request, record)
    events.phase("load")
    base = load_base(request, device)
    tokens = training.read_tokens(request, record, base.get_input_embeddings().num_embeddings)
    record.adapter_sha256 = file_sha256(request.adapter_dir / "adapter_model.safetensors")
    model = attach_adapter(base, request)
    checkpointing = bool(request.peer.get("gradient_checkpointing", True))
    if checkpointing:
        # The non-reentrant kind needs no input that requires a gradient.
        model.gradient_checkpointing_enable({"use_reentrant": False})
    record.base_bytes = base_bytes(model)
    record.arm |= shared_facts(model, tokens, request, device) | {
        "gradient_checkpointing": checkpointing,
        "prepare_model_for_kbit_training": False,
        "quantised_linears": len(quantised_linears(model)),
    }
    training.train(model, tokens, request, record, events, device)
    record.weights = weights_of(request)


if __name__ == "__main__":
    sys.exit(protocol.main(METHOD, PACKAGES, run))
