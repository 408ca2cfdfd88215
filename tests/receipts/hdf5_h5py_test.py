# SPDX-License-Identifier: Apache-2.0
"""campaign.h5 as its users see it: h5py and pandas against journal and artifacts.

usage: hdf5_h5py_test.py MAKE_CAMPAIGN (the fixture program); exit 77 where h5py is missing.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

try:
    import h5py
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}; set POROS_PYTHON to a Python with h5py")
    sys.exit(77)

UNITS = {
    "step": "1",
    "loss": "nat",
    "grad_norm": "1",
    "learning_rate": "1",
    "s_per_step": "s",
    "allocated_mb": "MiB",
    "reserved_mb": "MiB",
    "host_rss_mb": "MiB",
    "supervised_tokens": "token",
}
MAKE_CAMPAIGN = ""
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # syncs cost nothing there


def decoded(value: Any) -> str:
    """Text of an HDF5 string, whichever way h5py gives it."""
    return value.decode() if isinstance(value, bytes) else str(value)


class StoreTest(unittest.TestCase):
    """One synthetic campaign, read both ways."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        cls.dir = Path(cls.folder.name)
        subprocess.run([MAKE_CAMPAIGN, str(cls.dir)], check=True)
        cls.lines = (cls.dir / "results.jsonl").read_text(encoding="utf-8").splitlines()
        cls.receipts = [json.loads(line) for line in cls.lines]
        cls.store = h5py.File(cls.dir / "campaign.h5")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.store.close()
        cls.folder.cleanup()

    def test_every_receipt_is_there(self) -> None:
        self.assertEqual([decoded(text) for text in self.store["receipts"][:]], self.lines)

    def test_every_cell_is_in_the_table(self) -> None:
        rows = {decoded(row["key"]): row for row in self.store["cells"][:]}
        cells = [r for r in self.receipts if r["kind"] == "cell"]
        self.assertEqual(len(cells), 19)
        self.assertEqual(set(rows), {r["key"] for r in cells})
        for receipt in cells:
            row = rows[receipt["key"]]
            for name in row.dtype.names:
                want = receipt.get(name)
                if name in ("flags", "path", "key"):
                    continue
                got = row[name]
                if name == "bitwise_exact":
                    self.assertEqual(int(got), -1 if want is None else int(want))
                elif isinstance(got, (bytes, str)):
                    self.assertEqual(decoded(got), want or "", name)
                elif want is None:
                    self.assertTrue(math.isnan(got), name)
                else:
                    self.assertEqual(got, want, name)

    def test_every_pass_has_its_series_with_units(self) -> None:
        checked = 0
        for receipt in self.receipts:
            if receipt["kind"] != "attempt":
                continue
            record = json.loads((self.dir / receipt["artifact_path"]).read_text())
            table = self.store[f"series/{receipt['key']}/{record['pass']}.{record['attempt']}"]
            units = dict(zip(table.dtype.names, map(decoded, table.attrs["units"])))
            measured = {name: values for name, values in record["steps"].items() if values}
            self.assertEqual(set(table.dtype.names), {"step", *measured})
            for name, values in measured.items():
                np.testing.assert_array_equal(table[name], np.array(values))
                self.assertEqual(units[name], UNITS[name])
                checked += 1
            if measured:
                self.assertEqual(table["step"][0], 1)
                self.assertEqual(table.compression, "gzip")
                self.assertTrue(table.fletcher32)
            self.assertEqual(decoded(table.attrs["status"]), record["status"])
        self.assertGreater(checked, 200)

    def test_attributes(self) -> None:
        spec = json.loads((self.dir / "spec.json").read_text())
        self.assertEqual(json.loads(decoded(self.store["spec"][0])), spec)
        self.assertEqual(decoded(self.store.attrs["spec_sha256"]), spec["spec_sha256"])
        self.assertEqual(json.loads(decoded(self.store.attrs["environment"]))["cpu_cores"], 16)

    def test_three_lines_of_pandas(self) -> None:
        try:
            import pandas
        except ImportError:
            self.skipTest("pandas is not installed")
        with h5py.File(self.dir / "campaign.h5") as f:
            cells = pandas.DataFrame(f["cells"][:])
        self.assertEqual(len(cells), 19)
        self.assertGreater(cells.groupby("method").s_per_step.median()[b"poros"], 0)


if __name__ == "__main__":
    MAKE_CAMPAIGN = sys.argv.pop(1)
    unittest.main()
