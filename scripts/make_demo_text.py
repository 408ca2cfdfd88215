# SPDX-License-Identifier: Apache-2.0
"""Makes configs/data/alice.txt, the demo's fine-tuning text, from Debian's source package snappy.

    apt-get source --download-only snappy     # 1.1.9-3 in Debian 12
    tar xf snappy_1.1.9.orig.tar.gz snappy-1.1.9/testdata/alice29.txt
    python scripts/make_demo_text.py snappy-1.1.9/testdata/alice29.txt configs/data/alice.txt

Each paragraph of prose becomes one line, verses keep their lines, rows of asterisks go, and a blank
line stands between paragraphs.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

SOURCE_SHA256 = "7467306ee0feed4971260f3c87421154a05be571d944e9cb021a5713700c38f0"
VERSE_INDENT = 4  # prose begins with at most two spaces


def paragraphs(text: str) -> list[str]:
    """Paragraphs of the book as alice29.txt sets it."""
    blocks: list[list[str]] = [[]]
    for line in text.replace("\x1a", "").splitlines():
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    result = []
    for block in blocks:
        if not block or set("".join(block)) <= {"*", " "}:
            continue
        is_verse = all(len(line) - len(line.lstrip()) >= VERSE_INDENT for line in block)
        separator = "\n" if is_verse else " "
        result.append(separator.join(" ".join(line.split()) for line in block))
    return result


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    data = Path(sys.argv[1]).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != SOURCE_SHA256:
        raise SystemExit(f"{sys.argv[1]}: sha256 is {found}, expected {SOURCE_SHA256}")
    text = "\n\n".join(paragraphs(data.decode("ascii"))) + "\n"
    Path(sys.argv[2]).write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
