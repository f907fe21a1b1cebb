"""Checkpoints in an object store, or in anything else that fsspec knows: whole ones up, verified ones down.

    <url>/
        step-0000000100/...              the files of a whole checkpoint
        step-0000000100/manifest.json    put last: without it nothing there is a checkpoint
        latest                           the name of the newest one

An object store has no rename, and a put object is there whole or not at all. So the manifest is what makes a checkpoint
visible, and the last thing that is put. Called after a save (`push`), and by the stages that are given a URL (`fetch`).
Needs fsspec and the package of the protocol (`pip install pilotkit[s3]`), but no torch.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from pilotkit.errors import CheckpointError, ConfigError, Problem
from pilotkit.records.checkpoint_check import check
from pilotkit.records.checkpoint_store import LATEST_FILE, STEP_NAME, Retention, kept_of
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

    def push(self, checkpoint: Path, *, retention: Retention | None = None) -> None:
        """Put a whole checkpoint of this machine; `latest` and the retention follow when all of it is there.

        What an upload that was cut short left under this name is written over. Raises CheckpointError when it is there.
        """
        name = checkpoint.name
        assert STEP_NAME.fullmatch(name), checkpoint
        if name in self.whole():
            raise CheckpointError(f"{self.url}/{name}: exists already; a checkpoint is never written over another")
        files = sorted(str(file.relative_to(checkpoint)) for file in checkpoint.rglob("*") if file.is_file())
        for file in [*(file for file in files if file != MANIFEST_FILE), MANIFEST_FILE]:
            self._asked(lambda file=file: self._fs.put_file(os.fspath(checkpoint / file), self._at(name, file)))
        current = self.latest()
        if current is None or current < name:
            self._asked(lambda: self._fs.pipe_file(self._at(LATEST_FILE), f"{name}\n".encode()))
        if retention is not None:
            self.retain(retention)

    def retain(self, retention: Retention) -> list[str]:
        """Delete what the rule does not keep, the manifest first: what is left of a deletion is no checkpoint."""
        names = self.whole()
        kept = kept_of(names, retention) | {self.latest()}
        if retention.keep_best:
            losses = [(loss, name) for name in names if (loss := self._eval_loss(name)) is not None]
            kept |= {min(losses)[1]} if losses else set()
        removed = [name for name in names if name not in kept]
        for name in removed:
            self._asked(lambda name=name: self._fs.rm_file(self._at(name, MANIFEST_FILE)))
            self._asked(lambda name=name: self._fs.rm(self._at(name), recursive=True))
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

    def _eval_loss(self, name: str) -> float | None:
        plain = json.loads(self._asked(lambda: self._fs.cat_file(self._at(name, MANIFEST_FILE))))
        loss = plain["about"].get("eval_loss")
        return None if loss is None else float(loss)

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
