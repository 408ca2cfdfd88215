#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints adamw_reference.inc: three clipped steps of torch.optim.AdamW on two small tensors.

Run with any torch >= 2.0:  python3 adamw_reference.py > adamw_reference.inc
"""

import torch

STEPS = 3
MAX_NORM = 1.0


def values(count: int, seed: int) -> torch.Tensor:
    """Small exact values: multiples of 1/64 in [-1, 1), from a linear congruence."""
    state = seed
    out = []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        out.append((state // 65536 % 128 - 64) / 64)
    return torch.tensor(out, dtype=torch.float32)


def table(name: str, rows: list[torch.Tensor]) -> str:
    """One C++ array of float literals that read back to the same bits."""
    flat = [f"{v:.9g}" for row in rows for v in row.tolist()]
    flat = [v if "." in v or "e" in v else v + ".0" for v in flat]
    lines = ["    " + " ".join(v + "F," for v in flat[i : i + 6]) for i in range(0, len(flat), 6)]
    return f"const float {name}[] = {{\n" + "\n".join(lines) + "\n};"


def main() -> None:
    """Runs the steps for three settings and prints weights, moments and norms after each."""
    print("// SPDX-License-Identifier: Apache-2.0")
    print(f"// Made by adamw_reference.py with torch {torch.__version__}.")
    settings = [(1e-2, 0.9, 0.999, 0.01), (3e-2, 0.4, 0.95, 0.0), (1e-3, 0.9, 0.95, 0.1)]
    for index, (lr, beta1, beta2, decay) in enumerate(settings):
        weights = [values(5, 1).requires_grad_(), values(7, 2).requires_grad_()]
        optimizer = torch.optim.AdamW(
            weights, lr=lr, betas=(beta1, beta2), eps=1e-8, weight_decay=decay, foreach=False
        )
        after, norms = [], []
        for step in range(STEPS):
            for i, weight in enumerate(weights):
                weight.grad = values(weight.numel(), 10 * step + i + 3) * (4.0 if step == 1 else 0.25)
            norm = torch.nn.utils.clip_grad_norm_(weights, MAX_NORM, foreach=False)
            norms.append(norm.reshape(1))
            optimizer.step()
            for weight in weights:
                state = optimizer.state[weight]
                after += [weight.detach().clone(), state["exp_avg"].clone(),
                          state["exp_avg_sq"].clone()]
        print(table(f"kAfter{index}", after))
        print(table(f"kNorm{index}", norms))


if __name__ == "__main__":
    main()
