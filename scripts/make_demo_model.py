# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model: a small Qwen2-style causal language model of the King James Bible.

The text comes from Debian's packages bible-kjv and bible-kjv-text (public domain):

    bible -f gen1:1-rev22:21 > kjv.txt
    python scripts/make_demo_model.py --text kjv.txt --out configs/models/kjv-qwen2

The script trains a byte-level BPE tokenizer and the model on 95 % of the chapters, keeps the
weights with the lowest loss on the held-out 5 %, and writes the folder as `save_pretrained` leaves
it (config.json, generation_config.json, model.safetensors in bf16, tokenizer files) with a model
card.
It needs torch, transformers, tokenizers and numpy; a few minutes on a GPU, hours on a CPU
(`--steps 5` shows that it runs).
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import math
import re
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END_OF_TEXT = "<|endoftext|>"
HELD_OUT_EVERY = 20  # chapter 10, 30, 50, ... of the book is held out
VERSE = re.compile(r"^(\d?[A-Za-z]+)(\d+):(\d+) (.*)$")


def read_chapters(path: Path) -> list[str]:
    """Chapters of `bible -f` output: one verse a line, references stripped.

    Raises SystemExit naming the line when one is not "<book><chapter>:<verse> <text>".
    """
    opener = gzip.open if path.suffix == ".gz" else open
    chapters: dict[tuple[str, int], list[str]] = {}
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            match = VERSE.match(line.rstrip("\n"))
            if not match:
                raise SystemExit(
                    f"{path}:{number}: expected '<book><chapter>:<verse> <text>', found "
                    f"{line[:60]!r}; make the file with: bible -f gen1:1-rev22:21"
                )
            book, chapter, _, text = match.groups()
            chapters.setdefault((book, int(chapter)), []).append(" ".join(text.split()))
    if len(chapters) < 2 * HELD_OUT_EVERY:
        raise SystemExit(f"{path}: only {len(chapters)} chapters; the whole book has 1189")
    return ["\n".join(verses) + "\n" for verses in chapters.values()]


def train_tokenizer(texts: list[str], vocab: int) -> Tokenizer:
    """Byte-level BPE: every text can be encoded, nothing is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_stream(tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """All texts behind one another, each after an end-of-text token: int64 [tokens]."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [np.array([end, *encoding.ids]) for encoding in tokenizer.encode_batch(texts)]
    return torch.from_numpy(np.concatenate([*ids, np.array([end])])).long()


