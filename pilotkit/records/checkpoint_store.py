"""A folder of checkpoints of one run: which are whole, which is newest, what a killed save left, what may go.

    <root>/
        step-0000000100/        a whole checkpoint: it has this name only since its last byte was on disk
        latest                  the name of the newest one, replaced in one piece after that
        .step-0000000200.part/  a save that is going on, or was cut short; `saving.json` in it says by whom
        .step-0000000050.gone/  one that retention took away, until its files are deleted
        .step-0000000300.damaged/   one that did not verify when a run came back, and went on from an older one

Called by `train.store` and by stage `checkpoint_verify`. Needs no torch, and never touches a save that is in progress.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotkit.records import atomic, manifest
from pilotkit.records.owner import Owner

LATEST_FILE = "latest"
SAVING_FILE = "saving.json"
STEP_NAME = re.compile(r"step-(\d{10,})")
# A saver on another machine cannot be asked; one that wrote nothing for this long is taken for dead.
SILENT_SECONDS = 15 * 60.0
GONE_SUFFIX, DAMAGED_SUFFIX = ".gone", ".damaged"
LEFT_SUFFIXES = (".part", GONE_SUFFIX, DAMAGED_SUFFIX)


@dataclass(frozen=True)
class Partial:
    """What is left of a save or of a deletion: its size now, and the reason why it is or is not in progress."""

    path: Path
    num_bytes: int
    is_in_progress: bool
    reason: str


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the newest `keep_last`, every one at a multiple of `keep_every_steps`, the best one."""

    keep_last: int = 3
    keep_every_steps: int | None = None
    keep_best: bool = False
    """By the lowest `eval_loss` that was given to the save."""

    def __post_init__(self) -> None:
        assert self.keep_last >= 1, "the newest checkpoint is never deleted"


