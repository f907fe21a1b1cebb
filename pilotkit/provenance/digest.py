"""Content digests: SHA-256 over plain values and over files.

Called by every file of this room and by the stage `lock`. Never writes, and never looks at dates or owners.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 1 << 20
_MAX_THREADS = 8


def digest_of(value: Any) -> str:
    """SHA-256 (64 hex digits) of plain data as canonical JSON: keys sorted, no spaces, ASCII only.

    Equal data gives equal digests whatever the order of its keys; `1`, `1.0` and `"1"` differ.
    Raises ValueError on NaN and infinities, TypeError on what JSON cannot hold.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def digest_files(files: Iterable[Path], *, root: Path) -> str:
    """SHA-256 (64 hex digits) over the names relative to `root` and the contents; the order given does not matter.

    A renamed, added, missing or changed file gives another digest. Files are read in blocks of 1 MiB, several at
    a time, as hashlib lets go of the interpreter lock. Raises OSError when one cannot be read, ValueError when
    one is not below `root`.
    """
    named = sorted((path.relative_to(root).as_posix(), path) for path in files)
    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=threads) as pool:
        contents = list(pool.map(digest_file, [path for _, path in named]))
    return digest_of([[name, content] for (name, _), content in zip(named, contents, strict=True)])


def digest_file(path: Path) -> str:
    """SHA-256 (64 hex digits) of one file's content. Raises OSError when it cannot be read."""
    running = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            running.update(block)
    return running.hexdigest()


def short(digest: str) -> str:
    """The first 12 characters, for tables and messages; never for a comparison."""
    return digest[:12]
