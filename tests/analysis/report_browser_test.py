# SPDX-License-Identifier: Apache-2.0
"""The report in headless Chromium: no console message, no horizontal scroll at 390 px, sorting and
filtering work, every figure is drawn.

usage: report_browser_test.py MAKE_CAMPAIGN MAKE_REPORT; exit 77 where there is no Chromium.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
PROGRAMS: list[str] = []
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # syncs cost nothing there

# Runs in a page that holds the report (without its policy, which would forbid this script) in a
# frame as wide as a phone.
PROBE = """
const frame = document.getElementById("frame");
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement, result = {};
  result.overflow = root.scrollWidth - root.clientWidth;
  result.wide = Array.from(page.querySelectorAll("main *"))
    .filter((e) => e.getBoundingClientRect().right > 391 && getComputedStyle(e).position !== "absolute")
    .slice(0, 5).map((e) => e.tagName + "." + e.getAttribute("class") + " " + e.textContent.slice(0, 40));
  result.charts = page.querySelectorAll("svg.chart").length;
  const table = page.getElementById("cells-table"), rows = () => Array.from(table.tBodies[0].rows);
  const times = () => rows().map((r) => r.cells[5].dataset.v).filter((v) => v !== undefined).map(Number);
  table.tHead.rows[0].cells[5].querySelector("button").click();
  result.up = times();
  result.lastUp = rows().at(-1).cells[5].textContent;
  table.tHead.rows[0].cells[5].querySelector("button").click();
  result.down = times();
  result.sort = table.tHead.rows[0].cells[5].getAttribute("aria-sort");
  const input = page.getElementById("cells-table-filter");
  input.value = "poros";
  input.dispatchEvent(new frame.contentWindow.Event("input"));
  result.filtered = rows().filter((r) => !r.hidden).map((r) => r.cells[2].textContent);
  document.body.textContent = JSON.stringify(result);
};
frame.srcdoc = REPORT;
"""


def chromium(url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs headless Chromium on a page."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += ["--virtual-time-budget=8000", *arguments, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)


class BrowserTest(unittest.TestCase):
    """One synthetic campaign with every outcome."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        cls.dir = Path(cls.folder.name)
        subprocess.run([PROGRAMS[0], str(cls.dir)], check=True)
        subprocess.run([PROGRAMS[1], str(cls.dir), str(cls.dir)], check=True)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def test_no_console_message(self) -> None:
        result = chromium((self.dir / "report.html").as_uri(), "--dump-dom")
        self.assertNotIn("CONSOLE", result.stderr)
        self.assertIn('id="cells-table-filter"', result.stdout, "the script did not run")

    def probe(self, width: int) -> dict[str, Any]:
        report = (self.dir / "report.html").read_text(encoding="utf-8")
        report = re.sub(r"<meta http-equiv=[^>]*>", "", report)
        text = json.dumps(report).replace("</", "<\\/").replace("<!--", "<\\!--")
        page = (
            f"<body><iframe id=frame style='width:{width}px;height:800px;border:0'></iframe>"
            f"<script>const REPORT = {text};{PROBE}</script>"
        )
        path = self.dir / f"probe{width}.html"
        path.write_text(page, encoding="utf-8")
        body = chromium(path.as_uri(), "--dump-dom").stdout
        match = re.search(r"<body>(\{.*\})</body>", body, re.S)
        assert match, body[-500:]
        return json.loads(html.unescape(match[1]))

    def test_on_a_phone(self) -> None:
        result = self.probe(390)
        self.assertEqual(result["overflow"], 0, result["wide"])
        self.assertEqual(result["wide"], [])
        self.assertGreaterEqual(result["charts"], 12)

    def test_sorting_and_filtering(self) -> None:
        result = self.probe(1280)
        self.assertGreater(len(result["up"]), 8)
        self.assertEqual(result["up"], sorted(result["up"]))
        self.assertEqual(result["down"], sorted(result["down"], reverse=True))
        self.assertEqual(result["lastUp"], "--")
        self.assertEqual(result["sort"], "descending")
        self.assertEqual(set(result["filtered"]), {"poros"})


if __name__ == "__main__":
    if not CHROMIUM:
        print("skipped: no Chromium here")
        sys.exit(77)
    PROGRAMS = [sys.argv.pop(1) for _ in range(2)]
    unittest.main()
