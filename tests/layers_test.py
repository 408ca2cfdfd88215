#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A layer includes only what stands before it, and only poros-cell's layers know LibTorch."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = ["base", "spec", "kernels", "model", "plan", "train", "receipts", "cell", "campaign",
          "analysis", "cli"]
# `poros` must run without LibTorch: none of its layers may build on the trainer. The sources of
# poros-cell itself stand in src/train and may use the records of src/receipts.
FORBIDDEN = {layer: {"train"} for layer in ("receipts", "cell", "campaign", "analysis", "cli")}
ALLOWED_UPWARD = {("train", "receipts"), ("train", "cell")}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.M)
TORCH = re.compile(r"^(torch|ATen|c10)/")


def layer_of(path: pathlib.Path) -> str | None:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "src":
        return parts[1] if parts[1] in LAYERS else None
    return parts[0] if parts[0] in LAYERS else None


def main() -> int:
    faults: list[str] = []
    files = [p for top in ("src", "kernels", "analysis") for p in (ROOT / top).rglob("*")
             if p.suffix in {".hpp", ".cpp", ".cu", ".cuh"}]
    for path in sorted(files):
        layer = layer_of(path)
        if layer is None:
            continue
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            where = f"{path.relative_to(ROOT)}: includes {name}"
            if TORCH.match(name) and layer != "train":
                faults.append(f"{where}: LibTorch belongs to src/train alone")
            head = name.split("/")[0]
            if "/" not in name or head not in LAYERS or head == layer:
                continue
            upward = LAYERS.index(head) > LAYERS.index(layer)
            if (upward and (layer, head) not in ALLOWED_UPWARD) or head in FORBIDDEN.get(layer, set()):
                faults.append(f"{where}: layer {layer} may not use {head}")
    print("\n".join(faults) or f"layers: {len(files)} files in order")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
