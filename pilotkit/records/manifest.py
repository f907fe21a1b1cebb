"""Sizes and sha256 of the files of one checkpoint: written last, read first. Knows no tensors and needs no torch.

Called by `train.checkpoint` on both ways, and by `checkpoint_check` on the driver's side.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotkit.errors import CheckpointError
from pilotkit.records import atomic
from pilotkit.records.digests import sha256_of

MANIFEST_FILE = "manifest.json"
MANIFEST_VERSION = 1
MOST_THREADS = 8


@dataclass(frozen=True)
class Entry:
    """One file: name relative to the checkpoint, size in bytes, sha256 in hex."""

    name: str
    num_bytes: int
    sha256: str


def write_file(path: Path, content: bytes) -> Entry:
    """A small file of a folder that has no name yet, flushed; nobody reads it before the folder has its name."""
    _write_flushed(path, content)
    return Entry(path.name, len(content), hashlib.sha256(content).hexdigest())


def write(folder: Path, entries: Iterable[Entry], *, about: Mapping[str, Any] | None = None) -> None:
    """Write the manifest, flushed. `about` is what a list of checkpoints shows: step, eval_loss, ...

    A part of it passes for none: the seal would be missing.
    """
    files = {entry.name: {"num_bytes": entry.num_bytes, "sha256": entry.sha256} for entry in entries}
    content: dict[str, Any] = {"about": dict(about or {}), "files": dict(sorted(files.items()))}
    sealed = {"version": MANIFEST_VERSION, "sha256": _seal(content), **content}
    _write_flushed(folder / MANIFEST_FILE, atomic.to_json(sealed).encode())


def _write_flushed(path: Path, content: bytes) -> None:
    with open(path, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _seal(content: Mapping[str, Any]) -> str:
    """The manifest is a file, too: a bit of it that flips must not pass for a step or a size."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_about(folder: Path) -> dict[str, Any]:
    """What the manifest says about the whole; empty when there is none or it cannot be read."""
    try:
        about = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8")).get("about", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return about if isinstance(about, dict) else {}


def read(folder: Path) -> list[Entry]:
    """Entries in the order of names. Raises CheckpointError when there is no manifest, or none of this version."""
    path = folder / MANIFEST_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing, so this is not a checkpoint or its save was cut short") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    return parse(content, where=str(path))


def parse(content: bytes, *, where: str) -> list[Entry]:
    """The entries of a manifest that was read from `where`. Raises CheckpointError as `read`."""
    try:
        text = content.decode()
        plain = json.loads(text)
        version = plain["version"]
        if version == MANIFEST_VERSION:
            entries = [Entry(name, file["num_bytes"], file["sha256"]) for name, file in plain["files"].items()]
            # A file one byte short may still be valid JSON.
            if not text.endswith("\n") or plain["sha256"] != _seal({"about": plain["about"], "files": plain["files"]}):
                raise CheckpointError(f"{where}: its content changed since it was written (sha256 differs)")
            _check_inside(where, entries)
            return entries
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: cannot be read ({error})") from error
    raise CheckpointError(f"{where}: version {version!r} is not known to this pilotkit (it reads {MANIFEST_VERSION})")


def _check_inside(where: str, entries: Iterable[Entry]) -> None:
    """A manifest from elsewhere must not make us read, or later delete, anything outside its folder."""
    for entry in entries:
        if Path(entry.name).is_absolute() or ".." in Path(entry.name).parts:
            raise CheckpointError(f"{where}: names a file outside its folder: {entry.name}")


def foreign(folder: Path, entries: Iterable[Entry]) -> list[str]:
    """Files that lie in the folder and were not part of what was saved, named with the reason."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return unknown(str(folder), sorted(names), entries)


def unknown(where: str, names: Iterable[str], entries: Iterable[Entry]) -> list[str]:
    """Those of these files that no entry speaks of, named with the reason."""
    known = {entry.name for entry in entries} | {MANIFEST_FILE}
    return [f"{where}/{name}: was not saved with this checkpoint" for name in names if name not in known]


def damage(folder: Path, entry: Entry) -> str | None:
    """What is wrong with one file, naming it; None when it is as it was written."""
    path = folder / entry.name
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            # A link may lead anywhere, and be led elsewhere after this look; reading a pipe would never end.
            return f"{path}: is not the plain file that was written"
        num_bytes = status.st_size
        return difference(str(path), entry, num_bytes=num_bytes, read_sha256=lambda: sha256_of(path)[1])
    except OSError as error:
        return f"{path}: {error.strerror or error}"


def difference(where: str, entry: Entry, *, num_bytes: int, read_sha256: Callable[[], str]) -> str | None:
    """What differs from what was written, wherever it lies now; its content is read only when the size is right."""
    if num_bytes != entry.num_bytes:
        return f"{where}: {num_bytes} bytes, written with {entry.num_bytes}"
    if read_sha256() != entry.sha256:
        return f"{where}: its content changed since it was written (sha256 differs)"
    return None


def damages(folder: Path, entries: Sequence[Entry], *, most_threads: int = MOST_THREADS) -> list[str]:
    """What is wrong with these files, in their order. Several at a time: hashlib lets go of the interpreter lock."""
    with ThreadPoolExecutor(min(most_threads, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda entry: damage(folder, entry), entries)
        return [text for text in found if text]
