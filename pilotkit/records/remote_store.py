"""Checkpoints in an object store, or in anything else that fsspec knows: whole ones up, verified ones down.

    <url>/
        step-0000000100/...              the files of a whole checkpoint
        step-0000000100/manifest.json    put last: without it nothing there is a checkpoint
        latest                           the name of the newest one
    .step-0000000100.damaged/...     what lay under that name and did not verify when it was pushed again

An object store has no rename, and a put object is there whole or not at all. So the manifest is what makes a checkpoint
visible, and the last thing that is put. Called after a save (`push`), and by the stages that are given a URL (`fetch`).
Needs fsspec and the package of the protocol (`pip install pilotkit[s3]`), but no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from pilotkit.errors import CheckpointError, ConfigError, Problem
from pilotkit.records import manifest
from pilotkit.records.checkpoint_check import check
from pilotkit.records.checkpoint_store import (
    DAMAGED_SUFFIX,
    LATEST_FILE,
    SILENT_SECONDS,
    STEP_NAME,
    Partial,
    Retention,
    kept_of,
)
from pilotkit.records.digests import CHUNK_BYTES
from pilotkit.records.manifest import MANIFEST_FILE

FETCHED_NAME = "fetched"
"""Where a run keeps what it fetched, below its checkpoints."""


def fetch_given(url: str, into: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint that a URL names, or the newest sound one below it; else None, and why. Raises ConfigError."""
    parent, _, name = url.rstrip("/").rpartition("/")
    try:
        if not STEP_NAME.fullmatch(name):
            return RemoteStore(url).fetch_newest(into)
        return RemoteStore(parent).fetch(name, into), []
    except CheckpointError as error:
        return None, str(error).splitlines()


