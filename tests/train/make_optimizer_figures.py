#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes optimizer_figures.json: what the schedule and optimizer tests compare with.

Needs torch 2.11 and transformers 5.24. Learning rates come from transformers.get_scheduler;
weights and moments from torch.optim.AdamW after torch.nn.utils.clip_grad_norm_. Start values and
gradients are drawn by `draw`, which the test repeats, so that only results are stored.
"""

from __future__ import annotations

import json
import pathlib

import torch
from transformers import get_scheduler

SHAPES = [(4, 24), (24, 4), (3, 7)]
STEPS = 6


def draw(count: int, salt: int) -> list[float]:
    """`count` multiples of 2^-24 in [-0.5, 0.5), exact in fp32; the same in the C++ test."""
    return [
        (((index * 2654435761 + salt * 40503 + 12345) % 2**32) >> 8) / 2**24 - 0.5
        for index in range(count)
    ]


def schedules() -> list[dict[str, object]]:
    """Learning rate of each step for every schedule, with and without warm-up."""
    found: list[dict[str, object]] = []
    for name in ("constant", "linear", "cosine"):
        for warmup, total in ((0, 12), (4, 12), (1, 1), (7, 5), (0, 1), (3, 25)):
            weight = torch.nn.Parameter(torch.zeros(1))
            optimizer = torch.optim.SGD([weight], lr=3e-4)
            reference = "constant_with_warmup" if name == "constant" else name
            scheduler = get_scheduler(reference, optimizer, warmup, total)
            rates = []
            for _ in range(total):
                rates.append(scheduler.get_last_lr()[0])
                optimizer.step()
                scheduler.step()
            found.append(
                {"name": name, "base": 3e-4, "warmup": warmup, "total": total, "rates": rates}
            )
    return found


def adamw(weight_decay: float, max_norm: float, gradient_scale: float) -> dict[str, object]:
    """Weights, moments and norms after STEPS steps of AdamW with clipping."""
    weights = [
        torch.nn.Parameter(torch.tensor(draw(rows * cols, place)).reshape(rows, cols))
        for place, (rows, cols) in enumerate(SHAPES)
    ]
    optimizer = torch.optim.AdamW(
        weights, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay, foreach=False
    )
    scheduler = get_scheduler("cosine", optimizer, 2, STEPS)
    norms = []
    for step in range(STEPS):
        for place, weight in enumerate(weights):
            salt = 1000 + step * 10 + place
            gradient = torch.tensor(draw(weight.numel(), salt)).reshape(weight.shape)
            weight.grad = gradient * gradient_scale
        norm = torch.nn.utils.clip_grad_norm_(weights, max_norm if max_norm > 0 else float("inf"))
        norms.append(float(norm))
        optimizer.step()
        scheduler.step()
    return {
        "weight_decay": weight_decay,
        "max_norm": max_norm,
        "gradient_scale": gradient_scale,
        "norms": norms,
        "weight": [value for weight in weights for value in weight.detach().flatten().tolist()],
        "exp_avg": [
            value
            for weight in weights
            for value in optimizer.state[weight]["exp_avg"].flatten().tolist()
        ],
        "exp_avg_sq": [
            value
            for weight in weights
            for value in optimizer.state[weight]["exp_avg_sq"].flatten().tolist()
        ],
    }


def main() -> None:
    """Writes the figures beside this script."""
    figures = {
        "made_with": {"torch": torch.__version__},
        "shapes": SHAPES,
        "schedules": schedules(),
        "adamw": [
            adamw(0.01, 1.0, 1.0),  # clipped in every step
            adamw(0.1, 100.0, 1.0),  # never clipped
            adamw(0.0, 0.0, 1e-6),  # clipping off, gradients near epsilon
        ],
    }
    path = pathlib.Path(__file__).with_name("optimizer_figures.json")
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
