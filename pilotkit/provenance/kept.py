"""The state of the code that a sweep keeps at submission, for the jobs that run it later.

Written beside the kept code by `pilotkit.launch.snapshot`; the batch script of a job names the file in its environment.
What the folder of the submission holds by then is not what runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from pilotkit.provenance.git import GitState

KEPT_VARIABLE = "PILOTKIT_KEPT_STATE"
KEPT_FILE = "state.json"


def write_kept(folder: Path, git: GitState, tree: str | None) -> Path:
    """Write down the repository's state and the digest of its commit's files, as they were when they were copied."""
    path = folder / KEPT_FILE
    # In a folder that nobody reads before it is whole.
    path.write_text(json.dumps({"git": dataclasses.asdict(git), "tree": tree}), encoding="utf-8")
    return path


def read_kept(of: Path | None = None) -> tuple[GitState, str | None] | None:
    """What was kept for this process; None where it runs what lies in its folder, or where `of` is no kept file."""
    path = os.environ.get(KEPT_VARIABLE)
    if not path or (of is not None and Path(path).resolve().parent not in of.resolve().parents):
        return None
    try:
        plain = json.loads(Path(path).read_text(encoding="utf-8"))
        return GitState(**plain["git"]), plain["tree"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
