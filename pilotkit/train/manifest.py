"""Sizes and sha256 of the files of one checkpoint: written last, read first. Used by `checkpoint`; knows no tensors."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pilotkit.errors import PilotkitError
from pilotkit.records import atomic

MANIFEST_FILE = "manifest.json"
MANIFEST_VERSION = 1
CHUNK_BYTES = 4 * 1024**2


class CheckpointError(PilotkitError):
    """A checkpoint cannot be written, is damaged, or does not belong to this run."""


@dataclass(frozen=True)
class Entry:
    """One file: name relative to the checkpoint, size in bytes, sha256 in hex."""

    name: str
    num_bytes: int
    sha256: str


def describe(path: Path) -> Entry:
    """Read one file to its end, and flush it to disk."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
        num_bytes = stream.tell()
        os.fsync(stream.fileno())
    return Entry(path.name, num_bytes, digest.hexdigest())


def write(folder: Path, entries: Iterable[Entry]) -> None:
    """Write the manifest, whole or not at all."""
    files = {entry.name: {"num_bytes": entry.num_bytes, "sha256": entry.sha256} for entry in entries}
    atomic.write_json(folder / MANIFEST_FILE, {"version": MANIFEST_VERSION, "files": dict(sorted(files.items()))})


def read(folder: Path) -> list[Entry]:
    """Entries in the order of names. Raises CheckpointError when there is no manifest, or none of this version."""
    path = folder / MANIFEST_FILE
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        version = plain["version"]
        if version == MANIFEST_VERSION:
            return [Entry(name, file["num_bytes"], file["sha256"]) for name, file in plain["files"].items()]
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing, so this is not a checkpoint or its save was cut short") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    raise CheckpointError(f"{path}: version {version!r} is not known to this pilotkit (it reads {MANIFEST_VERSION})")


def damage(folder: Path, entry: Entry) -> str | None:
    """What is wrong with one file, naming it; None when it is as it was written."""
    path = folder / entry.name
    try:
        num_bytes = path.stat().st_size
        if num_bytes != entry.num_bytes:
            return f"{path}: {num_bytes} bytes, written with {entry.num_bytes}"
        if describe(path).sha256 != entry.sha256:
            return f"{path}: its content changed since it was written (sha256 differs)"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None
