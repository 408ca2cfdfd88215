# SPDX-License-Identifier: Apache-2.0
"""Fetching from a hub, against a small server of the same protocol on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

pytest.importorskip("huggingface_hub")

COMMIT, ID = "c0ffee" * 6 + "beef", "org/tiny"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 5000,
    "pytorch_model.bin": b"other format",
    "original/model.safetensors": b"the same again",
    "README.md": b"text",
}


class Hub(ThreadingHTTPServer):
    """Serves one repository; `asked` lists the files that were downloaded."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.asked = files, list[str]()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == f"/api/models/{ID}/tree/{COMMIT}":
            tree = [
                {"type": "file", "path": n, "size": len(b), "oid": hashlib.sha1(b).hexdigest()}
                for n, b in self.server.files.items()
            ]
            return self.answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        for revision in ("main", COMMIT):
            if path == f"/api/models/{ID}/revision/{revision}":
                files = [{"rfilename": n, "size": len(b)} for n, b in self.server.files.items()]
                body = json.dumps({"id": ID, "sha": COMMIT, "siblings": files}).encode()
                return self.answer(200, body, {"Content-Type": "application/json"})
            name = path.removeprefix(f"/{ID}/resolve/{revision}/")
            if name in self.server.files:
                content = self.server.files[name]
                if self.command == "GET":
                    self.server.asked.append(name)
                tag = hashlib.sha256(content).hexdigest()
                return self.answer(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})
        self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub(dict(FILES))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def run(hub: Hub, cache: Path, **keys: Any) -> subprocess.CompletedProcess[str]:
    model = {"id": ID, "revision": "main", "weights": True} | keys.pop("model", {})
    request = {"models": [model], "datasets": [], "dry_run": False, "json": True} | keys
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    environment |= {
        "PYTHONPATH": str(ROOT / "src" / "peers"),
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "1",  # fetching is the one step that overrules it
    }
    request["cache"] = str(cache / "hub")
    return subprocess.run(
        [sys.executable, "-m", "poros_peers.fetch", json.dumps(request)],
        check=False, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_takes_what_is_read_and_notes_the_commit(hub: Hub, tmp_path: Path) -> None:
    result = run(hub, tmp_path)
    assert result.returncode == 0, result.stderr
    model = json.loads(result.stdout)["models"][0]
    assert model["commit"] == COMMIT
    assert model["bytes"] == model["missing_bytes"] == 23 + 2 + 5000
    assert sorted(hub.asked) == ["config.json", "model.safetensors", "tokenizer.json"]
    folder = tmp_path / "hub" / "models--org--tiny"
    assert (folder / "refs" / "main").read_text() == COMMIT
    assert (folder / "snapshots" / COMMIT / "model.safetensors").read_bytes() == b"w" * 5000

    hub.asked.clear()
    again = run(hub, tmp_path)
    assert json.loads(again.stdout)["models"][0]["missing_bytes"] == 0
    assert hub.asked == []


def test_dry_run_downloads_nothing(hub: Hub, tmp_path: Path) -> None:
    result = run(hub, tmp_path, dry_run=True, json=False)
    assert result.returncode == 0, result.stderr
    assert "5.0 kB to download" in result.stdout
    assert COMMIT in result.stdout
    assert hub.asked == []


def test_shape_alone_needs_no_weights(hub: Hub, tmp_path: Path) -> None:
    result = run(hub, tmp_path, model={"weights": False})
    assert result.returncode == 0, result.stderr
    assert sorted(hub.asked) == ["config.json", "tokenizer.json"]


@pytest.mark.parametrize(
    ("model", "said"),
    [({"id": "org/none"}, "Check the id"), ({"revision": "v9"}, "Check the id")],
)
def test_wrong_names_are_input_errors(
    hub: Hub, tmp_path: Path, model: dict[str, str], said: str
) -> None:
    result = run(hub, tmp_path, model=model)
    assert result.returncode == 2
    assert said in result.stderr
    assert hub.asked == []


def test_other_formats_are_refused(hub: Hub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    result = run(hub, tmp_path)
    assert result.returncode == 2
    assert "no *.safetensors" in result.stderr
    assert hub.asked == []


def test_no_network_is_told(hub: Hub, tmp_path: Path) -> None:
    hub.shutdown()
    hub.server_close()
    result = run(hub, tmp_path, dry_run=True)
    assert result.returncode == 1
    assert "run the same command again" in result.stderr
