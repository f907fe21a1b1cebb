"""What git says about a folder: which commit, and whether the files are that commit's.

Called for the lock and for every record. Asks git and never changes anything: no index refresh, no hooks, no
file-system monitor, no network. Whatever goes wrong gives `unknown` with the reason, never `clean` and no exception.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pilotkit.provenance.digest import digest_file, digest_of

State = Literal["clean", "dirty", "untracked", "unknown"]

TIMEOUT_SECONDS = 10.0
NO_REPOSITORY = "no git repository here"
BROKEN = "the .git here leads to no repository (it is broken, or belongs to a worktree or submodule that was moved)"
IGNORED = "the repository above ignores this folder"
MAX_UNTRACKED_NAMES = 20

# An untracked file up to this size is taken for code and hashed; a larger one, or one after the first
# thousand, is taken for data and enters the digest by name and size.
_MAX_UNTRACKED_BYTES = 1 << 20
_MAX_UNTRACKED_HASHED = 1000

# Configuration (safe.directory of a container often comes this way), the limits of the search for a
# repository, and where git keeps its own programs. GIT_DIR, GIT_INDEX_FILE and the like, which a hook or
# a rebase sets, would make git speak about another repository.
_KEPT_VARIABLES = re.compile(r"GIT_CONFIG_.*|GIT_CEILING_DIRECTORIES|GIT_DISCOVERY_ACROSS_FILESYSTEM|GIT_EXEC_PATH")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True)
class GitState:
    """State of one repository. `diff_digest` covers changed and untracked files; it is None when clean or unknown.

    `untracked` names at most 20 files, relative to the top of the repository; `reason` is empty when clean.
    """

    state: State
    commit: str | None
    diff_digest: str | None = None
    untracked: list[str] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class _Status:
    commit: str | None
    changed: tuple[str, ...]
    untracked: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    """Files that git was told not to look at, and that are not the index's."""
    missing: tuple[str, ...] = ()
    """Submodules that are not checked out."""


class GitError(Exception):
    """git could not answer; the text is the reason in words."""


def read_git(folder: Path, *, exclude: Sequence[Path] = (), with_digest: bool = True) -> GitState:
    """Ask git about the repository that holds `folder` (all of it, not only the folder).

    Untracked files below `exclude` are passed over: pilotkit's own output folder is not code. An entry that holds
    `folder` itself (`output_dir=.`) is not obeyed, as it would hide code too. An entry that is a file (the lock that
    is committed) is passed over changed, too. What Python compiles (`__pycache__`) never counts. Without
    `with_digest` changed files are not read, `diff_digest` stays None, and the answer takes milliseconds.
    """
    try:
        top = top_of(folder)
        if _is_ignored(folder):
            return GitState("unknown", None, reason=IGNORED)
        status, complaint = _read_status(top, folder=folder, exclude=exclude)
        status = _with_what_git_passes_over(top, status)
    except GitError as error:
        return GitState("unknown", None, reason=str(error))
    untracked = list(status.untracked[:MAX_UNTRACKED_NAMES])
    if status.commit is None:
        return GitState("unknown", None, untracked=untracked, reason="the repository has no commit yet")
    if not (status.changed or status.untracked or status.hidden or status.missing):
        if complaint:
            return GitState("unknown", status.commit, reason=f"git answered with a warning: {complaint}")
        return GitState("clean", status.commit)
    state: State = "dirty" if status.changed or status.hidden or status.missing else "untracked"
    digest = _digest_changes(top, status) if with_digest else None
    return GitState(state, status.commit, digest, untracked, _describe(status))


def _read_status(top: Path, *, folder: Path, exclude: Sequence[Path]) -> tuple[_Status, str]:
    """Commit, changed and untracked files of the whole repository, and the first line of what git complained about.

    Format: git-status(1), "Porcelain Format Version 2" with -z. Options that a user's configuration may have
    turned off are spelled out.
    """
    options = ("--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--ignore-submodules=none", "--no-renames")
    done = run_git(top, "status", *options)
    if done.returncode != 0:
        raise GitError(_explain(done.stderr))
    commit: str | None = None
    changed, untracked = [], []
    skipped_files, skipped_folders = skipped_names(top, folder=folder, exclude=exclude)
    for entry in os.fsdecode(done.stdout).split("\0"):
        if entry.startswith("# branch.oid "):
            oid = entry.removeprefix("# branch.oid ")
            commit = oid if _COMMIT.fullmatch(oid) else None
        elif entry.startswith("? "):
            name = entry[2:]
            compiled = "__pycache__" in name.split("/")
            if not compiled and not name.startswith(skipped_folders):
                untracked.append(name)
        elif entry.startswith("1 "):
            changed.append(entry.split(" ", 8)[8])
        elif entry.startswith("u "):
            changed.append(entry.split(" ", 10)[10])
    found = [tuple(sorted(name for name in names if name not in skipped_files)) for names in (changed, untracked)]
    return _Status(commit, *found), _first_line(done.stderr)


def _with_what_git_passes_over(top: Path, status: _Status) -> _Status:
    """git calls clean what it was told not to look at (assume-unchanged, a sparse checkout), and empty submodules.

    Format: git-ls-files(1), options -s and -v: a tag in lower case is assume-unchanged, S is skip-worktree.
    """
    flagged, missing = {}, []
    for entry in os.fsdecode(ask_git(top, "ls-files", "-s", "-v", "-z")).split("\0"):
        head, _, name = entry.partition("\t")
        tag, mode, oid, *_ = [*head.split(" "), "", "", ""]
        if mode == "160000":
            if not (top / name / ".git").exists():
                missing.append(name)
        elif tag == "S" or tag.islower():
            flagged[name] = oid
    flagged = {name: oid for name, oid in flagged.items() if name not in status.changed}
    there = [name for name in flagged if (top / name).is_file()][:_MAX_UNTRACKED_HASHED]
    found = os.fsdecode(ask_git(top, "hash-object", "--", *there)).split() if there else []
    same = {name for name, oid in zip(there, found, strict=True) if flagged[name] == oid}
    hidden = tuple(name for name in flagged if name not in same)
    return dataclasses.replace(status, hidden=hidden, missing=tuple(missing))


