"""Which commit a Hugging Face name and revision mean: as given, from the hub, or from the local cache.

Called by `pilotkit.provenance.revisions`. Asks the hub for a commit and never downloads a file. A name that cannot
be resolved gives the reason, never a guess.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TIMEOUT_SECONDS = 10.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubCommit:
    """The commit (40 hex digits) or None, and in words where it comes from or why there is none."""

    commit: str | None
    note: str


def resolve_commit(name: str, *, revision: str | None, repo_type: Literal["model", "dataset"]) -> HubCommit:
    """A full commit is taken as it is. A branch, a tag, a short commit or nothing (`main`) is resolved.

    The hub is asked first. When it does not answer, the local cache is looked at, as a library that is offline
    would load that commit. Without `huggingface_hub` nothing is resolved.
    """
    if revision is not None and _COMMIT.fullmatch(revision):
        return HubCommit(revision, "commit as given")
    asked = revision or "main"
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        return HubCommit(None, f"{asked!r} is not a commit, and huggingface_hub is not installed to resolve it")
    try:
        api = hub.HfApi()
        ask = api.model_info if repo_type == "model" else api.dataset_info
        commit = ask(name, revision=asked, timeout=TIMEOUT_SECONDS).sha
        trouble = "the hub named no commit"
    except Exception as error:  # whatever its HTTP library raises; the name of the error is the reason
        commit, trouble = None, f"the hub did not resolve it ({type(error).__name__})"
    if isinstance(commit, str) and _COMMIT.fullmatch(commit):
        return HubCommit(commit, f"{asked!r} resolved by the hub; give this commit as the revision to load no other")
    cached = _cached_commit(name, revision=asked, repo_type=repo_type)
    if cached is not None:
        return HubCommit(
            cached, f"{asked!r} resolved by the local cache, as {trouble}; give this commit as the revision"
        )
    return HubCommit(None, f"{asked!r} is not a commit, and {trouble}")


def _cached_commit(name: str, *, revision: str, repo_type: str) -> str | None:
    """Layout of the cache: `<cache>/models--<org>--<name>/refs/<revision>` holds the commit."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()
    refs = cache / f"{repo_type}s--{name.replace('/', '--')}" / "refs"
    try:
        commit = (refs / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None
