#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What h5py reads from campaign.h5 against the campaign's journal and records.

h5_agrees.py DIR...: ends with 1 and names the difference where they do not agree, with 77 where
h5py is missing.
"""

from __future__ import annotations

import json
import math
import pathlib
import sys
from typing import Any

try:
    import h5py
except ImportError as error:
    print(f"skipped: {error}; set POROS_PYTHON to a Python with h5py")
    sys.exit(77)


def text_of(value: Any) -> str:
    """An HDF5 string, whichever way h5py gives it."""
    return value.decode() if isinstance(value, bytes) else str(value)


def check_cell(row: Any, receipt: dict[str, Any]) -> int:
    """Compares a row of the table with the cell's receipt; returns how many columns."""
    compared = 0
    for name in row.dtype.names:
        if name not in receipt:
            continue
        found, expected = row[name], receipt[name]
        if isinstance(expected, bool) or name == "bitwise_exact":
            equal = int(found) == (-1 if expected is None else int(expected))
        elif isinstance(found, (bytes, str)):
            equal = text_of(found) == (expected or "")
        elif expected is None:
            equal = math.isnan(found)
        else:
            equal = float(found) == float(expected)
        place = f"{receipt['key']}: {name}"
        assert equal, f"{place} is {found} in campaign.h5, {expected} in the journal"
        compared += 1
    return compared


def check(folder: pathlib.Path) -> str:
    """Compares one campaign; returns what was compared, in words."""
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    receipts = [json.loads(line) for line in lines]
    cells = {r["key"]: r for r in receipts if r["kind"] == "cell"}  # the last one of a key counts
    columns = values = 0
    with h5py.File(folder / "campaign.h5") as store:
        assert [text_of(text) for text in store["receipts"][:]] == lines, "other receipts"
        rows = {text_of(row["key"]): row for row in store["cells"][:]}
        assert set(rows) == set(cells), "other cells"
        for key, receipt in cells.items():
            columns += check_cell(rows[key], receipt)
            record = json.loads((folder / receipt["artifact_path"]).read_text(encoding="utf-8"))
            for entry in record["passes"]:
                path = folder / entry["artifact_path"]
                steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
                series = store[f"series/{key}/{entry['pass']}.{entry['attempt']}"]
                measured = {name: column for name, column in steps.items() if column}
                assert set(series.dtype.names) == {"step", *measured}, f"{path}: other series"
                for name, column in measured.items():
                    assert list(series[name]) == column, f"{path}: {name} differs"
                    values += len(column)
    assert columns > 20 * len(cells) and values > 0, "hardly anything was compared"
    counts = f"{len(lines)} receipts, {len(cells)} cells, {columns} columns"
    return f"{counts}, {values} values of series"


def main() -> int:
    """Entry point."""
    for name in sys.argv[1:]:
        try:
            print(f"{name}: {check(pathlib.Path(name))} agree")
        except AssertionError as difference:
            print(f"{name}: {difference}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