def model_config(vocab: int, seq_len: int) -> Qwen2Config:
    """Every matrix side is a multiple of 64 (the block of NF4 quantisation)."""
    return Qwen2Config(
        vocab_size=vocab,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=seq_len,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


def add_dropout(model: Qwen2ForCausalLM, rate: float) -> list:
    """Dropout on what attention and MLP add to the residual stream; returns handles to remove."""

    def drop(module: torch.nn.Module, _inputs: tuple, output: torch.Tensor) -> torch.Tensor:
        return functional.dropout(output, rate, training=module.training)

    handles = []
    for layer in model.model.layers:
        for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
            handles.append(module.register_forward_hook(drop))
    return handles


def mean_loss(model: Qwen2ForCausalLM, windows: torch.Tensor, device: torch.device) -> float:
    """Mean loss [nat a token] over rows of `windows`, int64 [rows, seq_len + 1]."""
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for rows in windows.split(32):
            rows = rows.to(device)
            logits = model(input_ids=rows[:, :-1]).logits
            targets = rows[:, 1:].reshape(-1)
            total += functional.cross_entropy(
                logits.float().reshape(len(targets), -1), targets, reduction="sum"
            ).item()
            count += len(targets)
    model.train()
    return total / count


def windows_of(stream: torch.Tensor, seq_len: int) -> torch.Tensor:
    """Rows of seq_len + 1 tokens, each beginning where the last ended: every target once."""
    rows = (len(stream) - 1) // seq_len
    return torch.stack([stream[i * seq_len : (i + 1) * seq_len + 1] for i in range(rows)])


def train(
    model: Qwen2ForCausalLM,
    stream: torch.Tensor,
    held_out: torch.Tensor,
    args: argparse.Namespace,
    device: torch.device,
) -> tuple[float, int]:
    """Trains in place and leaves the weights of the lowest held-out loss: (that loss, its step)."""
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": args.weight_decay}, {"params": rest, "weight_decay": 0}],
        lr=args.lr,
        betas=(0.9, 0.95),
    )
    warmup = max(1, args.steps // 20)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, args.steps - warmup)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    stream = stream.to(device)
    generator = torch.Generator().manual_seed(args.seed)
    handles = add_dropout(model, args.dropout)
    best_loss, best_step, best = math.inf, 0, {}
    started, worse = time.monotonic(), 0
    model.train()
    for step in range(1, args.steps + 1):
        starts = torch.randint(
            len(stream) - args.seq_len - 1, (args.batch,), generator=generator
        ).to(device)
        rows = stream[starts[:, None] + torch.arange(args.seq_len + 1, device=device)]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(input_ids=rows[:, :-1]).logits
        loss = functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.eval_every == 0 or step == args.steps:
            value = mean_loss(model, held_out, device)
            print(
                f"step {step}/{args.steps}  training {loss.item():.4f}  held-out {value:.4f}  "
                f"{time.monotonic() - started:.0f} s",
                flush=True,
            )
            if value < best_loss:
                best_loss, best_step, worse = value, step, 0
                best = copy.deepcopy({k: v.cpu() for k, v in model.state_dict().items()})
            else:
                worse += 1
            if worse >= args.patience:
                print(f"held-out loss has not fallen for {worse} checks: stopped", flush=True)
                break
    for handle in handles:
        handle.remove()
    model.load_state_dict(best)
    return best_loss, best_step


def card(args: argparse.Namespace, facts: dict[str, object], sample: str) -> str:
    """The model card."""
    quoted = "\n".join("> " + line for line in sample.strip().splitlines())
    return f"""---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---
# kjv-qwen2: the demo model

A Qwen2-style causal language model of {facts["parameters"]:,} parameters
(6 layers, hidden size 256, 4 attention heads of 64, 2 key-value heads, MLP 704, tied embeddings,
vocabulary 4096), trained from scratch by this project as a small real base for its demo. It is good
for showing that fine-tuning works, and for nothing else.

**Text.** The King James Version of the Bible, as Debian's packages bible-kjv and bible-kjv-text
print it (`bible -f gen1:1-rev22:21`). The translation is of 1611 and in the public domain (see
/usr/share/doc/bible-kjv-text/copyright). Verse references are stripped; a document is a chapter,
one verse a line.

**Licence.** Text: public domain. Weights, tokenizer and script: Apache-2.0.

**Made by** `{facts["command"]}`
on {facts["device"]} in {facts["seconds"]:.0f} s (Python {facts["python"]}, torch {facts["torch"]},
transformers {facts["transformers"]}, tokenizers {facts["tokenizers"]}). The tokenizer is a
byte-level BPE trained on the same chapters.

**Held-out loss.** Every {HELD_OUT_EVERY}th chapter ({facts["held_out_chapters"]} of
{facts["chapters"]}) was kept out of training, of the model and of the tokenizer. The stored bf16
weights have a mean loss of {facts["held_out_loss"]:.4f} nat a token there
({facts["held_out_loss_per_byte"]:.4f} nat a byte; perplexity {facts["perplexity"]:.2f} a token), in
rows of {args.seq_len} tokens. They are those of step {facts["best_step"]} of {args.steps}
({args.batch} rows of {args.seq_len} tokens a step).

**What it writes** (greedy, after "And it came to pass"):

{quoted}
"""


def shown_command() -> str:
    """The command line without the folders of this machine."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return shlex.join(["python", "scripts/make_demo_model.py", *words])


def sample_text(model: Qwen2ForCausalLM, tokenizer: Tokenizer, device: torch.device) -> str:
    """Sixty tokens, each the most likely one."""
    ids = tokenizer.encode("And it came to pass").ids
    with torch.no_grad():
        for _ in range(60):
            logits = model(input_ids=torch.tensor([ids], device=device)).logits[0, -1]
            ids.append(int(logits.argmax()))
    return tokenizer.decode(ids)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True, help="output of bible -f (or .gz)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=32, help="rows a step")
    parser.add_argument("--seq-len", type=int, default=512, help="tokens a row")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1, help="while training only")
    parser.add_argument("--eval-every", type=int, default=100, help="steps between held-out checks")
    parser.add_argument("--patience", type=int, default=8, help="checks without a better loss")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    started = time.monotonic()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    chapters = read_chapters(args.text)
    kept_out = [c for i, c in enumerate(chapters) if i % HELD_OUT_EVERY == HELD_OUT_EVERY // 2]
    learned = [c for i, c in enumerate(chapters) if i % HELD_OUT_EVERY != HELD_OUT_EVERY // 2]
    tokenizer = train_tokenizer(learned, args.vocab)
    stream = token_stream(tokenizer, learned)
    held_out_stream = token_stream(tokenizer, kept_out)
    held_out = windows_of(held_out_stream, args.seq_len)
    bytes_a_token = sum(len(c.encode()) for c in kept_out) / len(held_out_stream)
    model = Qwen2ForCausalLM(model_config(tokenizer.get_vocab_size(), args.seq_len)).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{len(learned)} chapters, {len(stream)} tokens to learn; {len(kept_out)} chapters, "
        f"{held_out.shape[0]} rows held out; {bytes_a_token:.2f} bytes a token; "
        f"{parameters:,} parameters on {device}",
        flush=True,
    )
    _, best_step = train(model, stream, held_out, args, device)

    model = model.to(torch.bfloat16)
    model.save_pretrained(args.out)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=args.seq_len,
        clean_up_tokenization_spaces=False,
    )
    wrapped.save_pretrained(args.out)
    stored = Qwen2ForCausalLM.from_pretrained(args.out, dtype=torch.bfloat16).to(device)
    loss = mean_loss(stored, held_out, device)
    if not math.isfinite(loss):
        raise SystemExit(f"{args.out}: the held-out loss of the stored weights is {loss}")
    facts = {
        "parameters": parameters,
        "command": shown_command(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU",
        "seconds": time.monotonic() - started,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "chapters": len(chapters),
        "held_out_chapters": len(kept_out),
        "held_out_loss": loss,
        "held_out_loss_per_byte": loss / bytes_a_token,
        "perplexity": math.exp(loss),
        "best_step": best_step,
    }
    stored.eval()
    text = card(args, facts, sample_text(stored, tokenizer, device))
    (args.out / "README.md").write_text(text, encoding="utf-8")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
