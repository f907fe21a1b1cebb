"""The few lines of provenance that every record carries, in milliseconds.

Called by every stage when it writes its record. Reads metadata only: imports none of the packages, hashes no file.
"""

from __future__ import annotations

import importlib.metadata
import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pilotkit
from pilotkit.provenance.git import read_git

_PACKAGES = ("torch", "hydra-core", "omegaconf", "numpy")


def light_provenance(*, exclude: Sequence[Path] = ()) -> dict[str, Any]:
    """Versions, platform, host, and the git commit and state of the working directory's repository.

    Untracked files below `exclude` (pilotkit's own output folder) do not count. `git.state` is as in
    `pilotkit.provenance.git`; a package that is not installed is None.
    """
    git = read_git(Path(), exclude=exclude, with_digest=False)
    return {
        "pilotkit": pilotkit.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "git": {"commit": git.commit, "state": git.state},
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
