# SPDX-License-Identifier: Apache-2.0
"""The peft runner against a model without bitsandbytes: dense fp32 weights decoded from NF4."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDENS, RequestMaker
from poros_peers import protocol
from poros_peers.record import checkpoint_digest, file_sha256
from poros_peers.token_file import (
    DOCUMENT_START,
    PADDING,
    SUPERVISED,
    TokenFile,
    token_file_bytes,
)

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("keep_sigterm")]
CHECKPOINT = GOLDENS / "llama_bf16"  # every row a multiple of 64; vocabulary 300
SEQ_LEN, ROWS, RANK, ALPHA = 24, 8, 4, 8.0
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def write_tokens(path: Path, packed: bool, supervised_rows: int = ROWS) -> TokenFile:
    random = np.random.RandomState(11)
    ids = random.randint(0, 300, (ROWS, SEQ_LEN)).astype(np.uint32)
    flags = np.full((ROWS, SEQ_LEN), SUPERVISED, dtype=np.uint8)
    flags[supervised_rows:] = 0
    for row in range(ROWS):
        flags[row, SEQ_LEN - row :] = PADDING  # so that the micro-batches weigh differently
        flags[row, [0, 7, 15] if packed else [0]] = DOCUMENT_START
    tokens = TokenFile(ids, flags, 300, "{}")
    path.write_bytes(token_file_bytes(tokens))
    return tokens


def dense_model() -> Any:
    """The checkpoint with its linears quantised and decoded, and a PEFT adapter with B not zero."""
    import make_reference
    import peft
    import torch

    model = make_reference.load_model(CHECKPOINT, nf4=True)
    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, task_type="CAUSAL_LM"
    )
    torch.manual_seed(5)
    model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return model


def reference_run(model: Any, tokens: TokenFile, training: dict[str, Any]) -> dict[str, Any]:
    """Losses, norms and the final adapter: masks made by hand, AdamW written out."""
    import torch
    from torch.nn.functional import log_softmax

    weights = {n.replace(".default.", "."): p for n, p in model.named_parameters()}
    weights = {n: p for n, p in weights.items() if p.requires_grad}
    first = {n: torch.zeros_like(p) for n, p in weights.items()}
    second = {n: torch.zeros_like(p) for n, p in weights.items()}
    rows_a_step = training["batch_size"] * training["gradient_accumulation_steps"]
    losses, norms, gradients = [], [], {}
    for step in range(training["steps"]):
        rows = np.arange(step * rows_a_step, (step + 1) * rows_a_step) % ROWS
        ids = torch.from_numpy(tokens.ids[rows].astype(np.int64))
        documents = torch.from_numpy(tokens.documents(rows))
        allowed = (documents[:, :, None] == documents[:, None, :]) & torch.ones(
            SEQ_LEN, SEQ_LEN, dtype=torch.bool
        ).tril()
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)[:, None]
        positions = torch.from_numpy(tokens.positions(rows))
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
        chosen = torch.from_numpy(tokens.flags[rows][:, 1:] & SUPERVISED > 0)
        scores = log_softmax(logits[:, :-1], dim=-1).gather(2, ids[:, 1:, None])[..., 0]
        loss = -(scores * chosen).sum() / chosen.sum()
        model.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in weights.values())).item()
        losses.append(loss.item())
        norms.append(norm)
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in weights.items()}
        scale = min(1.0, training["max_grad_norm"] / norm) if training["max_grad_norm"] else 1.0
        progress = step / training["steps"]
        rate = training["learning_rate"] * 0.5 * (1 + math.cos(math.pi * progress))
        with torch.no_grad():
            for name, weight in weights.items():
                gradient = weight.grad * scale
                first[name].mul_(0.9).add_(gradient, alpha=0.1)
                second[name].mul_(0.999).add_(gradient**2, alpha=0.001)
                mean = first[name] / (1 - 0.9 ** (step + 1))
                variance = second[name] / (1 - 0.999 ** (step + 1))
                weight.mul_(1 - rate * training["weight_decay"])
                weight.sub_(rate * mean / (variance.sqrt() + 1e-8))
    final = {n: p.detach().clone() for n, p in weights.items()}
    return {"losses": losses, "norms": norms, "gradients": gradients, "final": final}


def run_peft(monkeypatch: pytest.MonkeyPatch, path: Path) -> tuple[int, dict[str, Any]]:
    from poros_peers import peft

    monkeypatch.setattr(sys, "argv", ["peft", str(path)])
    code = protocol.main(peft.METHOD, peft.PACKAGES, peft.run)
    return code, json.loads(Path(json.loads(path.read_text())["result_path"]).read_text())


def prepare(tmp_path: Path, model: Any) -> None:
    model.save_pretrained(tmp_path / "adapter")
    (tmp_path / "model").symlink_to(CHECKPOINT)


@pytest.mark.parametrize(
    ("packed", "batch", "accumulation", "peer", "clip"),
    [
        (False, 1, 2, {"attn_implementation": "eager", "gradient_checkpointing": True}, 0.5),
        (False, 2, 1, {"attn_implementation": "auto", "gradient_checkpointing": False}, 0.0),
        (True, 2, 1, {"attn_implementation": "eager", "gradient_checkpointing": False}, 1.0),
        (True, 1, 2, {"attn_implementation": "auto", "gradient_checkpointing": True}, 1.0),
    ],
)
def test_same_training_as_dense_weights(
    make_request: RequestMaker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    packed: bool,
    batch: int,
    accumulation: int,
    peer: dict[str, Any],
    clip: float,
) -> None:
    import torch
    from safetensors.torch import load_file

    tokens = write_tokens(tmp_path / "tokens", packed)
    model = dense_model()
    prepare(tmp_path, model)
    steps = 5  # ten rows of eight: the first rows come again
    path, request = make_request(
        training={
            "steps": steps,
            "batch_size": batch,
            "gradient_accumulation_steps": accumulation,
            "max_grad_norm": clip,
            "warmup_steps": 2,
        },
        peer=peer,
        dump={"step": 1, "dir": str(tmp_path / "first")},
    )
    code, record = run_peft(monkeypatch, path)
    assert (code, record["status"], record["error_message"]) == (0, "ok", "")
    expected = reference_run(model, tokens, request["cell"]["training"])
    assert record["steps"]["loss"] == pytest.approx(expected["losses"], rel=1e-5)
    assert record["steps"]["grad_norm"] == pytest.approx(expected["norms"], rel=1e-4)
    gradients = load_file(tmp_path / "first" / "gradient.safetensors")
    assert gradients.keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        limit = 1e-5 * gradient.abs().max()
        assert torch.allclose(gradients[name], gradient, rtol=0, atol=limit), name

    supervised = (tokens.flags & SUPERVISED > 0).sum(axis=1).tolist()
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (0, 1)]
    assert record["steps"]["supervised_tokens"] == [supervised[a] + supervised[b] for a, b in pairs]
    rates = [1e-3 * 0.5 * (1 + math.cos(math.pi * s / steps)) for s in range(steps)]
    assert record["steps"]["learning_rate"] == pytest.approx(rates)
    assert record["s_per_step"] == sorted(record["steps"]["s_per_step"][2:])[1]
    attention = "sdpa" if peer["attn_implementation"] == "auto" else "eager"
    assert record["arm"]["attn_implementation"] == attention
    assert record["arm"]["gradient_checkpointing"] is peer["gradient_checkpointing"]
    assert record["arm"]["packed"] is packed


def test_record_of_a_pass(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "tokens", packed=False)
    prepare(tmp_path, dense_model())
    path, _ = make_request(training={"steps": 3}, max_steps=2)
    code, record = run_peft(monkeypatch, path)
    assert (code, record["status"]) == (0, "ok")
    assert len(record["steps"]["loss"]) == 2
    # llama_bf16: 2 layers, hidden 128, 2 of 4 heads for k and v, intermediate 320, vocabulary 300
    elements = 2 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 320 * 128)
    assert record["base_bytes"] == {
        "nf4": elements // 2 + elements // 64 + 4 * nested_blocks(),
        "fp32": 4 * (2 * 300 * 128 + 5 * 128),
    }
    rows_and_columns = 2 * (2 * (128 + 128) + 2 * (128 + 64) + 3 * (128 + 320))
    assert record["trainable_params"] == RANK * rows_and_columns
    assert record["token_sha256"] == file_sha256(tmp_path / "tokens")
    assert record["adapter_sha256"] == file_sha256(
        tmp_path / "adapter" / "adapter_model.safetensors"
    )
    assert record["weights"] == f"pretrained@{checkpoint_digest(CHECKPOINT)}"
    dtypes = {"adapter": "fp32", "embedding": "fp32", "head": "fp32", "norm": "fp32"}
    assert record["arm"]["dtypes"] == dtypes
    assert record["arm"]["quantised_linears"] == 14
    assert record["device"]["kind"] == "cpu"
    assert {"torch", "transformers", "peft", "bitsandbytes"} <= record["versions"].keys()
    assert record["host_rss_peak_mb"] >= record["steps"]["host_rss_mb"][-1] > 0
    assert record["vram_peak_mb"] is None and record["steps"]["allocated_mb"] == []


def nested_blocks() -> int:
    """fp32 values of the nested absmax: one for 256 absmax of each linear."""
    shapes = [(128, 128), (64, 128), (64, 128), (128, 128), (320, 128), (320, 128), (128, 320)]
    return 2 * sum(math.ceil(out * columns / 64 / 256) for out, columns in shapes)


def test_step_without_supervised_tokens_changes_nothing(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "tokens", packed=False, supervised_rows=2)
    prepare(tmp_path, dense_model())
    path, _ = make_request(training={"steps": 5})  # rows 0-1, then 2-7 without targets, then 0-1
    _, record = run_peft(monkeypatch, path)
    steps = record["steps"]
    assert record["status"] == "ok"
    assert steps["loss"][1:4] == [0, 0, 0] and steps["grad_norm"][1:4] == [0, 0, 0]
    assert steps["supervised_tokens"][1:4] == [0, 0, 0]
    assert 0 < steps["loss"][4] < steps["loss"][0]


def test_wrong_inputs_are_named(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "tokens", packed=False)
    prepare(tmp_path, dense_model())
    named = tmp_path / ("0" * 64 + ".tokens")
    shutil.copy(tmp_path / "tokens", named)
    path, _ = make_request(tokens_path=str(named))
    code, record = run_peft(monkeypatch, path)
    assert (code, record["status"], record["reason"]) == (0, "error", "bad_input")
    assert "its content has the sha256" in record["error_message"]

    path, _ = make_request()
    request = json.loads(path.read_text())
    request["cell"]["precision"] = "bf16"
    path.write_text(json.dumps(request))
    code, record = run_peft(monkeypatch, path)
    assert (code, record["status"], record["reason"]) == (3, "skipped", "unsupported")


def test_rows_that_bitsandbytes_decodes_wrongly_are_refused(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "tokens", packed=False)
    prepare(tmp_path, dense_model())
    path, _ = make_request(model_dir=str(GOLDENS / "arch_llama"))  # down_proj: rows of 96
    code, record = run_peft(monkeypatch, path)
    assert (code, record["status"], record["reason"]) == (3, "skipped", "unsupported")
    assert "model.layers.0.mlp.down_proj has rows of 96 values" in record["error_message"]


def test_adapter_that_does_not_fit(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    write_tokens(tmp_path / "tokens", packed=False)
    prepare(tmp_path, dense_model())
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
    tensors[name.replace("layers.0", "layers.7")] = tensors[name].clone()
    save_file(tensors, file, metadata={"format": "pt"})
    code, record = run_peft(monkeypatch, make_request()[0])
    assert (code, record["status"], record["reason"]) == (0, "error", "bad_input")
    assert "layers.7" in record["error_message"]


def test_divergence_has_its_name(
    make_request: RequestMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "tokens", packed=False)
    prepare(tmp_path, dense_model())
    path, _ = make_request(training={"learning_rate": 1e25, "steps": 4, "lr_scheduler": "constant"})
    code, record = run_peft(monkeypatch, path)
    assert (code, record["status"], record["reason"]) == (0, "error", "diverged")
    assert "of 4: loss" in record["error_message"]
    assert len(record["steps"]["loss"]) < 4
