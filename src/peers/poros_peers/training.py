# SPDX-License-Identifier: Apache-2.0
"""What every runner does alike: device, tokens, optimizer, schedule, the timed steps, the dump.

The shared protocol of design.md: same token file, AdamW (0.9, 0.999, 1e-8), schedule, clipping, and
the loss of a step is the sum of token losses over the supervised tokens of the whole step.
"""

from __future__ import annotations

import math
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from .errors import InputError
from .protocol import ArmError, Events, Skipped
from .record import (
    MIB,
    Record,
    host_memory_mb,
    process_memory_mb,
    reset_memory_peak,
    seconds_since_start,
)
from .request import Request
from .token_file import SUPERVISED, TokenFile, read_token_file

BETAS, EPSILON = (0.9, 0.999), 1e-8
IGNORED = -100  # label that transformers leaves out of the loss
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
DTYPE_NAMES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.uint8: "u8",
    torch.int8: "i8", torch.float64: "fp64",
}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    return DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def prepare_device(request: Request, record: Record) -> torch.device:
    """Threads, seed, device and its description, and the memory cap. Raises Skipped(no_cuda)."""
    torch.set_num_threads(request.threads)
    torch.manual_seed(int(request.training["seed"]))
    record.arm["threads"] = request.threads
    record.arm["shape"] = {
        "batch_size": int(request.training["batch_size"]),
        "gradient_accumulation_steps": int(request.training["gradient_accumulation_steps"]),
        "regrouped": bool(request.peer.get("best_shape")),
    }
    if request.device == "cpu":
        record.device = {
            "kind": "cpu",
            "name": cpu_name(),
            "uuid": None,
            "memory_total_mb": host_memory_mb(),
        }
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Skipped("no_cuda", "the cell asks for device cuda, and torch finds no CUDA device")
    properties = torch.cuda.get_device_properties(0)
    record.device = {
        "kind": "cuda",
        "name": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "memory_total_mb": properties.total_memory / MIB,
    }
    record.versions["cuda"] = torch.version.cuda
    cap_mb = (request.cell.get("hardware") or {}).get("vram_cap_mb")
    if cap_mb is not None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap_mb * MIB / properties.total_memory))
        record.flags.append("capped")
    return torch.device("cuda", 0)


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peft_name(parameter_name: str) -> str:
    """A parameter's name as PEFT stores it: without the adapter's name."""
    return parameter_name.replace(".default.", ".")


def trainable_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {peft_name(n): p for n, p in model.named_parameters() if p.requires_grad}


def read_tokens(request: Request, record: Record, vocab: int) -> TokenFile:
    """The request's token file. Raises InputError when it is not what its name says, or doesn't fit
    the model's vocabulary."""
    tokens = read_token_file(request.tokens_path)
    stem = request.tokens_path.stem
    if len(stem) == 64 and stem != tokens.sha256:
        raise InputError(f"{request.tokens_path}: its content has the sha256 {tokens.sha256}")
    if tokens.vocab > vocab:
        raise InputError(
            f"{request.tokens_path}: ids go up to {tokens.vocab}, but the model's vocabulary has "
            f"{vocab} entries"
        )
    record.token_sha256 = tokens.sha256
    return tokens


class Batches:
    """Deals the rows of a token file to steps and micro-batches, as src/train/data.hpp does."""

    def __init__(self, tokens: TokenFile, training: dict[str, Any], device: torch.device) -> None:
        self._tokens, self._device = tokens, device
        self._batch = int(training["batch_size"])
        self._micro_batches = int(training["gradient_accumulation_steps"])
        self._packed = tokens.is_packed()

    def step(self, step: int) -> tuple[list[dict[str, torch.Tensor]], int]:
        """Micro-batches of a step (from 0) as model inputs, and the step's supervised tokens.

        Position ids are given for packed files only: they restart at each document, from which
        transformers makes masks that keep documents apart.
        """
        rows_a_step = self._batch * self._micro_batches
        rows = self._tokens.row_indices(step * rows_a_step, rows_a_step)
        supervised = (self._tokens.flags[rows] & SUPERVISED) > 0
        ids = self._tokens.ids[rows].astype(np.int64)
        arrays = {"input_ids": ids, "labels": np.where(supervised, ids, IGNORED)}
        if self._packed:
            arrays["position_ids"] = self._tokens.positions(rows)
        tensors = {k: torch.from_numpy(v).to(self._device) for k, v in arrays.items()}
        micro_batches = [
            {k: v[i : i + self._batch] for k, v in tensors.items()}
            for i in range(0, rows_a_step, self._batch)
        ]
        return micro_batches, int(supervised.sum())


