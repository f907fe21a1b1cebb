"""Which files a built-in text data set reads: one list for the data set that trains and for the digest that pins it.

Called by `pilotkit.train.datasets` (worker) and by `pilotkit.provenance.revisions` (driver). Lists files and
never opens one, so both sides agree on the list whatever they do with the text.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from pilotkit.errors import ConfigError, Problem

# Third-party code, test suites (some hold deliberately broken source) and the parts that Linux
# distributions often package apart: the same Python version then gives the same text on more machines.
_NOT_STDLIB_TEXT = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"})


def stdlib_root() -> Path:
    """Folder of this interpreter's standard library; in a virtual environment that of the base installation."""
    return Path(sysconfig.get_path("stdlib"))


def stdlib_files() -> list[Path]:
    """Every `*.py` of the standard library in the order of the relative path, without tests and installed packages.

    Raises ConfigError when the library is not a folder of source files (a zipped or stripped Python).
    """
    root = stdlib_root()
    files = [path for path in _walk(root, skipped=_NOT_STDLIB_TEXT, key="data.name") if path.suffix == ".py"]
    if not files:
        raise ConfigError(
            [
                Problem(
                    key="data.name",
                    value="stdlib",
                    allowed="a Python whose standard library is a folder of .py files",
                    fix=f"{root} holds none; choose data=synthetic, or data=text_folder data.path=FOLDER",
                )
            ]
        )
    return files


def text_files(path: str | Path, *, pattern: str) -> list[Path]:
    """The one file that `path` is, or every regular file below the folder, in the order of the relative path.

    `pattern` is a shell pattern for the file's name, or, with a `/` in it, for the path relative to the folder
    (`*` crosses folders; a leading `**/` says nothing more). It does not apply to a single file. Hidden files and
    folders below `path` are skipped; links are followed, and a folder that several links reach is read once.
    Raises ConfigError on `data.path` when nothing is there, nothing matches, or a folder cannot be listed.
    """
    start = Path(path)
    if start.is_file():
        return [start]
    if not start.is_dir():
        raise ConfigError(
            [
                Problem(
                    key="data.path",
                    value=str(path),
                    allowed="an existing file or folder",
                    fix=f"there is nothing at {start.absolute()}; give a path relative to where pilotkit was started",
                )
            ]
        )
    wanted = pattern.removeprefix("**/")
    files = [file for file in files_below(start, key="data.path") if _matches(file, root=start, pattern=wanted)]
    if not files:
        raise ConfigError(
            [
                Problem(
                    key="data.path",
                    value=str(path),
                    allowed=f"a folder with at least one file that matches {pattern!r} and is not hidden",
                    fix="give another folder, or another data.kwargs.pattern",
                )
            ]
        )
    return files


def files_below(folder: Path, *, key: str) -> list[Path]:
    """Every regular file below `folder` that is not hidden, in the order of the relative path; may be empty.

    A folder that cannot be listed raises ConfigError on `key`: passing over it would change the data silently.
    """
    return list(_walk(folder, skipped=frozenset(), key=key))


def _matches(path: Path, *, root: Path, pattern: str) -> bool:
    subject = path.relative_to(root).as_posix() if "/" in pattern else path.name
    return fnmatchcase(subject, pattern)


def _walk(root: Path, *, skipped: frozenset[str], key: str) -> Iterator[Path]:
    """Regular files below `root` sorted by their relative path as text, so that `a/z` comes after `a.py`."""

    def refuse(error: OSError) -> None:
        raise ConfigError(
            [
                Problem(
                    key=key,
                    value=str(root),
                    allowed="folders that can be read to the end",
                    fix=f"{error.filename}: {error.strerror}",
                )
            ]
        ) from error

    found: list[tuple[str, Path]] = []
    seen: set[tuple[int, int]] = set()
    for parent, folders, names in os.walk(root, followlinks=True, onerror=refuse):
        status = os.stat(parent)
        if (status.st_dev, status.st_ino) in seen:  # a link back to where we have been, perhaps upwards
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if name not in skipped and not name.startswith("."))
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                found.append((path.relative_to(root).as_posix(), path))
    return iter([path for _, path in sorted(found)])
