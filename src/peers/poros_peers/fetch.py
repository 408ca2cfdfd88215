# SPDX-License-Identifier: Apache-2.0
"""Downloads hub models and datasets into the hub's cache; the sizes are shown first.

    python -m poros_peers.fetch REQUEST        PYTHONPATH=src/peers

REQUEST is JSON text: {"models": [{"id", "revision", "weights"}], "datasets": [id], "dry_run",
"json", "cache"}. "weights": false takes config and tokenizer alone; "cache" is the folder that the
program looks into. stdout: one line a model or dataset, or with "json" one object
{"models": [{id, revision, commit, bytes, missing_bytes, path}], "datasets": [{id, path}]}.
Exit code 0; 2 when something named is wrong; 1 when the network or the disk fails. What was
downloaded is kept, and the same command goes on.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError

SMALL = ["config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json",
         "added_tokens.json", "vocab.*", "merges.txt", "*.model", "chat_template*"]  # fmt: skip
WEIGHTS = ["*.safetensors", "*.safetensors.index.json"]
NESTED = ["*/*"]  # original/, onnx/, ...: the same weights in other formats


@dataclass
class Model:
    id: str
    revision: str
    weights: bool
    commit: str = ""
    size: int = 0  # [bytes] of the files that are wanted
    missing: int = 0  # [bytes] of them not in the cache
    path: str = ""

    @property
    def patterns(self) -> list[str]:
        return SMALL + (WEIGHTS if self.weights else [])

    def wants(self, name: str) -> bool:
        return "/" not in name and any(fnmatch.fnmatch(name, p) for p in self.patterns)


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            break
        size /= 1000
    else:
        unit = "TB"
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def look_up(model: Model, cache: str) -> None:
    """Commit and sizes, from the hub."""
    import huggingface_hub as hub

    info = hub.HfApi().model_info(model.id, revision=model.revision, files_metadata=True)
    if not info.sha:
        raise InputError(f"model {model.id}: the hub names no commit for {model.revision}")
    model.commit = info.sha
    names = []
    for file in info.siblings or []:
        if not model.wants(file.rfilename):
            continue
        names.append(file.rfilename)
        size = file.size or 0
        model.size += size
        found = hub.try_to_load_from_cache(
            model.id, file.rfilename, cache_dir=cache, revision=model.commit
        )
        if not isinstance(found, str):
            model.missing += size
    if "config.json" not in names:
        raise InputError(f"model {model.id}: no config.json at {model.revision}")
    if model.weights and not any(n.endswith(".safetensors") for n in names):
        raise InputError(
            f"model {model.id}: no *.safetensors at {model.revision}; other formats are not read"
        )


def free_bytes(cache: str) -> int:
    """Of the file system that the cache is on, or will be."""
    folder = Path(cache)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def download(model: Model, cache: str, quiet: bool) -> None:
    import huggingface_hub as hub

    if quiet:
        hub.utils.disable_progress_bars()
    # By name, so that the cache notes which commit the name stands for.
    model.path = hub.snapshot_download(
        model.id, revision=model.revision, cache_dir=cache,
        allow_patterns=model.patterns, ignore_patterns=NESTED,
    )  # fmt: skip
    commit = Path(model.path).name
    if commit != model.commit:
        raise InputError(
            f"model {model.id}: {model.revision} moved from {model.commit} to {commit} in between; "
            "pin a commit in the spec and run the command again"
        )


def fetch_dataset(name: str) -> str:
    """Downloads a dataset's split "train", as the tokenising step opens it."""
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"dataset {name}: fetching a hub dataset needs the Python package datasets "
            "(pip install datasets)"
        ) from error
    data = datasets.load_dataset(name, split="train")
    files = [entry["filename"] for entry in data.cache_files]
    return str(Path(files[0]).parent) if files else ""


def dataset_size(name: str) -> int:
    import huggingface_hub as hub

    info = hub.HfApi().dataset_info(name, files_metadata=True)
    return sum(file.size or 0 for file in info.siblings or [])


def fetch(request: dict[str, Any]) -> dict[str, Any]:
    cache, quiet, dry_run = request["cache"], request["json"], request["dry_run"]

    def say(text: str) -> None:
        if not quiet:
            print(text, flush=True)

    models = [Model(m["id"], m["revision"], m["weights"]) for m in request["models"]]
    for model in models:
        look_up(model, cache)
        state = f"{size_text(model.missing)} to download" if model.missing else "all here"
        say(
            f"model   {model.id} {model.revision} = {model.commit}: {size_text(model.size)}, {state}"
        )
    sizes = {name: dataset_size(name) for name in request["datasets"]}
    for name, size in sizes.items():
        say(f"dataset {name}: at most {size_text(size)}")
    missing, free = sum(m.missing for m in models), free_bytes(cache)
    if missing > free:
        raise InputError(
            f"{cache}: {size_text(missing)} are to be downloaded and {size_text(free)} are free; "
            "set HF_HOME to a larger disk"
        )
    datasets = [{"id": name, "bytes": size, "path": ""} for name, size in sizes.items()]
    if not dry_run:
        for model in models:
            download(model, cache, quiet)
            say(f"model   {model.id}: {model.path}")
        for entry in datasets:
            entry["path"] = fetch_dataset(entry["id"])
            say(f"dataset {entry['id']}: {entry['path']}")
    return {
        "models": [
            {
                "id": m.id, "revision": m.revision, "commit": m.commit, "bytes": m.size,
                "missing_bytes": m.missing, "path": m.path,
            }
            for m in models
        ],
        "datasets": datasets,
    }  # fmt: skip


def main() -> int:
    request = json.loads(sys.argv[1])
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "0"
    try:
        from huggingface_hub import errors
    except ImportError:
        print("fetching needs the Python package huggingface_hub (scripts/bootstrap.sh)",
              file=sys.stderr)  # fmt: skip
        return 1
    try:
        answer = fetch(request)
    except InputError as error:
        print(f"poros: error: {error}", file=sys.stderr)
        return 2
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        text = " ".join(str(error).split())
        print(f"poros: error: {text} Check the id and revision; a gated model needs HF_TOKEN",
              file=sys.stderr)  # fmt: skip
        return 2
    except Exception as error:  # noqa: BLE001 the network library's own kinds, a full disk
        print(f"poros: error: {type(error).__name__}: {error}: what was downloaded is kept; run the "
              "same command again", file=sys.stderr)  # fmt: skip
        return 1
    if request["json"]:
        print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