def make_optimizer(
    parameters: dict[str, torch.nn.Parameter], training: dict[str, Any]
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """AdamW and transformers' schedule of that name."""
    optimizer = torch.optim.AdamW(
        list(parameters.values()),
        lr=float(training["learning_rate"]),
        betas=BETAS,
        eps=EPSILON,
        weight_decay=float(training.get("weight_decay", 0.01)),
    )
    name = training.get("lr_scheduler", "cosine")
    warmup = int(training.get("lr_warmup_steps", 0))
    schedule = transformers.get_scheduler(
        "constant_with_warmup" if name == "constant" else name,
        optimizer,
        num_warmup_steps=warmup,
        num_training_steps=int(training["steps"]),
    )
    return optimizer, schedule


def reset_peaks(record: Record, device: torch.device) -> None:
    """Memory peaks count from the end of loading, for every arm alike; loading's stand beside."""
    if device.type == "cuda":
        synchronise(device)
        record.vram_load_peak_mb = torch.cuda.max_memory_allocated(device) / MIB
        torch.cuda.reset_peak_memory_stats(device)
        if hasattr(torch.cuda, "reset_peak_host_memory_stats"):
            torch.cuda.reset_peak_host_memory_stats()
    record.arm["host_rss_load_peak_mb"] = process_memory_mb("VmHWM")
    since = "end of load" if reset_memory_peak() else "start of process"
    record.arm["host_rss_peak_counts_from"] = since


def pinned_peak_mb() -> float | None:
    """Peak of the blocks that torch's allocator of pinned host memory owned, with its rounding up
    [2^20 bytes]; None where torch does not count them. What a library pins itself is not in it.
    """
    if not hasattr(torch.cuda, "host_memory_stats"):
        return None
    peak = torch.cuda.host_memory_stats().get("allocated_bytes.peak")
    return None if peak is None else peak / MIB


def save_dump(
    folder: Path,
    parameters: dict[str, torch.nn.Parameter],
    gradients: dict[str, torch.Tensor],
    optimizer: torch.optim.AdamW,
    loss: float,
    grad_norm: float,
) -> None:
    """The folder that src/receipts/parity.hpp describes."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    kinds = {
        "gradient": gradients,
        "exp_avg": {n: optimizer.state[p]["exp_avg"] for n, p in parameters.items()},
        "exp_avg_sq": {n: optimizer.state[p]["exp_avg_sq"] for n, p in parameters.items()},
        "weight": {n: p.detach() for n, p in parameters.items()},
        "scalars": {"loss": torch.tensor([loss]), "grad_norm": torch.tensor([grad_norm])},
    }
    for kind, tensors in kinds.items():
        whole = {n: t.to("cpu", torch.float32).contiguous() for n, t in tensors.items()}
        save_file(whole, folder / f"{kind}.safetensors")


def train(
    model: torch.nn.Module,
    tokens: TokenFile,
    request: Request,
    record: Record,
    events: Events,
    device: torch.device,
) -> None:
    """Runs the steps and fills the record's series, times and memory figures."""
    training = request.training
    parameters = trainable_parameters(model)
    record.trainable_params = sum(p.numel() for p in parameters.values())
    optimizer, schedule = make_optimizer(parameters, training)
    batches = Batches(tokens, training, device)
    limit = float(training.get("max_grad_norm", 1.0))
    record.arm["trained_with"] = {
        "protocol": "native" if request.is_native else "shared",
        "token_rows": tokens.rows,
        "lr_scheduler": training.get("lr_scheduler", "cosine"),
        "lr_warmup_steps": int(training.get("lr_warmup_steps", 0)),
        "max_grad_norm": limit,
        "weight_decay": float(training.get("weight_decay", 0.01)),
    }
    warmup, steps = int(training.get("warmup_steps", 5)), int(training["steps"])
    autocast = bool(record.arm.get("autocast"))
    reset_peaks(record, device)
    record.load_s = seconds_since_start()
    model.train()
    for step in range(request.steps_to_run):
        if events.stop_requested:
            raise ArmError("drained", f"stopped on request after step {step} of {steps}")
        if step == 0 and warmup > 0:
            events.phase("warmup")
        if step == warmup:
            events.phase("train")
        synchronise(device)
        started = time.perf_counter()
        micro_batches, supervised = batches.step(step)
        rate = schedule.get_last_lr()[0]
        total, norm = torch.zeros((), device=device), torch.zeros((), device=device)
        gradients: dict[str, torch.Tensor] = {}
        dumping = request.dump_dir is not None and request.dump_step == step + 1
        if supervised > 0:
            for inputs in micro_batches:
                with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                    loss = model(**inputs, use_cache=False, num_items_in_batch=supervised).loss
                loss.backward()
                total += loss.detach()
            if dumping:
                gradients = {n: p.grad.detach().clone() for n, p in parameters.items()}
            # Without clipping the limit is infinite: the norm is measured all the same.
            norm = torch.nn.utils.clip_grad_norm_(parameters.values(), limit or math.inf)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        schedule.step()
        synchronise(device)
        seconds = time.perf_counter() - started
        loss_value, norm_value = float(total), float(norm)
        if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
            raise ArmError(
                "diverged",
                f"step {step + 1} of {steps}: loss {loss_value}, gradient norm {norm_value}: "
                "not finite",
            )
        rss = process_memory_mb("VmRSS")
        on_cuda = device.type == "cuda"
        allocated = torch.cuda.memory_allocated(device) / MIB if on_cuda else None
        record.add_step(
            loss=loss_value,
            grad_norm=norm_value,
            learning_rate=rate,
            s_per_step=seconds,
            allocated_mb=allocated,
            reserved_mb=torch.cuda.memory_reserved(device) / MIB if on_cuda else None,
            host_rss_mb=rss,
            supervised_tokens=supervised,
        )
        events.step(step + 1, steps, loss_value, seconds, allocated or rss or 0.0)
        if dumping and gradients:
            save_dump(request.dump_dir, parameters, gradients, optimizer, loss_value, norm_value)
    record.host_rss_peak_mb = process_memory_mb("VmHWM")
    if device.type == "cuda":
        record.vram_peak_mb = torch.cuda.max_memory_allocated(device) / MIB
        record.vram_reserved_peak_mb = torch.cuda.max_memory_reserved(device) / MIB
        record.pinned_mb = pinned_peak_mb()
