# SPDX-License-Identifier: Apache-2.0
"""What a dataset gave: counted while rows are made, shown before training."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

QUANTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass
class Statistics:
    """Counts of documents as they were read, and of the rows that were written."""

    kind: str
    seq_len: int
    records_in_source: int = 0
    records_read: int = 0
    lengths: array[int] = field(default_factory=lambda: array("I"))  # [tokens] before any cut
    split: int = 0
    truncated: int = 0
    too_short: int = 0
    too_long: int = 0
    nothing_learnt: int = 0
    rows: int = 0
    tokens: int = 0
    supervised_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        ordered = sorted(self.lengths)
        length: dict[str, float] = {}
        if ordered:
            for name, share in QUANTILES.items():  # nearest rank
                length[name] = ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
            length["mean"] = sum(ordered) / len(ordered)
        room = self.rows * self.seq_len
        return {
            "rows_are": self.kind,
            "records": {"in_source": self.records_in_source, "read": self.records_read},
            "documents": len(ordered),
            "document_tokens": length,
            "split": self.split,
            "truncated": self.truncated,
            "dropped": {
                "too_short": self.too_short,
                "too_long": self.too_long,
                "nothing_learnt": self.nothing_learnt,
            },
            "rows": self.rows,
            "seq_len": self.seq_len,
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
            "padding_share": 1 - self.tokens / room if room else None,
        }


def text_of(values: dict[str, Any]) -> str:
    """The same for people, a few lines."""
    records, dropped = values["records"], values["dropped"]
    lines = [
        f"records    {records['read']:,} read of {records['in_source']:,}, {values['rows_are']}"
    ]
    length = values["document_tokens"]
    if length:
        quantiles = " / ".join(f"{length[name]:,}" for name in QUANTILES)
        lines.append(
            f"documents  {values['documents']:,} of {quantiles} tokens "
            f"(min / median / 90 % / 99 % / max), mean {length['mean']:,.1f}"
        )
        lines.append(
            f"too long   {values['split']:,} split, {values['truncated']:,} truncated, "
            f"{dropped['too_long']:,} dropped; dropped besides: {dropped['too_short']:,} shorter "
            f"than two tokens, {dropped['nothing_learnt']:,} with nothing to learn"
        )
    padding = 100 * values["padding_share"]
    lines.append(
        f"rows       {values['rows']:,} of {values['seq_len']:,} tokens: "
        f"{values['tokens']:,} tokens, {values['supervised_tokens']:,} of them learnt, "
        f"{padding:.1f} % padding"
    )
    return "\n".join(lines) + "\n"
