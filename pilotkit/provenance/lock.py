"""The lock: one plain dictionary that says exactly what runs, its digest, and what has drifted from an older one.

Called by the stage `lock`, and by every later stage that compares itself with a lock. Only arranges what the other
files of this room found; never looks at the machine, so two machines with the same content have the same digest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pilotkit.provenance.container import Container
from pilotkit.provenance.digest import digest_of
from pilotkit.provenance.git import GitState
from pilotkit.provenance.packages import Distribution
from pilotkit.provenance.revisions import Revision

LOCK_VERSION = 1
_ABSENT = "absent"


def build_lock(
    *,
    config_digest: str,
    model: Revision,
    data: Revision,
    seed: int,
    git: GitState,
    container: Container,
    distributions: Sequence[Distribution],
    torch_build: Mapping[str, Any],
    python_version: str,
    pilotkit_version: str,
) -> dict[str, Any]:
    """Arrange what was found as plain data (for JSON and YAML), in an order that does not change between runs."""
    return {
        "lock_version": LOCK_VERSION,
        "pilotkit": pilotkit_version,
        "python": python_version,
        "config_digest": config_digest,
        "seed": seed,
        "model": _plain_revision(model),
        "data": _plain_revision(data),
        "git": dataclasses.asdict(git),
        "container": dataclasses.asdict(container),
        "torch": {name: torch_build[name] for name in sorted(torch_build)},
        "packages": {
            item.name: {"version": item.version, "origin": item.origin, "source": item.source}
            for item in sorted(distributions, key=lambda item: item.name)
        },
    }


def lock_digest(lock: Mapping[str, Any]) -> str:
    """SHA-256 of what identifies the run: no notes, no reasons, no folders of this machine, no dates."""
    return digest_of(_identity(lock))


def reproducibility_problems(lock: Mapping[str, Any]) -> list[str]:
    """What stops somebody else from running exactly this, one sentence each; empty when nothing does."""
    problems = [_git_problem(lock["git"])]
    for section in ("model", "data"):
        problems += [_revision_problem(section, lock[section])]
    if lock["container"]["reason"]:
        image = lock["container"]["image"]
        problems.append(f"container{f' {image}' if image else ''} is not pinned: {lock['container']['reason']}.")
    for name, package in lock["packages"].items():
        if package["origin"] == "editable":
            problems.append(f"package {name} {package['version']} is installed editable: its version does not pin it.")
        elif package["origin"] == "local" and "#" not in (package["source"] or ""):
            problems.append(
                f"package {name} {package['version']} was installed from a local folder: nobody else has it."
            )
    return [problem for problem in problems if problem]


def to_yaml(lock: Mapping[str, Any]) -> str:
    """The lock as YAML in the order of `build_lock`; `yaml.safe_load` gives the same data back."""
    return yaml.safe_dump(dict(lock), sort_keys=False, allow_unicode=True, width=120)


def drift(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed between two locks, one line each: the dotted name, then `old -> new`; empty when nothing did.

    Only what `lock_digest` covers is compared. A lock of another `lock_version` differs in that line too.
    """
    before, after = _flatten(_identity(old)), _flatten(_identity(new))
    names = list(dict.fromkeys([*before, *after]))
    return [
        f"{name}: {before.get(name, _ABSENT)} -> {after.get(name, _ABSENT)}"
        for name in names
        if before.get(name, _ABSENT) != after.get(name, _ABSENT)
    ]


def _identity(lock: Mapping[str, Any]) -> dict[str, Any]:
    identity = {
        name: value for name, value in lock.items() if name not in ("git", "container", "model", "data", "packages")
    }
    for section in ("model", "data"):
        identity[section] = _identity_of_revision(lock[section])
    identity["git"] = {name: lock["git"][name] for name in ("commit", "state", "diff_digest")}
    identity["container"] = {"digest": lock["container"]["digest"] or lock["container"]["image"]}
    identity["packages"] = {name: _identity_of_package(package) for name, package in lock["packages"].items()}
    return identity


def _identity_of_revision(revision: Mapping[str, Any]) -> dict[str, Any]:
    identity: dict[str, Any] = {"kind": revision["kind"], "revision": revision["revision"]}
    if revision["kind"] == "hub":
        identity["name"] = revision["name"]
    if revision["parts"]:
        identity["parts"] = {part["name"]: _identity_of_revision(part) for part in revision["parts"]}
    return identity


def _identity_of_package(package: Mapping[str, Any]) -> str:
    """`1.2`, `1.2 (vcs git+https://...@commit)`; a folder or file of this machine counts only by its hash."""
    origin, source = package["origin"], package["source"] or ""
    if origin in ("editable", "local"):
        source = source.partition("#")[2]
    return " ".join([package["version"], *([f"({f'{origin} {source}'.strip()})"] if origin != "index" else [])])


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            flat.update(_flatten(item, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = "none" if item is None else str(item)
    return flat


def _plain_revision(revision: Revision) -> dict[str, Any]:
    plain = dataclasses.asdict(revision)
    return {**plain, "parts": [_plain_revision(part) for part in revision.parts]}


def _git_problem(git: Mapping[str, Any]) -> str:
    if git["state"] == "dirty":
        return f"the working tree is dirty: {git['reason']}; commit them."
    if git["state"] == "untracked":
        shown = ", ".join(git["untracked"][:3])
        return f"the working tree has files that git does not track: {git['reason']} ({shown}); commit or ignore them."
    if git["state"] == "unknown":
        return f"the state of the code is unknown: {git['reason']}."
    return ""


def _revision_problem(section: str, revision: Mapping[str, Any]) -> str:
    if revision["locked"]:
        return ""
    return f"{section} {revision['name']} is not pinned: {revision['note']}."
