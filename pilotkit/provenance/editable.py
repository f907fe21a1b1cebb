"""The code behind editable installs, whose version says nothing: by git's word, or by the files themselves.

Called for the lock. Reads files; imports and changes nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pilotkit
from pilotkit.errors import ConfigError
from pilotkit.provenance.difference import read_tree
from pilotkit.provenance.digest import digest_files, digest_of
from pilotkit.provenance.git import read_git
from pilotkit.provenance.packages import Distribution
from pilotkit.provenance.source import digest_package


def with_code(distributions: Sequence[Distribution], *, exclude: Sequence[Path] = ()) -> list[Distribution]:
    """The same distributions, the editable ones with `code` and `code_state`. `exclude` as for `read_git`."""
    # Once a folder: a folder on the path may hold hundreds that no installer has put there, and a repository several.
    looked: dict[str, tuple[str | None, str | None]] = {}
    found = []
    for item in distributions:
        if item.origin == "editable":
            key = item.name if item.name == "pilotkit" else item.source or ""
            if key not in looked:
                looked[key] = _look(item, exclude)
            code, code_state = looked[key]
            found.append(dataclasses.replace(item, code=code, code_state=code_state))
        else:
            found.append(item)
    return found


def _look(item: Distribution, exclude: Sequence[Path]) -> tuple[str | None, str | None]:
    """Digest of the code, and what git says about it; both None when it cannot be read."""
    if item.name == "pilotkit":  # the code that is running now, which may come from another place on the path
        own = Path(pilotkit.__file__).parent
        return digest_package(own, key="packages"), read_git(own, exclude=exclude, with_digest=False).state
    folder = Path(unquote(urlsplit(item.source or "").path))
    if not item.source or not folder.is_dir():
        return None, None
    git = read_git(folder, exclude=exclude)
    if git.state != "unknown":
        of_git = [read_tree(folder, exclude=exclude), git.diff_digest]
        compiled = _compiled(item.name, folder)
        return digest_of([*of_git, digest_files(compiled, root=folder)] if compiled else of_git), git.state
    try:
        return digest_package(folder, key="packages"), git.state
    except (OSError, ConfigError):
        return None, None


def _compiled(name: str, folder: Path) -> list[Path]:
    """Modules that were compiled in place: git ignores them as a rule, and building them again changes what runs.

    Only those of the package's own modules, as setuptools names them: a checkout may hold a whole environment, too.
    """
    try:
        tops = (importlib.metadata.distribution(name).read_text("top_level.txt") or "").split() or [""]
    except importlib.metadata.PackageNotFoundError:  # the folder of a .pth file
        tops = [""]
    found = set()
    for root, top in itertools.product((folder, folder / "src"), tops):
        for suffix in (".so", ".pyd"):
            found |= {*root.glob(f"{top}*{suffix}"), *((root / top).rglob(f"*{suffix}") if top else ())}
    return sorted(path for path in found if path.is_file())
