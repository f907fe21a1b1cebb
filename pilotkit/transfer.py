"""Bytes brought in and out, really: a local source is read and timed, a folder is copied and compared by digest.

Called by stage `budget`. Asks the kernel to forget what it holds of a file before reading it, so that the disk is
timed and not the memory; where that is not possible the rate is an upper bound. Opens no network connection.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pilotkit.errors import OutputError

CHUNK_BYTES = 4 * 1024**2


@dataclass(frozen=True)
class Transfer:
    """`num_bytes` moved in `seconds`, of `total_bytes` that there are; `num_files` files."""

    num_bytes: int
    total_bytes: int
    num_files: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        return self.num_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def total_seconds(self) -> float:
        """For all bytes, those that were left out as fast as those that were moved."""
        return self.seconds * self.total_bytes / self.num_bytes if self.num_bytes else 0.0


@dataclass(frozen=True)
class Copied(Transfer):
    """A transfer that arrived: `digest` is the SHA-256 over names and contents, the same on both sides.

    `seconds` are those of writing and flushing; `verify_seconds` those of reading back and comparing.
    """

    digest: str
    verify_seconds: float


def is_url(path: str) -> bool:
    """Whether a path names a protocol, and so does not lie in a folder of this machine."""
    return "://" in path


def time_reading(source: Path, *, max_bytes: int) -> Transfer:
    """Read a file, or a folder's files in order of their names, up to `max_bytes`. Raises OSError."""
    files = _files(source)
    total = sum(path.stat().st_size for path in files)
    done = 0
    started = time.perf_counter()
    for path in files:
        done += sum(len(chunk) for chunk in _chunks(path, limit=max_bytes - done))
        if done >= max_bytes:
            break
    return Transfer(done, total, len(files), time.perf_counter() - started)


def copy_verified(source: Path, destination: Path) -> Copied:
    """Copy a folder or a file to a new folder `destination`, flush it, read it back and compare.

    Raises OutputError when the destination exists, cannot take it, or holds something else afterwards; what was
    copied until then is removed.
    """
    files = _files(source)
    root = source if source.is_dir() else source.parent
    try:
        destination.mkdir(parents=True)
    except OSError as error:
        raise OutputError(f"nothing can be copied to {destination}: {error.strerror or error}") from error
    try:
        started = time.perf_counter()
        sent = hashlib.sha256()
        for path in files:
            _copy_file(path, destination / path.relative_to(root), name=str(path.relative_to(root)), digest=sent)
        seconds = time.perf_counter() - started
        started = time.perf_counter()
        arrived = _digest([destination / path.relative_to(root) for path in files], root=destination)
        verify_seconds = time.perf_counter() - started
    except OSError as error:
        shutil.rmtree(destination, ignore_errors=True)
        raise OutputError(f"the copy to {destination} broke off: {error.strerror or error}") from error
    if arrived != sent.hexdigest():
        shutil.rmtree(destination, ignore_errors=True)
        raise OutputError(f"the copy in {destination} is not what was sent: {arrived} instead of {sent.hexdigest()}")
    total = sum(path.stat().st_size for path in files)
    return Copied(total, total, len(files), seconds, sent.hexdigest(), verify_seconds)


def _copy_file(path: Path, target: Path, *, name: str, digest: hashlib._Hash) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest.update(f"{name}\0{path.stat().st_size}\0".encode())
    with open(target, "wb") as stream:
        for chunk in _chunks(path):
            digest.update(chunk)
            stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())


def _digest(files: list[Path], *, root: Path) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        for chunk in _chunks(path):
            digest.update(chunk)
    return digest.hexdigest()


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    return sorted(path for path in source.rglob("*") if path.is_file())


def _chunks(path: Path, *, limit: int | None = None) -> Iterator[bytes]:
    """The file from its disk, in pieces; at most `limit` bytes."""
    left = path.stat().st_size if limit is None else limit
    with open(path, "rb", buffering=0) as stream:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while left > 0:
            chunk = stream.read(min(CHUNK_BYTES, left))
            if not chunk:
                break
            left -= len(chunk)
            yield chunk
