"""The lock: one plain dictionary that says exactly what runs, and the digest of it.

Called by the stage `lock` and by the gate before every later one. Only arranges what the other files of this room
found; holds no date and no folder of this machine, so that the same state gives the same bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pilotkit.provenance.container import Container
from pilotkit.provenance.digest import digest_of
from pilotkit.provenance.git import IGNORED, NO_REPOSITORY, GitState
from pilotkit.provenance.packages import NO_VERSION, Distribution
from pilotkit.provenance.revisions import Revision

LOCK_VERSION = 2
# libyaml reads a lock of 400 packages in a tenth of the time; a PyYAML built without it has only the other one.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_HEAD = """\
# What exactly runs. Written by pilotkit (stage=lock); commit it. lock.mode=check refuses what no longer matches it.
"""


def build_lock(
    *,
    config: Mapping[str, Any],
    seeds: Mapping[str, Any],
    determinism: Mapping[str, Any],
    environment: Mapping[str, str],
    model: Revision,
    data: Revision,
    git: GitState,
    tree: str | None,
    container: Container,
    machine: Mapping[str, Any] | None,
    distributions: Sequence[Distribution],
    torch_build: Mapping[str, Any],
    python_version: str,
    pilotkit_version: str,
) -> dict[str, Any]:
    """Arrange what was found as plain data (for JSON and YAML), in an order that does not change between runs.

    `config` is the part of the configuration that identifies the run; `tree` the digest of the commit's files.
    """
    return {
        "lock_version": LOCK_VERSION,
        "pilotkit": pilotkit_version,
        "python": python_version,
        "model": _plain_revision(model),
        "data": _plain_revision(data),
        "git": {**dataclasses.asdict(git), "tree": tree},
        "container": dataclasses.asdict(container),
        "machine": None if machine is None else dict(machine),
        "torch": {name: torch_build[name] for name in sorted(torch_build)},
        "environment": dict(sorted(environment.items())),
        "determinism": dict(determinism),
        "seeds": dict(seeds),
        "config": dict(config),
        "packages": {item.name: _plain_package(item) for item in sorted(distributions, key=lambda item: item.name)},
    }


def lock_digest(lock: Mapping[str, Any]) -> str:
    """SHA-256 of what identifies the run: no notes, no reasons, no folders of this machine, no dates."""
    return digest_of(identity_of_lock(lock))


def reproducibility_problems(lock: Mapping[str, Any]) -> list[str]:
    """What stops somebody else from running exactly this, one sentence each; empty when nothing does."""
    problems = [_git_problem(lock["git"])]
    for section in ("model", "data"):
        problems += [_revision_problem(section, lock[section])]
    if not lock["config"]["train"]["deterministic"]:
        problems.append("train.deterministic is false: two runs of this lock need not be equal.")
    if lock["container"]["reason"]:
        image = lock["container"]["image"]
        problems.append(f"container{f' {image}' if image else ''} is not pinned: {lock['container']['reason']}.")
    for name, package in lock["packages"].items():
        if package["version"] == NO_VERSION:
            whose = "nothing pins its code" if package.get("code") is None else "only this machine has its code"
            problems.append(f"{name} puts a folder on the path of Python that belongs to no package: {whose}.")
        elif package["origin"] == "editable":
            if package.get("code") is None:
                problems.append(f"package {name} {package['version']} is installed editable: nothing pins its code.")
            elif package.get("code_state") != "clean":
                problems.append(
                    f"package {name} {package['version']} is installed editable: only this machine has its code."
                )
        elif package["origin"] == "local" and "#" not in (package["source"] or ""):
            problems.append(
                f"package {name} {package['version']} was installed from a local folder: nobody else has it."
            )
    return [problem for problem in problems if problem]


def unresolved_fields(lock: Mapping[str, Any]) -> dict[str, str]:
    """What was named and could not be resolved, or asked and got no answer: sentences by field.

    Such a state is no lock: nobody knows what it stands for. What merely keeps others from running the same, a dirty
    tree or no repository at all, is among `reproducibility_problems` alone.
    """
    found = {}
    git, container = lock["git"], lock["container"]
    if git["state"] == "unknown" and git["reason"] not in (NO_REPOSITORY, IGNORED):
        found["git.state"] = _git_problem(git)
    for section in ("model", "data"):
        for name, revision in _with_parts(section, lock[section]):
            if revision["kind"] == "hub" and revision["revision"] is None:
                found[f"{name}.revision"] = _revision_problem(section, revision)
    if container["image"] is not None and container["digest"] is None:
        found["container.digest"] = f"container {container['image']} is not pinned: {container['reason']}."
    return found


def _with_parts(name: str, revision: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    parts = [(f"{name}.parts.{part['name']}", part) for part in revision["parts"]]
    return [(name, revision), *parts]


def to_yaml(lock: Mapping[str, Any]) -> str:
    """The lock as YAML in the order of `build_lock`; `yaml.safe_load` gives the same data back."""
    return _HEAD + yaml.safe_dump(dict(lock), sort_keys=False, allow_unicode=True, width=120)


def from_yaml(text: str) -> dict[str, Any]:
    """Read `to_yaml` back. Raises ValueError, with the reason, on what is not a lock of this version."""
    try:
        lock = yaml.load(text, Loader=_LOADER)  # noqa: S506 - both are safe loaders
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(lock, dict) or "lock_version" not in lock:
        raise ValueError("not a lock: it has no lock_version")
    if lock["lock_version"] == LOCK_VERSION:
        try:
            identity_of_lock(lock)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a whole lock: {error} is missing or of another kind") from error
    return lock


def identity_of_lock(lock: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a lock that says what runs. What follows from the rest (seeds, determinism) would only repeat it."""
    kept = ("lock_version", "pilotkit", "python", "config", "environment", "torch", "machine")
    identity: dict[str, Any] = {name: lock[name] for name in kept}
    for section in ("model", "data"):
        identity[section] = _identity_of_revision(lock[section])
    identity["git"] = {name: lock["git"][name] for name in ("tree", "state", "diff_digest")}
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
    """`1.2`, `1.2 (vcs git+https://...@commit)`; a folder or file of this machine counts only by its content."""
    origin, source = package["origin"], package["source"] or ""
    if origin in ("editable", "local"):
        source = package.get("code") or source.partition("#")[2]
    return " ".join([package["version"], *([f"({f'{origin} {source}'.strip()})"] if origin != "index" else [])])


def _plain_package(package: Distribution) -> dict[str, Any]:
    source = package.source
    if source is not None and source.startswith("file:"):  # the folder is this machine's, and the file is committed
        path, mark, digest = source.partition("#")
        source = f"file:{path.rstrip('/').rpartition('/')[2]}{mark}{digest}"
    plain = {"version": package.version, "origin": package.origin, "source": source}
    return plain if package.code is None else {**plain, "code": package.code, "code_state": package.code_state}


def _plain_revision(revision: Revision) -> dict[str, Any]:
    plain = dataclasses.asdict(revision)
    return {**plain, "parts": [_plain_revision(part) for part in revision.parts]}


def _git_problem(git: Mapping[str, Any]) -> str:
    if git["state"] == "dirty":
        return f"the working tree is dirty: {git['reason']}; commit or restore them."
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
