# SPDX-License-Identifier: Apache-2.0
"""A campaign in which every text field is an attack: the report must show it as text, nothing else.

usage: report_attack_test.py MAKE_CAMPAIGN MAKE_REPORT REPORT_CSS
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path

ATTACKS = [
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "https://evil.example/x.js",
    "//evil.example",
    "</style><style>@import url(https://evil.example)",
    "\"}body{display:none}/*",
    "]]><!--",
    "&lt;b&gt;&amp;",
    "| a | b |\n|---|---|\n`code` **bold** [x](https://evil.example) ![y](z)",
    "\u202e\u0000\u001b[31m",
    "{{constructor}} ${7*7}",
]
ALLOWED_TAGS = set(
    "html head meta title style body a header main footer nav section article h1 h2 h3 h4 p ul li "
    "dl dt dd div span table caption thead tbody tr th td br figure figcaption svg path rect text "
    "polyline sup script".split()
)
ALLOWED_ATTRIBUTES = set(
    "lang charset http-equiv content name class id href tabindex role scope aria-label "
    "aria-labelledby aria-hidden data-v viewbox preserveaspectratio d x y width height points "
    "transform".split()
)
PROGRAMS: list[str] = []
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # syncs cost nothing there


class Page(HTMLParser):
    """Collects tags, attributes, scripts and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag in ("script", "style"):
            self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside != "style":
            self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def shown(attack: str) -> str:
    """What a reader sees of a text: control characters are replaced."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "\ufffd", attack)


def make(attack: str, folder: Path) -> tuple[str, str]:
    """report.html and report.md of a campaign whose texts all end in the attack."""
    argument = attack.replace("\0", "")  # can't be passed on a command line
    subprocess.run([PROGRAMS[0], str(folder), f"attack={argument}"], check=True)
    subprocess.run([PROGRAMS[1], str(folder), str(folder)], check=True)
    html = (folder / "report.html").read_text(encoding="utf-8")
    return html, (folder / "report.md").read_text(encoding="utf-8")


class AttackTest(unittest.TestCase):
    """Parses what the reports make of each attack."""

    def test_html_and_markdown(self) -> None:
        for attack in ATTACKS:
            with self.subTest(attack=attack), tempfile.TemporaryDirectory(dir=MEMORY) as folder:
                html, markdown = make(attack, Path(folder))
                plain = attack.replace("\0", "")
                self.check_html(html, shown(plain))
                self.check_markdown(markdown)

    def check_html(self, html: str, attack: str) -> None:
        page = Page()
        page.feed(html)
        page.close()
        self.assertLessEqual(set(page.tags), ALLOWED_TAGS)
        self.assertEqual(len(page.scripts), 1)
        digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
        policy = next(v for t, n, v in page.attributes if n == "content" and "default-src" in v)
        self.assertIn("default-src 'none'", policy)
        self.assertIn(f"script-src 'sha256-{digest}'", policy)
        for tag, name, value in page.attributes:
            self.assertIn(name, ALLOWED_ATTRIBUTES, tag)
            if name == "href":
                self.assertRegex(value, r"^(#[a-z0-9-]+|[A-Za-z0-9_%-][A-Za-z0-9_.%/-]*)$")
                self.assertNotIn("/../", "/" + value + "/")
        for style in re.findall(r"<style>(.*?)</style>", html, re.S):
            self.assertNotRegex(style, r"url\(|@import|https?:|expression\(")
        text = "\n".join(page.text)
        self.assertIn("poros" + attack, "".join(page.text))
        self.assertIn("synthetic)" + attack, text)  # an error message
        self.assertIn("Debian GNU/Linux 12" + attack, text)  # the environment

    def check_markdown(self, markdown: str) -> None:
        self.assertNotRegex(markdown, r"[<>]")
        self.assertNotRegex(markdown, r"https?://|www\.")
        self.assertNotRegex(markdown.replace("`--`", ""), r"(?<!\\)`")
        columns = 0
        for line in markdown.splitlines():
            if not line.startswith("|"):
                columns = 0
                continue
            count = len(re.findall(r"(?<!\\)\|", line))
            self.assertEqual(count, columns or count, line)
            columns = count
        for target in re.findall(r"(?<!\\)\]\(([^)]*)\)", markdown):
            self.assertRegex(target, r"^[A-Za-z0-9_%-][A-Za-z0-9_.%/-]*$")


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours (WCAG 2)."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


class ContrastTest(unittest.TestCase):
    """Text at 4.5 or more, graphics at 3 or more, in light and dark."""

    def test_every_colour(self) -> None:
        themes = re.findall(r":root \{(.*?)\}", Path(PROGRAMS[2]).read_text(), re.S)[:2]
        self.assertEqual(len(themes), 2)
        for theme in themes:
            colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", theme))
            self.assertGreater(len(colours), 15)
            for name in ("ink", "soft", "link", "ok", "bad", "warn", "quiet"):
                for ground in ("paper", "panel"):
                    self.assertGreaterEqual(contrast(colours[name], colours[ground]), 4.5, name)
            for name in ("resident", "poros", "unsloth", "peft", "accelerate", "other"):
                self.assertGreaterEqual(contrast(colours[name], colours["paper"]), 3.0, name)


if __name__ == "__main__":
    PROGRAMS = [sys.argv.pop(1) for _ in range(3)]
    unittest.main()