def skipped_names(top: Path, *, folder: Path, exclude: Sequence[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`exclude` as names below `top`: exact names, and beginnings of names with a slash at their end."""
    whole, start = top.resolve(), folder.resolve()
    resolved = [path.resolve() for path in exclude]
    names = [
        path.relative_to(whole).as_posix()
        for path in resolved
        if path != whole and path.is_relative_to(whole) and not start.is_relative_to(path)
    ]
    return tuple(names), tuple(f"{name}/" for name in names)


def _digest_changes(top: Path, status: _Status) -> str:
    """Names and present contents of all files that are not the commit's: with the commit, what the tree holds.

    The text of `git diff` is not used, as it depends on the user's configuration.
    """
    entries = [["changed", name, _content(top / name)] for name in (*status.changed, *status.hidden)]
    entries += [["changed", name, "not checked out"] for name in status.missing]
    for number, name in enumerate(status.untracked):
        path = top / name
        try:
            size = path.lstat().st_size
        except OSError:
            size = -1
        as_code = number < _MAX_UNTRACKED_HASHED and 0 <= size <= _MAX_UNTRACKED_BYTES
        entries.append(["untracked", name, _content(path) if as_code else f"{size} bytes"])
    return digest_of(entries)


def _content(path: Path) -> str:
    try:
        if path.is_symlink():
            return f"link to {os.readlink(path)}"
        if path.is_dir() and not (path / ".git").exists():  # git would speak of the repository above
            return "a folder"
        if path.is_dir():  # a submodule, or a repository inside this one
            inner = read_git(path)
            return f"repository {inner.commit} {inner.state} {inner.diff_digest}"
        executable = bool(path.stat().st_mode & 0o100)
        return f"{'executable ' if executable else ''}{digest_file(path)}"
    except FileNotFoundError:
        return "absent"
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _describe(status: _Status) -> str:
    parts = []
    if status.changed:
        parts.append(f"{len(status.changed)} changed")
    if status.untracked:
        parts.append(f"{len(status.untracked)} untracked")
    total = len(status.changed) + len(status.untracked)
    words = [f"{' and '.join(parts)} file{'s' if total > 1 else ''}"] if parts else []
    for names, what in ((status.hidden, "not looked at by git"), (status.missing, "submodule not checked out")):
        if names:
            words.append(f"{what}: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}")
    return "; ".join(words)


def _is_ignored(folder: Path) -> bool:
    """True when the repository ignores `folder`: git then says clean, whatever is in there."""
    done = run_git(folder, "check-ignore", "--quiet", ".")
    if done.returncode not in (0, 1):
        raise GitError(_explain(done.stderr))
    return done.returncode == 0


def top_of(folder: Path) -> Path:
    """The top folder of the repository that holds `folder`. Raises GitError when there is none."""
    try:
        return Path(os.fsdecode(ask_git(folder, "rev-parse", "--show-toplevel").removesuffix(b"\n")))
    except GitError as error:
        # git passes over a folder .git that lacks a part of a repository, and goes on above.
        if str(error) == NO_REPOSITORY and any((path / ".git").exists() for path in _searched(folder)):
            raise GitError(BROKEN) from None
        raise


def _searched(folder: Path) -> Iterator[Path]:
    """Where git looks for a repository: up to a ceiling or the border of the file system (git(1), GIT_CEILING_...)."""
    start = folder.resolve()
    ceilings = {
        Path(text).resolve() for text in os.environ.get("GIT_CEILING_DIRECTORIES", "").split(os.pathsep) if text
    }
    for path in (start, *start.parents):
        if path != start and (path in ceilings or path.stat().st_dev != start.stat().st_dev):
            return
        yield path


def ask_git(folder: Path, *arguments: str) -> bytes:
    """What git prints. Raises GitError with the reason when it fails."""
    done = run_git(folder, *arguments)
    if done.returncode != 0:
        raise GitError(_explain(done.stderr))
    return done.stdout


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """One read-only question to git, whatever its exit code. Raises GitError when git cannot be asked."""
    program = shutil.which("git")
    if program is None:
        above = (folder.absolute(), *folder.absolute().parents)
        raise GitError("git is not installed" if any((path / ".git").exists() for path in above) else NO_REPOSITORY)
    command = [program, "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", os.fspath(folder), *arguments]
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        raise GitError(f"git gave no answer in {TIMEOUT_SECONDS:g} s") from None
    except OSError as error:
        raise GitError(f"git could not be started: {error.strerror}") from error


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or _KEPT_VARIABLES.fullmatch(name)
    }
    # English messages for _explain; no question to a terminal; no fetch for a partial clone (git 2.45).
    return {**kept, "LC_ALL": "C", "LANGUAGE": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}


def _explain(stderr: bytes) -> str:
    text = stderr.decode("utf-8", "replace")
    if "dubious ownership" in text:
        return "git refuses a repository that belongs to another user (git config safe.directory)"
    if "not a git repository (or any" in text:
        return NO_REPOSITORY
    if "not a git repository" in text:  # with the place that a .git file names, which is this machine's
        return BROKEN
    if "must be run in a work tree" in text:
        return "a git repository without a work tree"
    return f"git failed: {_first_line(stderr) or 'without a word'}"


def _first_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return re.sub(r"^(fatal|error|warning): ", "", lines[0]) if lines else ""
