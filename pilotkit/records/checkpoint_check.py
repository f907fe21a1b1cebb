"""Is this checkpoint whole and unchanged, and does loading it execute nothing? Asked without torch or the model's code.

Called by stage `checkpoint_verify` and by `restore`. Reads every byte once; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pilotkit.errors import CheckpointError
from pilotkit.records import manifest
from pilotkit.records.checkpoint_store import CheckpointStore, Partial
from pilotkit.records.manifest import Entry
from pilotkit.records.pickles import refused_pickle, refused_pieces
from pilotkit.records.tensor_index import Piece, SavedTensor, read_tensors

INDEX_FILE = ".metadata"


@dataclass(frozen=True)
class Checked:
    """One checkpoint: bytes and files in it, its tensors, the step it was saved at; sound when no problem was found."""

    path: Path
    num_bytes: int = 0
    num_files: int = 0
    step: int | None = None
    tensors: Sequence[SavedTensor] = ()
    problems: Sequence[str] = ()

    @property
    def is_sound(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class CheckedStore:
    """Newest first; `offered` is the newest sound one."""

    checked: Sequence[Checked]
    partials: Sequence[Partial] = field(default=())

    @property
    def offered(self) -> Checked | None:
        return next((one for one in self.checked if one.is_sound), None)


def check(path: Path) -> Checked:
    """Read one checkpoint to its last byte; problems name the file and the reason."""
    try:
        entries = manifest.read(path)
    except CheckpointError as error:
        return Checked(path, problems=[str(error)])
    problems = [*manifest.damages(path, entries), *manifest.foreign(path, entries)]
    tensors: list[SavedTensor] = []
    if not problems:
        # Only what is as it was written is worth a look inside.
        tensors, problems = _look_inside(path, entries)
    step = manifest.read_about(path).get("step")
    num_bytes = sum(entry.num_bytes for entry in entries)
    return Checked(path, num_bytes, len(entries), step, tensors, problems)


def check_store(root: Path) -> CheckedStore:
    """Every checkpoint below `root`, newest first, and what killed saves left there."""
    store = CheckpointStore(root)
    return CheckedStore([check(path) for path in reversed(store.whole())], store.partials())


def is_store(path: Path) -> bool:
    """Whether `path` is a folder of checkpoints, and not one itself."""
    store = CheckpointStore(path)
    return not (path / manifest.MANIFEST_FILE).exists() and bool(store.whole() or store.partials())


def newest_sound(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and what is wrong with the newer ones. Older ones are not read."""
    problems: list[str] = []
    for path in reversed(CheckpointStore(root).whole()):
        checked = check(path)
        if checked.is_sound:
            return path, problems
        problems += checked.problems
    return None, problems


def _look_inside(path: Path, entries: Sequence[Entry]) -> tuple[list[SavedTensor], list[str]]:
    """Tensors by the index; a pickle outside the forms that `weights_only` reads is a problem."""
    sizes = {entry.name: entry.num_bytes for entry in entries}
    tensors: list[SavedTensor] = []
    pieces: list[Piece] = []
    problems: list[str] = []
    if INDEX_FILE in sizes:
        try:
            tensors, pieces = read_tensors(path / INDEX_FILE, file_sizes=sizes)
        except CheckpointError as error:
            problems = str(error).splitlines()
    by_file: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_file.setdefault(piece.file, []).append(piece)
    for name in sizes:
        if name in by_file:
            problems += refused_pieces(path / name, by_file[name])
        elif name != INDEX_FILE and (text := refused_pickle(path / name)):
            problems.append(text)
    return tensors, problems
