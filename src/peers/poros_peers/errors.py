# SPDX-License-Identifier: Apache-2.0
"""Errors that a person can mend, and files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class InputError(Exception):
    """Something that was given is wrong: the message says where, what, and how to mend it."""


def write_durably(path: Path, data: bytes) -> None:
    """Writes `data` to `path` by way of a temporary file, fsync and rename.

    Makes the folder when it is missing. A reader sees the old content or the new, never a part.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