class RemoteStore:
    """The checkpoints below a URL such as `s3://bucket/run`. Raises CheckpointError when the store does not answer.

    Endpoint and credentials come from where the protocol's package looks for them (for s3: AWS_ENDPOINT_URL and the
    usual AWS variables), never from the configuration, which is kept in every record.
    """

    def __init__(self, url: str, *, key: str = "restore.path") -> None:
        self.url = url.rstrip("/")
        try:
            from fsspec.core import url_to_fs

            # Listings are not kept: what another process put a moment ago has to be seen.
            options = {"auto_mkdir": True} if self.url.startswith(("file:", "local:")) else {}
            self._fs, self._root = url_to_fs(self.url, use_listings_cache=False, **options)
        except (ImportError, ValueError) as error:
            fix = f"install what serves it ({error}); for s3: pip install pilotkit[s3]"
            raise ConfigError([Problem(key, url, "a path, or a URL that fsspec can open here", fix)]) from error

    def whole(self) -> list[str]:
        """Names of the checkpoints whose manifest is there, oldest first."""
        names = [Path(name).name for name in self._asked(lambda: self._list(self._root))]
        steps = sorted((int(match[1]), name) for name in names if (match := STEP_NAME.fullmatch(name)))
        return [
            name for _, name in steps if self._asked(lambda name=name: self._fs.exists(self._at(name, MANIFEST_FILE)))
        ]

    def partial(self) -> list[str]:
        """Names below which files lie without a manifest: an upload that goes on, or was cut short."""
        names = {Path(name).name for name in self._asked(lambda: self._list(self._root))}
        return sorted({name for name in names if STEP_NAME.fullmatch(name)} - set(self.whole()))

    def latest(self) -> str | None:
        """What `latest` names; None when there is none."""
        try:
            name = str(self._fs.cat_file(self._at(LATEST_FILE)).decode()).strip()
        except FileNotFoundError:
            return None
        return name if STEP_NAME.fullmatch(name) else None

    def push(self, checkpoint: Path, *, retention: Retention | None = None) -> list[str]:
        """Put a whole checkpoint of this machine; `latest` and the retention follow when all of it is there.

        What an upload that was cut short left under this name is replaced. One that is there is read first: a sound one
        is never written over, and the same one once more only finishes what was left; a damaged one is set aside.
        Returns what was wrong with that. Raises CheckpointError when another sound one is there, or when `checkpoint`
        itself does not verify.
        """
        name = checkpoint.name
        assert STEP_NAME.fullmatch(name), checkpoint
        if problems := check(checkpoint).problems:
            raise CheckpointError("\n".join([f"{checkpoint}: is not put into a store", *problems]))
        damaged: list[str] = []
        is_there = name in self.whole()
        if is_there:
            damaged = self.problems(name)
            if not damaged and self._manifest(name) != (checkpoint / MANIFEST_FILE).read_bytes():
                raise CheckpointError(
                    f"{self.url}/{name}: exists already, and is sound; a checkpoint is never written over another: "
                    "choose another URL, or delete it there"
                )
            if damaged:
                self._set_aside(name)
        if damaged or not is_there:
            self._put(checkpoint)
        current = self.latest()
        if current is None or current < name:
            self._asked(lambda: self._fs.pipe_file(self._at(LATEST_FILE), f"{name}\n".encode()))
        if retention is not None:
            self.retain(retention)
        return damaged

    def problems(self, name: str) -> list[str]:
        """What is wrong with a checkpoint in the store, by digest: every byte of it is read, and none is kept."""
        where = f"{self.url}/{name}"
        try:
            entries = manifest.parse(self._manifest(name), where=f"{where}/{MANIFEST_FILE}")
        except CheckpointError as error:
            return [str(error)]
        there = self._files(name)
        found = [text for entry in entries if (text := self._damage(name, entry, there))]
        return found + manifest.unknown(where, there, entries)

    def partials(self, *, silent_seconds: float = SILENT_SECONDS) -> list[Partial]:
        """Uploads without a manifest, in progress until silent for so long, and what was set aside as damaged."""
        aside = {Path(name).name for name in self._asked(lambda: self._list(self._root))}
        aside = {name for name in aside if name.startswith(".step-") and name.endswith(DAMAGED_SUFFIX)}
        found = []
        for name in sorted({*self.partial(), *aside}):
            files = [self._at(name, file) for file in self._files(name)]
            num_bytes = sum(int(self._asked(lambda file=file: self._fs.size(file))) for file in files)
            if name in aside:
                found.append(Partial(Path(name), num_bytes, False, "it did not verify when it was pushed again"))
                continue
            silence = time.time() - max((self._put_at(file) for file in files), default=0.0)
            reason = f"an upload without its manifest, silent for {max(silence, 0) / 60:.0f} minutes"
            found.append(Partial(Path(name), num_bytes, silence < silent_seconds, reason))
        return found

    def clean(self, *, silent_seconds: float = SILENT_SECONDS) -> list[Partial]:
        """Delete what is not in progress; returns what was deleted."""
        removed = [partial for partial in self.partials(silent_seconds=silent_seconds) if not partial.is_in_progress]
        for partial in removed:
            self._remove(partial.path.name)
        return removed

    def retain(self, retention: Retention) -> list[str]:
        """Delete what the rule does not keep, the manifest first: what is left of a deletion is no checkpoint."""
        names = self.whole()
        kept = kept_of(names, retention) | {self.latest()}
        if retention.keep_best:
            losses = [(loss, name) for name in names if (loss := self._eval_loss(name)) is not None]
            kept |= {min(losses)[1]} if losses else set()
        removed = [name for name in names if name not in kept]
        for name in removed:
            self._remove(name)
        return removed

    def fetch(self, name: str, into: Path) -> Path:
        """Bring one checkpoint below `into`, verified to its last byte before it has its name there.

        Raises CheckpointError naming the file that is damaged, or that the store does not have.
        """
        aside = into / f".{name}.fetch"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for source in self._asked(lambda: self._fs.find(self._at(name))):
            target = aside / source.rpartition(f"{name}/")[2]
            if aside not in target.resolve().parents:
                raise CheckpointError(f"{self.url}/{name}: names a file outside: {source}")
            target.parent.mkdir(parents=True, exist_ok=True)
            self._asked(lambda source=source, target=target: self._fs.get_file(source, os.fspath(target)))
        problems = check(aside).problems
        if problems:
            shutil.rmtree(aside)
            raise CheckpointError("\n".join(text.replace(str(aside), f"{self.url}/{name}") for text in problems))
        path = into / name
        os.rename(aside, path)
        return path

    def fetch_newest(self, into: Path) -> tuple[Path | None, list[str]]:
        """The newest checkpoint that verifies, and what is wrong with newer ones; None when there is none at all."""
        problems: list[str] = []
        for name in reversed(self.whole()):
            try:
                return self.fetch(name, into), problems
            except CheckpointError as error:
                problems += str(error).splitlines()
        return None, problems

    def _put(self, checkpoint: Path) -> None:
        """The manifest last. What lies there already, and is none of its files, would count as foreign: it goes."""
        name = checkpoint.name
        files = sorted(str(file.relative_to(checkpoint)) for file in checkpoint.rglob("*") if file.is_file())
        for left in self._files(name):
            if left not in files:
                self._asked(lambda left=left: self._fs.rm_file(self._at(name, left)))
        for file in [*(file for file in files if file != MANIFEST_FILE), MANIFEST_FILE]:
            self._asked(lambda file=file: self._fs.put_file(os.fspath(checkpoint / file), self._at(name, file)))

    def _set_aside(self, name: str) -> None:
        """Copied within the store, then removed: it has its name until all of the copy is there."""
        aside = f".{name}{DAMAGED_SUFFIX}"
        if self._files(aside):
            self._remove(aside)
        for file in self._files(name):
            self._asked(lambda file=file: self._fs.cp_file(self._at(name, file), self._at(aside, file)))
        self._remove(name)

    def _remove(self, name: str) -> None:
        """The manifest first: what is left when this is cut short is no checkpoint."""
        if MANIFEST_FILE in self._files(name):
            self._asked(lambda: self._fs.rm_file(self._at(name, MANIFEST_FILE)))
        if self._files(name):
            self._asked(lambda: self._fs.rm(self._at(name), recursive=True))

    def _files(self, name: str) -> list[str]:
        """Relative names of all that lies below a name, in their order."""
        found = self._asked(lambda: self._fs.find(self._at(name)))
        return sorted(str(file).rpartition(f"{name}/")[2] for file in found)

    def _damage(self, name: str, entry: manifest.Entry, there: list[str]) -> str | None:
        where = f"{self.url}/{name}/{entry.name}"
        if entry.name not in there:
            return f"{where}: No such file or directory"

        def read() -> str:
            digest = hashlib.sha256()
            with self._fs.open(self._at(name, entry.name), "rb") as stream:
                while piece := stream.read(CHUNK_BYTES):
                    digest.update(piece)
            return digest.hexdigest()

        num_bytes = int(self._asked(lambda: self._fs.size(self._at(name, entry.name))))
        return manifest.difference(where, entry, num_bytes=num_bytes, read_sha256=lambda: str(self._asked(read)))

    def _put_at(self, file: str) -> float:
        """Seconds since the epoch; now, where a protocol does not tell: what may be in progress is not deleted."""
        try:
            return float(self._fs.modified(file).timestamp())
        except (NotImplementedError, FileNotFoundError):
            return time.time()

    def _manifest(self, name: str) -> bytes:
        content: bytes = self._asked(lambda: self._fs.cat_file(self._at(name, MANIFEST_FILE)))
        return content

    def _eval_loss(self, name: str) -> float | None:
        try:
            loss = json.loads(self._manifest(name))["about"]["eval_loss"]
            return None if loss is None else float(loss)
        except (ValueError, KeyError, TypeError):  # a damaged one is the best of nothing
            return None

    def _at(self, *parts: str) -> str:
        return "/".join([self._root, *parts])

    def _list(self, folder: str) -> list[str]:
        try:
            return [str(name).rstrip("/") for name in self._fs.ls(folder, detail=False)]
        except FileNotFoundError:
            return []

    def _asked(self, call: Any) -> Any:
        """What the store answers; its refusals in our words."""
        try:
            return call()
        except CheckpointError:
            raise
        except Exception as error:  # each protocol has its own: botocore's, aiohttp's, OSError
            raise CheckpointError(f"{self.url}: {type(error).__name__}: {error}") from error
