#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the attack files of the model formats and, beside them, what each must be refused for.

    python3 tests/attacks/make_model_attacks.py

makes tests/attacks/safetensors/*.safetensors, tests/attacks/config/*.json and tests/attacks/adapter/*/
again, each folder with expected.json: {file or folder: part of the error message}. All are small; sizes
that they claim are not.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GOLDENS = HERE.parent / "goldens"


def container(header: bytes | str, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header and any claimed header length."""
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: Any = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    """One tensor's header entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def safetensors_attacks() -> dict[str, tuple[bytes, str]]:
    """File name -> (content, part of the message). After the tests of the reference reader."""
    four = bytes(16)

    def one(tensor: Any, data: bytes = four) -> bytes:
        return container(json.dumps({"t": tensor}), data)

    big = 2**63
    return {
        "empty": (b"", "too few"),
        "seven_bytes": (b"\x01\0\0\0\0\0\0", "too few"),
        "length_only": (struct.pack("<Q", 0), "does not begin with"),
        "header_longer_than_file": (container("{}", length=60), "more than the file holds"),
        "header_length_over_limit": (container("{}", length=100_000_001), "over the limit"),
        "header_length_max": (container("{}", length=2**64 - 1), "over the limit"),
        "not_an_object": (container("[]"), "does not begin with"),
        "leading_space": (container(" {}"), "does not begin with"),
        "not_json": (container("{notjson}"), "not valid JSON"),
        "cut_json": (container('{"t":{"dtype":"F32",'), "not valid JSON"),
        "text_after_json": (container("{} {}"), "not valid JSON"),
        "invalid_utf8": (container(b'{"t\xff\xfe":1}'), "not valid JSON"),
        "deep_nesting": (container('{"a":' * 5_000), "nested deeper"),
        "deep_arrays": (container('{"a":' + "[" * 5_000), "nested deeper"),
        "duplicate_tensor": (
            container(
                '{"t":' + json.dumps(entry()) + ',"t":' + json.dumps(entry()) + "}", four),
            "duplicate key"),
        "duplicate_field": (
            container('{"t":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}}', four),
            "duplicate key"),
        "unknown_field": (one({**entry(), "extra": 1}), "unknown key"),
        "unknown_dtype": (one(entry("Q4_K")), "unknown dtype"),
        "dtype_is_number": (one(entry(3)), "wrong type"),
        "no_dtype": (one({"shape": [4], "data_offsets": [0, 16]}), "missing"),
        "no_shape": (one({"dtype": "F32", "data_offsets": [0, 16]}), "no shape list"),
        "no_offsets": (one({"dtype": "F32", "shape": [4]}), "data_offsets must be two numbers"),
        "three_offsets": (one(entry(offsets=[0, 8, 16])), "data_offsets must be two numbers"),
        "negative_size": (one(entry(shape=[-2, 2])), "not a whole number"),
        "fraction_size": (one(entry(shape=[2.5, 2])), "not a whole number"),
        "shape_is_text": (one(entry(shape=["2", 2])), "not a whole number"),
        "shape_overflow": (one(entry(shape=[2**32, 2**32, 2**32])), "overflows"),
        "shape_overflow_by_dtype": (one(entry("F64", [2**61], [0, 16])), "overflows"),
        "size_over_int64": (one(entry(shape=[big])), "overflows"),
        "many_dimensions": (one(entry(shape=[1] * 10_000)), "more than 16 dimensions"),
        "offsets_reversed": (one(entry(offsets=[16, 0])), "end before they begin"),
        "offsets_negative": (one(entry(offsets=[-16, 0])), "not a whole number"),
        "offsets_huge": (one(entry(offsets=[2**64 - 17, 2**64 - 1])), "overflow"),
        "size_and_offsets_differ": (one(entry(shape=[2, 3])), "needs 24 bytes"),
        "truncated_data": (one(entry(), bytes(15)), "truncated file"),
        "bytes_left_over": (one(entry(), bytes(17)), "bytes left over"),
        "hole_at_begin": (one(entry(offsets=[16, 32]), bytes(32)), "hole"),
        "hole_between": (
            container(json.dumps({"a": entry(), "b": entry(offsets=[20, 36])}), bytes(36)), "hole"),
        "overlap": (
            container(json.dumps({"a": entry(), "b": entry(offsets=[8, 24])}), bytes(24)),
            "overlap"),
        "same_bytes_twice": (container(json.dumps({"a": entry(), "b": entry()}), four), "overlap"),
        "metadata_is_list": (container('{"__metadata__":[1]}'), "not an object"),
        "metadata_value_is_number": (container('{"__metadata__":{"format":1}}'), "not a string"),
        "tensor_is_number": (container('{"t":5}'), "not a JSON object"),
        "zip_polyglot": (b"PK\x03\x04" + bytes(60), "more than the file holds"),
    }


def config_attacks() -> dict[str, tuple[str, str]]:
    """File name -> (text, part of the message)."""
    base = json.loads((GOLDENS / "arch_llama" / "config.json").read_text())

    def changed(**changes: Any) -> str:
        return json.dumps({k: v for k, v in {**base, **changes}.items() if v != "REMOVE"})

    def rope(**parameters: Any) -> str:
        return changed(rope_parameters={"rope_theta": 1e4, **parameters})

    moe = json.loads((GOLDENS / "arch_qwen3_moe" / "config.json").read_text())
    gemma = json.loads((GOLDENS / "arch_gemma2" / "config.json").read_text())
    phi = json.loads((GOLDENS / "arch_phi3" / "config.json").read_text())
    return {
        "empty": ("", "not valid JSON"),
        "list": ("[]", "not a JSON object"),
        "cut": ('{"model_type": "lla', "not valid JSON"),
        "deep": ('{"a":' * 5_000, "nested deeper"),
        "duplicate_key": ('{"model_type":"llama","model_type":"qwen2"}', "duplicate key"),
        "no_model_type": (changed(model_type="REMOVE"), "model_type"),
        "unknown_model_type": (changed(model_type="rwkv"), "known are"),
        "model_type_is_number": (changed(model_type=1), "wrong type"),
        "layers_huge": (changed(num_hidden_layers=10**12), "expected 1 to"),
        "layers_zero": (changed(num_hidden_layers=0), "expected 1 to"),
        "layers_negative": (changed(num_hidden_layers=-1), "expected 1 to"),
        "layers_fraction": (changed(num_hidden_layers=2.5), "wrong type"),
        "layers_text": (changed(num_hidden_layers="2"), "wrong type"),
        "layers_over_int64": (changed(num_hidden_layers=2**64), "wrong type"),
        "hidden_huge": (changed(hidden_size=2**40), "expected 1 to"),
        "vocab_huge": (changed(vocab_size=2**50), "expected 1 to"),
        "no_hidden": (changed(hidden_size="REMOVE"), "hidden_size"),
        "heads_not_multiple": (changed(num_key_value_heads=3), "no multiple"),
        "hidden_not_multiple": (changed(head_dim=None, num_attention_heads=6,
                                        num_key_value_heads=2), "no multiple"),
        "odd_head_dim": (changed(head_dim=15), "even number"),
        "activation": (changed(hidden_act="relu"), "not supported"),
        "eps_negative": (changed(rms_norm_eps=-1), "out of range"),
        "number_infinite": (changed().replace("1e-06", "1e999"), "overflow"),
        "rope_unknown": (rope(rope_type="yarn", factor=4.0), "not supported"),
        "rope_theta_zero": (rope(rope_theta=0, rope_type="default"), "above 0"),
        "rope_factor_zero": (rope(rope_type="linear", factor=0), "above 0"),
        "rope_no_factor": (rope(rope_type="linear"), "factor"),
        "rope_llama3_order": (
            rope(rope_type="llama3", factor=8, low_freq_factor=4, high_freq_factor=1,
                 original_max_position_embeddings=64), "must be above"),
        "rope_is_list": (changed(rope_parameters=[1]), "not an object"),
        "longrope_short_list": (
            json.dumps({**phi, "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0],
                "long_factor": [1.0], "partial_rotary_factor": 1.0}}), "list of"),
        "partial_rotary_too_large": (
            json.dumps({**phi, "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 2.0}}),
            "partial_rotary_factor"),
        "layer_types_short": (json.dumps({**gemma, "layer_types": ["full_attention"]}), "list of"),
        "layer_types_unknown": (
            json.dumps({**gemma, "layer_types": ["full_attention", "linear_attention"]}),
            "layer_types has"),
        "experts_huge": (json.dumps({**moe, "num_local_experts": 10**9}), "expected 1 to"),
        "experts_times_layers": (
            json.dumps({**moe, "num_local_experts": 4096, "num_hidden_layers": 4096}),
            "experts in all"),
        "top_k_over_experts": (json.dumps({**moe, "num_experts_per_tok": 5}), "expected 1 to"),
        "mlp_only_layers_text": (json.dumps({**moe, "mlp_only_layers": ["x"]}), "layer numbers"),
        "gemma3_without_text": (json.dumps({"model_type": "gemma3"}), "without text_config"),
    }


def adapter_attacks() -> dict[str, tuple[dict[str, bytes], str]]:
    """Folder name -> (files, part of the message); the model is tests/goldens/arch_llama."""
    source = GOLDENS / "peft_llama"
    config = json.loads((source / "adapter_config.json").read_text())
    raw = (source / "adapter_model.safetensors").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    tensors = {k: (v["dtype"], v["shape"],
                   raw[8 + length + v["data_offsets"][0] : 8 + length + v["data_offsets"][1]])
               for k, v in header.items() if k != "__metadata__"}
    # Two modules are enough, and small.
    keep = ("layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj")
    tensors = {k: v for k, v in tensors.items() if any(name in k for name in keep)}
    config["target_modules"] = ["q_proj"]

    def weights(changed: dict[str, Any]) -> bytes:
        offset, head, data = 0, {}, b""
        for name, (dtype, shape, content) in changed.items():
            head[name] = entry(dtype, shape, [offset, offset + len(content)])
            offset += len(content)
            data += content
        return container(json.dumps(head), data)

    def case(reason: str, change: dict[str, Any] | None = None, extra: dict[str, Any] | None = None,
             drop: str = "", config_text: str | None = None) -> tuple[dict[str, bytes], str]:
        text = json.dumps({**config, **(change or {})}) if config_text is None else config_text
        kept = {k: v for k, v in tensors.items() if not (drop and drop in k)}
        return ({"adapter_config.json": text.encode(),
                 "adapter_model.safetensors": weights({**kept, **(extra or {})})}, reason)

    prefix = "base_model.model.model.layers."
    a0 = prefix + "0.self_attn.q_proj.lora_A.weight"
    b0 = prefix + "0.self_attn.q_proj.lora_B.weight"
    zeros = bytes(8 * 64 * 4)
    nan = struct.pack("<f", float("nan")) + zeros[4:]
    return {
        "not_lora": case("peft_type", {"peft_type": "IA3"}),
        "no_peft_type": case("missing", config_text='{"r": 8}'),
        "config_is_list": case("not a JSON object", config_text="[]"),
        "config_deep": case("nested deeper", config_text='{"a":' * 5_000),
        "config_duplicate": case("duplicate key", config_text='{"r":8,"r":16}'),
        "dora": case("DoRA", {"use_dora": True}),
        "magnitudes_without_flag": case(
            "DoRA", extra={prefix + "0.self_attn.q_proj.lora_magnitude_vector":
                           ("F32", [64], bytes(256))}),
        "embedding": case(
            "embedding", extra={"base_model.model.model.embed_tokens.lora_embedding_A":
                                ("F32", [8, 128], bytes(4096))}),
        "modules_to_save": case("modules_to_save", {"modules_to_save": ["lm_head"]}),
        "saved_head": case("head", extra={"base_model.model.lm_head.weight":
                                          ("F32", [1, 1], bytes(4))}),
        "target_parameters": case("target_parameters",
                                  {"target_parameters": ["mlp.experts.down_proj"]}),
        "bias": case("bias", {"bias": "all"}),
        "fan_in_fan_out": case("fan_in_fan_out", {"fan_in_fan_out": True}),
        "rank_zero": case("out of range", {"r": 0}),
        "rank_huge": case("out of range", {"r": 2**40}),
        "alpha_huge": case("alpha", {"lora_alpha": 1e300}),
        "alpha_pattern_huge": case("alpha", {"alpha_pattern": {".*": -1e300}}),
        "rank_text": case("wrong type", {"r": "8"}),
        "rank_differs": case("shape", {"r": 4}),
        "pattern_is_no_regex": case("regular expression", {"rank_pattern": {"(q_proj": 4}}),
        "pattern_backtracks": case("regular expression",
                                   {"rank_pattern": {"(([a-z0-9_.]+)+)+[!?]": 4}}),
        "pattern_repeats": case("regular expression",
                                {"alpha_pattern": {"(((a{999}){999}){999}){999}": 4}}),
        "pattern_calls_itself": case("regular expression",
                                     {"alpha_pattern": {"((?2)|.)*(?2)[!?]": 4}}),
        "pattern_is_long": case("longer than", {"rank_pattern": {"(" + "q" * 600 + ")": 4}}),
        "patterns_too_many": case("over 64 regular expressions", {
            "rank_pattern": {f"q_proj|{i}": 4 for i in range(65)}}),
        "patterns_disagree": case("several keys fit",
                                  {"rank_pattern": {"q_proj": 8, r".*\.q_proj": 4}}),
        "pattern_nan": case("adapter_config.json", config_text=json.dumps(
            {**config, "alpha_pattern": {"q_proj": float("nan")}})),
        "parameters_is_text": case("no list", {"target_parameters": "q_proj.weight"}),
        "parameters_of_numbers": case("target_parameters", {"target_parameters": [1]}),
        "pattern_is_list": case("no object", {"rank_pattern": [1]}),
        "deeper_model": case("fits no linear layer",
                             extra={prefix + "2.self_attn.q_proj.lora_A.weight":
                                    ("F32", [8, 64], zeros)}),
        "unknown_module": case("fits no linear layer",
                               extra={prefix + "0.self_attn.z_proj.lora_A.weight":
                                      ("F32", [8, 64], zeros)}),
        "traversal_name": case("fits no linear layer",
                               extra={"../../etc/passwd": ("F32", [1], bytes(4))}),
        "only_a": case("only one of", drop=b0),
        "only_b": case("only one of", drop=a0),
        "layer_missing": case("is missing", drop="layers.1."),
        "integers": case("not supported", extra={a0: ("I32", [8, 64], zeros)}),
        "transposed": case("shape", extra={a0: ("F32", [64, 8], zeros)}),
        "nan": case("NaN", extra={a0: ("F32", [8, 64], nan)}),
        "unknown_target": case("matches no linear layer", {"target_modules": ["q_proj", "nope"]}),
        "no_tensors": ({"adapter_config.json": json.dumps(config).encode(),
                        "adapter_model.safetensors": container("{}")}, "no LoRA tensors"),
        "weights_cut": ({"adapter_config.json": json.dumps(config).encode(),
                         "adapter_model.safetensors": weights(tensors)[:-3]}, "truncated file"),
        "weights_not_there": ({"adapter_config.json": json.dumps(config).encode()},
                              "adapter_model.safetensors"),
    }


def fresh(name: str) -> Path:
    """An empty folder."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def write_expected(folder: Path, expected: dict[str, str]) -> None:
    """expected.json."""
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Writes all."""
    folder = fresh("safetensors")
    attacks = safetensors_attacks()
    for name, (content, _) in attacks.items():
        (folder / f"{name}.safetensors").write_bytes(content)
    write_expected(folder, {f"{n}.safetensors": reason for n, (_, reason) in attacks.items()})

    folder = fresh("config")
    configs = config_attacks()
    for name, (text, _) in configs.items():
        (folder / f"{name}.json").write_text(text)
    write_expected(folder, {f"{n}.json": reason for n, (_, reason) in configs.items()})

    folder = fresh("adapter")
    adapters = adapter_attacks()
    for name, (files, _) in adapters.items():
        (folder / name).mkdir()
        for file, content in files.items():
            (folder / name / file).write_bytes(content)
    write_expected(folder, {n: reason for n, (_, reason) in adapters.items()})


if __name__ == "__main__":
    main()
