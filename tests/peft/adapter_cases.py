# SPDX-License-Identifier: Apache-2.0
"""The tables of adapter_logits_test.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RANK, ALPHA = 4, 6.5
EXPERTS = 4  # a layer, in both checkpoints with experts
QKV = r".*\.(q|qkv)_proj"
CHECKPOINTS = {  # model_type: folder below tests/goldens/checkpoints, or made by the test
    "llama": "llama_rope3",
    "mistral": "mistral_window",
    "qwen2": "qwen2_window",
    "qwen3": "qwen3_lively",
    "gemma2": "gemma2_window",
    "gemma3_text": "gemma3_window",
    "gemma3": "made:gemma3",  # nested, with a vision tower
    "phi3": "phi3_longrope_short",
    "qwen3_moe": "qwen3_moe_lively",
    "qwen3_moe_mixed": "made:qwen3_moe_mixed",  # layer 0 dense, layer 1 experts
    "mixtral": "mixtral_lively",
}
MOE = {"qwen3_moe": ["gate_proj", "up_proj", "down_proj"], "mixtral": ["w1", "w3", "w2"]}


@dataclass
class Case:
    """`lora` is for our program, `peft` for LoraConfig; `refused` is part of the message."""

    model: str
    name: str
    lora: dict[str, Any] | None = None
    peft: dict[str, Any] | None = None
    refused: str = ""
    fills: bool = False  # PEFT makes adapters that are zero for what isn't adapted, and says so


def _ours() -> list[Case]:
    cases = []
    for model in CHECKPOINTS:
        options: dict[str, dict[str, Any]] = {
            "default": {},
            "all_linear": {"target_modules": ["all-linear"]},
            "one_name": {"target_modules": ["o_proj"]},
            "one_module": {"target_modules": ["layers.1.self_attn.o_proj"]},
            "rslora": {"use_rslora": True},
            "rank_pattern": {"rank_pattern": {"o_proj": 2, QKV: 7}},
            "alpha_pattern": {"alpha_pattern": {r"layers\.1\.self_attn\..*": 3.25}},
            "anchored": {"rank_pattern": {"^model.layers.0.self_attn.o_proj": 1}},
            "lookahead": {"rank_pattern": {r"(?!layers\.0).*\.o_proj": 3}},
            "everything": {
                "use_rslora": True,
                "rank_pattern": {r"layers\.[01]\..*o_proj": 2},
                "alpha_pattern": {"self_attn.o_proj": 5},
            },
        }
        cases += [Case(model, name, lora) for name, lora in options.items()]
    for model, (gate, up, down) in MOE.items():
        experts = {"target_modules": ["q_proj", gate, up, down]}
        prefix = "mlp" if model == "qwen3_moe" else "block_sparse_moe"
        one_layer = [
            f"layers.1.{prefix}.experts.{e}.{n}" for e in range(EXPERTS) for n in (gate, up, down)
        ]
        options = {
            "experts": {},
            "experts_rslora": {"use_rslora": True},
            "experts_down": {"target_modules": [down]},
            "experts_gate_up": {"target_modules": [gate, up]},
            "experts_down_rank": {"rank_pattern": {down: 2}},
            "experts_gate_up_rank": {"rank_pattern": {gate: 2, up: 2}},
            "experts_gate_rank": {  # one scale, two ranks
                "rank_pattern": {gate: 2}, "alpha_pattern": {gate: ALPHA / 2}
            },
            "experts_layer_rank": {
                "use_rslora": True, "rank_pattern": {rf"layers\.1\..*\.experts\.\d+\.{down}": 3}
            },
            "experts_any": {"rank_pattern": {".*": 3}},
            "experts_alpha": {"alpha_pattern": {rf".*({gate}|{up})": 3}},
        }  # fmt: skip
        cases += [
            Case(model, name, experts | lora, fills=name == "experts_gate_up")
            for name, lora in options.items()
        ]
        cases.append(Case(model, "experts_one_layer", {"target_modules": one_layer}, fills=True))
        refusals: dict[str, tuple[dict[str, Any], str]] = {
            "gate_alone": ({"target_modules": [gate]}, "gate and up"),
            "one_expert": ({"target_modules": one_layer[:3]}, "adapt all of them"),
            "scales": ({"rank_pattern": {gate: 2}}, "one scale"),
            "dropout": ({"dropout": 0.1}, "lora.dropout"),
            "in_the_way": ({"rank_pattern": {"(?:.*)": 3}}, "narrow that key"),
        }
        for name, (lora, message) in refusals.items():
            cases.append(Case(model, f"refused_{name}", experts | lora, refused=message))
    mixed = {
        "mlp_all": {"target_modules": ["gate_proj", "up_proj", "down_proj"]},
        "mlp_dense": {"target_modules": ["layers.0.mlp.up_proj"]},
        "mlp_rank": {"rank_pattern": {"layers.0.mlp.down_proj": 2}, "use_rslora": True},
    }
    cases += [Case("qwen3_moe_mixed", name, lora) for name, lora in mixed.items()]
    return cases


def _theirs() -> list[Case]:
    cases = []
    linears = {
        "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
        "qwen3_moe": ["q_proj", "k_proj", "v_proj", "o_proj"],
    }
    linears |= {"mixtral": linears["qwen3_moe"], "qwen3_moe_mixed": linears["qwen3_moe"]}
    dense = [*linears["qwen3_moe"], "gate_proj", "up_proj", "down_proj"]
    text = "model.language_model.layers"
    for model in CHECKPOINTS:
        names = linears.get(model, dense)
        if model == "gemma3":  # short names would adapt the vision tower too
            names = [f"{text}.{i}.self_attn.{n}" for i in (0, 1) for n in ("q_proj", "o_proj")]
        options: dict[str, dict[str, Any]] = {
            "list": {"target_modules": names},
            "rslora": {"target_modules": names, "use_rslora": True},
            "patterns": {
                "target_modules": names,
                "rank_pattern": {"o_proj": 2, QKV: 7},
                "alpha_pattern": {r"layers\.1\.self_attn\.\w+": 3.25},
            },
            "expression": {"target_modules": r".*layers\.\d+\.self_attn\.o_proj"},
        }
        if model == "gemma3":
            options["expression"]["target_modules"] = r".*language_model.*\.self_attn\.o_proj"
        else:
            options |= {
                "layers_to_transform": {"target_modules": names, "layers_to_transform": [1]},
                "layers_pattern": {
                    "target_modules": ["o_proj"], "layers_to_transform": 0,
                    "layers_pattern": "layers",
                },
                "exclude": {"target_modules": names, "exclude_modules": ["o_proj"]},
                "parameter": {
                    "target_modules": [], "target_parameters": ["o_proj.weight"],
                    "rank_pattern": {"o_proj": 2, r"layers\.1\.self_attn\.o_proj\.weight": 3},
                },
            }  # fmt: skip
        cases += [Case(model, name, peft=lora) for name, lora in options.items()]
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    for model, names in MOE.items():
        options = {
            "parameters": {"target_modules": ["q_proj"], "target_parameters": parameters},
            "parameters_rank": {
                "target_modules": ["q_proj"], "target_parameters": parameters,
                "rank_pattern": {"experts.gate_up_proj": 2}, "alpha_pattern": {"down_proj": 3},
            },
            "parameters_rslora": {
                "target_modules": [], "target_parameters": parameters, "use_rslora": True,
                "rank_pattern": {r"layers\.0\.mlp.*gate_up_proj": 3},
            },
            "gate_up": {"target_modules": [], "target_parameters": parameters[:1]},
            "down": {"target_modules": [], "target_parameters": ["experts.down_proj"]},
            "one_layer": {
                "target_modules": ["o_proj"],
                "target_parameters": [f"model.layers.1.{n}" for n in parameters],
            },
            "old_names": {"target_modules": ["o_proj", *names]},
        }  # fmt: skip
        cases += [
            Case(model, name, peft=lora, fills=name in ("gate_up", "one_layer"))
            for name, lora in options.items()
        ]
        cases.append(
            Case(
                model, "router", peft={"target_modules": "all-linear"}, refused="target_parameters"
            )
        )
    refusals: dict[str, tuple[dict[str, Any], str]] = {
        "dora": ({"target_modules": ["q_proj"], "use_dora": True}, "DoRA"),
        "saved": (
            {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
            "modules_to_save",
        ),
        "bias": ({"target_modules": ["q_proj"], "bias": "all"}, "bias"),
        "lora_bias": ({"target_modules": ["q_proj"], "lora_bias": True}, "lora_bias"),
        "embedding": ({"target_modules": ["q_proj", "embed_tokens"]}, "embedding"),
        "head": ({"target_modules": ["q_proj", "lm_head"]}, "head"),
    }
    for name, (lora, message) in refusals.items():
        cases.append(Case("llama", f"refused_{name}", peft=lora, refused=message))
    return cases


OURS, THEIRS = _ours(), _theirs()
