# SPDX-License-Identifier: Apache-2.0
"""The arm `accelerate_offload`: PEFT on a base of which accelerate keeps a part in host memory.

    python -m poros_peers.accelerate_offload REQUEST.json

What a user would write first does not train: with a device map that names the CPU, PEFT has its
adapters dispatched with their layers, they end on the meta device, and the backward fails. The
smallest arrangement that trains: load on the CPU, attach the adapter, and give each module of an
offloaded layer that has frozen weights accelerate's AlignDevicesHook (offload) by hand; adapters
and all other layers stay on the GPU. Recomputing activations is part of it: without that, autograd
would hold every fetched weight until the backward, and nothing would have been offloaded.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from . import peft, protocol
from .protocol import ArmError, Events, Skipped
from .record import MIB, Record, file_sha256, versions_of, weights_of
from .request import Request

if TYPE_CHECKING:
    import torch

METHOD = "accelerate_offload"
PACKAGES = peft.PACKAGES
DEFAULT_FRACTION = 0.5
CAP_PART = 0.5  # of a memory cap that resident weights may take; the rest is for the training


def parameter_bytes(parameter: torch.nn.Parameter) -> int:
    return parameter.numel() * parameter.element_size()


def decoder_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The model's decoder layers. Raises Skipped(unsupported) where they are not found."""
    import torch

    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 0]
    layers = max(lists, key=lambda m: sum(1 for _ in m.parameters()), default=None)
    if layers is None:
        raise Skipped("unsupported", "no list of decoder layers was found in the model")
    return list(layers)


def choose_fraction(request: Request, model: torch.nn.Module, layers: list[Any]) -> tuple[int, str]:
    """Number of layers to offload, and why that many."""
    given = request.peer.get("offload_fraction")
    if given is not None:
        return math.ceil(float(given) * len(layers)), f"offload_fraction {given}"
    count, why = math.ceil(DEFAULT_FRACTION * len(layers)), f"default {DEFAULT_FRACTION}"
    cap_mb = (request.cell.get("hardware") or {}).get("vram_cap_mb")
    if cap_mb is not None:
        total = sum(parameter_bytes(p) for p in model.parameters())
        layer = sum(parameter_bytes(p) for p in layers[0].parameters())
        needed = math.ceil((total - CAP_PART * cap_mb * MIB) / layer)
        if needed > count:
            count, why = needed, f"vram_cap_mb {cap_mb}"
    return min(count, len(layers)), why


def move_and_offload(
    model: torch.nn.Module, offloaded: list[torch.nn.Module], device: torch.device
) -> dict[str, int]:
    """Everything to `device` except frozen weights of the offloaded layers. Returns bytes by place.

    The absmax of offloaded weights stay on the device: accelerate parks a weight on the meta device
    between uses, and bitsandbytes' state, moved along, would lose its values there.
    """
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    host = kept = 0
    inside = set()
    for layer in offloaded:
        for module in layer.modules():
            inside.add(id(module))
            frozen = [p for p in module.parameters(recurse=False) if not p.requires_grad]
            trained = [p for p in module.parameters(recurse=False) if p.requires_grad]
            if frozen and not trained:
                host += sum(parameter_bytes(p) for p in frozen)
                kept += sum(keep_state(p, device) for p in frozen)
                hook = AlignDevicesHook(execution_device=device, offload=True, io_same_device=False)
                add_hook_to_module(module, hook)
    places: dict[int, torch.nn.Parameter] = {}  # tied parameters stay one
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(module) in inside and not parameter.requires_grad:
                continue
            if parameter.device != device:
                if id(parameter) not in places:
                    places[id(parameter)] = moved(parameter, device)
                module._parameters[name] = places[id(parameter)]
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = buffer.to(device)
    resident = sum(
        parameter_bytes(p) + state_bytes(p)
        for p in model.parameters()  # tied parameters come once
        if not p.requires_grad and p.device.type == device.type
    )
    return {
        "gpu": resident + kept,
        "cpu": host,
        "disk": 0,
    }


def state_bytes(parameter: torch.nn.Parameter) -> int:
    """Bytes of absmax and nested absmax of a quantised weight, else 0."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return 0
    tensors = [state.absmax] + ([state.state2.absmax] if state.nested else [])
    return sum(t.numel() * t.element_size() for t in tensors)


def keep_state(parameter: torch.nn.Parameter, device: torch.device) -> int:
    """Puts a quantised weight's state on the device for good. Returns its bytes."""
    from bitsandbytes.functional import QuantState

    class KeptState(QuantState):
        def to(self, device: Any) -> None:
            """It stays where it is."""

    state = getattr(parameter, "quant_state", None)
    if state is not None:
        state.to(device)
        state.__class__ = KeptState
    return state_bytes(parameter)


def moved(parameter: torch.nn.Parameter, device: torch.device) -> torch.nn.Parameter:
    """The parameter on another device; quantised weights bring their state."""
    import bitsandbytes
    import torch

    if isinstance(parameter, bitsandbytes.nn.Params4bit):
        return parameter.to(device)
    return torch.nn.Parameter(parameter.detach().to(device), requires_grad=parameter.requires_grad)


def run(request: Request, record: Record, events: Events) -> None:
    """Loads, trains and records; protocol.main calls it."""
    import torch

    from . import training

    peft.require_nf4(request)
    if not request.peer.get("gradient_checkpointing", True):
        raise Skipped(
            "unsupported",
            "without gradient_checkpointing autograd keeps every fetched weight on the GPU until "
            "the backward: nothing would be offloaded",
        )
    record.versions |= versions_of(peft.ALSO_RECORDED)
    device = training.prepare_device(request, record)
    events.phase("load")
    base = peft.load_base(request, torch.device("cpu"))
    for parameter in base.parameters():
        parameter.requires_grad_(False)
    record.base_bytes = peft.base_bytes(base)
    tokens = training.read_tokens(request, record, base.get_input_embeddings().num_embeddings)
    record.adapter_sha256 = file_sha256(request.adapter_dir / "adapter_model.safetensors")
    model = peft.attach_adapter(base, request)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    layers = decoder_layers(base)
    count, why = choose_fraction(request, model, layers)
    if count == 0:
        raise ArmError("nothing_offloaded", f"{why}: no layer is offloaded; this would be peft")
    places = move_and_offload(model, layers[len(layers) - count :], device)
    record.arm |= peft.shared_facts(model, tokens, request, device) | {
        "gradient_checkpointing": True,
        "offloaded_layers": count,
        "layers": len(layers),
        "offload_chosen_by": why,
        "frozen_bytes": places,
        "adapters_on": device.type,
        "arrangement": "AlignDevicesHook(offload) on frozen modules, adapters kept on the GPU",
    }
    training.train(model, tokens, request, record, events, device)
    record.weights = weights_of(request)


if __name__ == "__main__":
    sys.exit(protocol.main(METHOD, PACKAGES, run))
