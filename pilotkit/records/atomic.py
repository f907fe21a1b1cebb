"""Write a file so that a reader sees the old content or the new one, never a part.

Used for everything in a run directory that somebody else may read while it is written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write aside, flush to disk, rename over `path`.

    The temporary name carries the process id, so that two ranks that write the same file do not meet;
    the folder is flushed too, since a rename lives in it. Raises OSError, and leaves the old file as it was.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(aside, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """What was made or renamed in it is on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """`write_text` of `to_json`."""
    write_text(path, to_json(value))


def to_json(value: Any) -> str:
    """Indented JSON. NaN and infinities are refused with ValueError: other readers of JSON do not know them."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
