"""Keep the code of a sweep as it was at submission: pilotkit itself, and the git tree that the user works in.

Called by the submission of a sweep. Copies files into the sweep's folder; never changes what it copies, and copies no
large file, which is data and belongs to the data's own revision.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pilotkit
from pilotkit.config.store import conf_dir
from pilotkit.errors import OutputError
from pilotkit.provenance.difference import read_tree
from pilotkit.provenance.git import read_git
from pilotkit.provenance.kept import KEPT_VARIABLE, write_kept

MAX_FILE_BYTES = 10 * 1024 * 1024
# Python 3.11 can be told not to put the working directory before everything else; before, it always does.
CAN_ENFORCE = sys.version_info >= (3, 11)
GIT_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Snapshot:
    """What was kept: `python_path` in order, and what a record says about it."""

    python_path: tuple[Path, ...]
    description: dict[str, Any]
    state_file: Path | None = None
    """The repository's state as it was kept, for the lock of a job; None without a repository."""

    def setup_lines(self, *, launch_dir: Path, inherited: str) -> list[str]:
        """Shell lines after which Python finds the kept code first, then what it found at submission."""
        parts = [*map(str, self.python_path), *([inherited] if inherited else []), str(launch_dir)]
        lines = [f"export PYTHONPATH={shlex.quote(os.pathsep.join(parts))}"]
        if not CAN_ENFORCE:
            return lines
        kept = [f"export {KEPT_VARIABLE}={shlex.quote(str(self.state_file))}"] if self.state_file else []
        return [*lines, "export PYTHONSAFEPATH=1", *kept]


def take_snapshot(target: Path, *, launch_dir: Path, exclude: Sequence[Path]) -> Snapshot:
    """Copy pilotkit and, where `launch_dir` is in a git tree, every file of it that git does not ignore.

    Files below `exclude` (outputs) stay out. Raises OSError or OutputError when the target cannot be written.
    """
    package = Path(pilotkit.__file__).parent
    ours = target / "pilotkit"
    try:
        shutil.copytree(package, ours / "pilotkit", ignore=shutil.ignore_patterns("__pycache__"))
        if not (package / "conf").is_dir():
            shutil.copytree(conf_dir(), ours / "conf")
    except shutil.Error as error:
        # One entry a file that could not be copied: they have the same reason.
        _, _, why = error.args[0][0]
        raise OutputError(
            f"The code of the sweep cannot be kept: {why}; give another folder with output_dir=..."
        ) from error
    description: dict[str, Any] = {
        "pilotkit": pilotkit.__version__,
        "pilotkit_from": str(package),
        "pilotkit_digest": _digest(ours),
        "folder": str(target),
        "is_enforced": CAN_ENFORCE,
    }
    top = _git_top(launch_dir)
    if top is None:
        description["tree"] = "the launch folder is in no git tree: its code is read when a job runs"
        return Snapshot((ours,), description)
    theirs = target / "tree"
    skipped = _copy_tree(top, theirs, exclude=[*exclude, target])
    git = read_git(launch_dir, exclude=exclude)
    state_file = write_kept(target, git, read_tree(launch_dir, exclude=exclude))
    description["tree"] = {
        "from": str(top),
        "commit": git.commit,
        "state": git.state,
        "digest": _digest(theirs),
        "left_out_as_large": skipped[:20],
    }
    inside = theirs / launch_dir.resolve().relative_to(top)
    return Snapshot((ours, *dict.fromkeys((inside, theirs))), description, state_file)


def _git_top(folder: Path) -> Path | None:
    answer = _git(folder, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(answer.removesuffix(b"\n"))).resolve() if answer else None


def _copy_tree(top: Path, target: Path, *, exclude: Sequence[Path]) -> list[str]:
    """Copy tracked and untracked files; returns the names of those that were too large."""
    target.mkdir(parents=True)
    skipped = []
    for name in _files(top):
        source = top / name
        if any(source.is_relative_to(folder) for folder in exclude) or not source.is_file():
            continue  # deleted and not yet committed, or a submodule
        if source.stat().st_size > MAX_FILE_BYTES:
            skipped.append(name)
            continue
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, place)
    return skipped


def _files(top: Path) -> Iterator[str]:
    listed = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    yield from dict.fromkeys(os.fsdecode(name) for name in listed.split(b"\0") if name)


def _digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all files, in the order of their names."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def _git(folder: Path, *arguments: str) -> bytes:
    """The output of a git command that only reads; empty when there is no git, or no repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or "CONFIG" in name}
    try:
        return subprocess.run(  # noqa: S603 - read-only git queries, found on PATH
            ["git", "-C", str(folder), *arguments],  # noqa: S607
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=GIT_TIMEOUT_SECONDS,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return b""