class CheckpointStore:
    """The checkpoints below `root`. Opening one does not touch the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, step: int) -> Path:
        """Where the checkpoint of an optimizer step goes."""
        return self.root / f"step-{step:010d}"

    def whole(self) -> list[Path]:
        """Every checkpoint that has its name, oldest first. Nothing is read: `checkpoint_check` looks inside."""
        if not self.root.is_dir():
            return []
        steps = [(int(match[1]), path) for path in self.root.iterdir() if (match := STEP_NAME.fullmatch(path.name))]
        return [path for _, path in sorted(steps)]

    def latest(self) -> Path | None:
        """The checkpoint that `latest` names; None when there is none, or when it is gone."""
        try:
            name = (self.root / LATEST_FILE).read_text(encoding="utf-8").strip()
        except OSError:
            return None
        path = self.root / name
        return path if STEP_NAME.fullmatch(name) and path.is_dir() else None

    def publish(self, path: Path) -> None:
        """Let `latest` name a checkpoint that is whole by now; it never goes back to an earlier step."""
        assert path.parent == self.root, path
        current = self.latest()
        if current is None or current.name < path.name:
            atomic.write_text(self.root / LATEST_FILE, f"{path.name}\n")

    def partials(self, *, silent_seconds: float = SILENT_SECONDS) -> list[Partial]:
        """What killed saves and deletions left, in the order of names, and saves in progress.

        One whose saver cannot be asked is in progress until it was silent for so long.
        """
        if not self.root.is_dir():
            return []
        found = [path for path in self.root.iterdir() if path.name.startswith(".") and path.suffix in LEFT_SUFFIXES]
        return [_describe(path, silent_seconds=silent_seconds) for path in sorted(found)]

    def clean(self, *, silent_seconds: float = SILENT_SECONDS) -> list[Partial]:
        """Delete what is not in progress; returns what was deleted. 0 seconds: nobody saves from another machine."""
        partials = self.partials(silent_seconds=silent_seconds)
        removed = [partial for partial in partials if not partial.is_in_progress]
        for partial in removed:
            if partial.path.is_dir():
                shutil.rmtree(partial.path, ignore_errors=True)
            else:  # the aside of a small file
                partial.path.unlink(missing_ok=True)
        return removed

    def retain(self, retention: Retention) -> list[Path]:
        """Delete what the rule does not keep; returns where those checkpoints were.

        Each is renamed before its files go, so that a deletion that is cut short leaves no checkpoint with holes.
        """
        whole = self.whole()
        names = kept_of([path.name for path in whole], retention)
        kept = {*(path for path in whole if path.name in names), self.latest()}
        if retention.keep_best:
            kept.add(best_of(whole))
        removed = [path for path in whole if path not in kept]
        for path in removed:
            shutil.rmtree(_set_aside(path, GONE_SUFFIX), ignore_errors=True)
        return removed

    def set_aside_damaged(self, path: Path) -> Path:
        """Take the name from a checkpoint that did not verify; its files stay, for who wants to look. Raises OSError.

        A run that goes on from an older one will save at this step again, and a retention must not count this one.
        """
        return _set_aside(path, DAMAGED_SUFFIX)


def kept_of(names: Sequence[str], retention: Retention) -> set[str]:
    """The names of whole checkpoints, oldest first, that stay by their place and their step."""
    kept = set(names[-retention.keep_last :])
    if retention.keep_every_steps:
        kept |= {name for name in names if int(name.removeprefix("step-")) % retention.keep_every_steps == 0}
    return kept


def best_of(paths: Sequence[Path]) -> Path | None:
    """The checkpoint with the lowest evaluation loss; None when none was saved with one."""
    losses = [(float(loss), path) for path in paths if (loss := manifest.read_about(path).get("eval_loss")) is not None]
    return min(losses)[1] if losses else None


def _set_aside(path: Path, suffix: str) -> Path:
    """Rename, over what an earlier time may have left under that name."""
    aside = path.with_name(f".{path.name}{suffix}")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(path, aside)
    return aside


def part_of(path: Path) -> Path:
    """Where a checkpoint is written before it has its name."""
    return path.with_name(f".{path.name}.part")


def claim(part: Path) -> None:
    """Make the folder of a save and say in it who saves. A dead save's leftovers are removed.

    Raises FileExistsError when another living process of this machine saves there, OSError when the disk refuses. What
    a saver on another machine left is taken over: a run that was moved must not wait for the one that died.
    """
    if part.exists():
        owner = _owner(part)
        if owner is not None and owner.is_alive_here and owner.pid != os.getpid():
            raise FileExistsError(None, f"another save is in progress there (process {owner.pid} is saving it)")
        shutil.rmtree(part)
    # A folder that is new is in its parent only once that is flushed: of a first save, the name would be lost.
    new = [folder for folder in part.parents if not folder.exists()]
    part.mkdir(parents=True)
    for folder in new:
        atomic.flush_folder(folder.parent)
    atomic.write_json(part / SAVING_FILE, dataclasses.asdict(Owner.of_this_process()))


def publish_folder(part: Path, path: Path) -> None:
    """Give a finished save its name, for good: flushed, and never over another one."""
    (part / SAVING_FILE).unlink(missing_ok=True)
    atomic.flush_folder(part)
    os.rename(part, path)
    atomic.flush_folder(path.parent)


def is_mine(part: Path) -> bool:
    """Whether this very process claimed the folder."""
    owner = _owner(part)
    return owner is not None and owner.is_alive_here and owner.pid == os.getpid()


def release(part: Path) -> None:
    """Remove a save that failed while its process lives on; a disk that is full gets its space back."""
    shutil.rmtree(part, ignore_errors=True)


def _describe(path: Path, *, silent_seconds: float) -> Partial:
    num_bytes, newest = 0, 0.0
    for file in (path, *path.rglob("*")):
        with contextlib.suppress(OSError):  # a file that is renamed or deleted meanwhile
            status = file.stat()
            num_bytes += 0 if file.is_dir() else status.st_size
            newest = max(newest, status.st_mtime)
    if path.suffix == GONE_SUFFIX:
        return Partial(path, num_bytes, False, "its deletion was cut short")
    if path.suffix == DAMAGED_SUFFIX:
        return Partial(path, num_bytes, False, "it did not verify, and a run went on from an older one")
    is_in_progress, reason = _progress(path, silence=time.time() - newest, enough=silent_seconds)
    return Partial(path, num_bytes, is_in_progress, reason)


def _owner(part: Path) -> Owner | None:
    try:
        return Owner.from_plain(json.loads((part / SAVING_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _progress(part: Path, *, silence: float, enough: float) -> tuple[bool, str]:
    owner = _owner(part)
    if owner is None or not owner.is_of_this_machine:
        who = "an unknown process" if owner is None else f"process {owner.pid} on {owner.host}"
        if silence < enough:
            return True, f"{who} wrote to it {silence:.0f} s ago"
        return False, f"{who} wrote nothing to it for {silence / 60:.0f} minutes"
    if owner.is_alive_here:
        return True, f"process {owner.pid} is saving it"
    return False, f"process {owner.pid}, which was saving it, is gone"
