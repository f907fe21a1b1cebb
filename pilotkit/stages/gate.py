"""The gate before every stage that starts workers: is this still what was locked?

Called by `pilotkit.stages.execute`, and by stage `lock` for the state of here and now. Decides nothing about evidence:
a stage that goes on after a drift carries the digest of what really ran, and `plan` sees that it is another one.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pilotkit
from pilotkit.chapters import TOOLS
from pilotkit.config.batch import batch_arithmetic
from pilotkit.config.identity import identity_of
from pilotkit.config.schema import PilotConfig
from pilotkit.config.seeds import derived_seeds
from pilotkit.errors import ConfigError, Problem, StageRefused
from pilotkit.launch.environment import worker_defaults
from pilotkit.provenance.container import read_container
from pilotkit.provenance.difference import read_tree
from pilotkit.provenance.digest import short
from pilotkit.provenance.drift import Comparison, compare_locks
from pilotkit.provenance.editable import with_code
from pilotkit.provenance.environment import read_environment
from pilotkit.provenance.git import read_git
from pilotkit.provenance.kept import read_kept
from pilotkit.provenance.lock import build_lock, from_yaml, lock_digest
from pilotkit.provenance.machine import read_machine
from pilotkit.provenance.packages import installed_distributions, torch_build
from pilotkit.provenance.revisions import resolve_data, resolve_model
from pilotkit.records.record import Record
from pilotkit.stages.console import Console

# These start no workers of their own: they sum up, look at files, or run other stages, which pass the gate themselves.
UNGATED = ("all", "lock", "report", *(stage for stage, _ in TOOLS))


@dataclass(frozen=True)
class Gate:
    """What was compared with which lock. `digest` is that of the lock, or of what is here when that has drifted."""

    against: str
    digest: str
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record."""
        return {"against": self.against, **self.comparison.to_dict()}

    def words(self) -> str:
        """One sentence with every field that drifted; empty when none did."""
        drift = self.comparison.drift
        if not drift:
            return ""
        fields = "; ".join(short_line(str(item)) for item in drift)
        count = f"{len(drift)} field{'s' if len(drift) > 1 else ''}"
        return f"{count} drifted from {self.against}: {fields}"


def current_lock(config: PilotConfig, *, launch_dir: Path) -> dict[str, Any]:
    """Look at everything that identifies the run, here and now. Raises ConfigError as the revisions do."""
    model, data, train = config.model, config.data, config.train
    exclude = [Path(config.output_dir), *([Path(config.lock.path)] if config.lock.path else [])]
    git, tree = read_kept() or (read_git(launch_dir, exclude=exclude), read_tree(launch_dir, exclude=exclude))
    return build_lock(
        config=_portable(identity_of(config), launch_dir),
        seeds=derived_seeds(
            train.seed, world_size=batch_arithmetic(config).world_size, micro_batch_size=train.micro_batch_size
        ),
        determinism=_determinism(config),
        environment=read_environment(os.environ),
        model=resolve_model(
            name=model.name,
            factory=model.factory,
            revision=model.revision,
            kwargs=model.kwargs,
            launch_dir=launch_dir,
        ),
        data=resolve_data(
            name=data.name,
            factory=data.factory,
            revision=data.revision,
            path=data.path,
            kwargs=data.kwargs,
            launch_dir=launch_dir,
            seq_len=config.train.seq_len,
        ),
        git=git,
        tree=tree,
        container=read_container(config.image, launch_dir=launch_dir),
        machine=read_machine(config.hardware.device_type),
        distributions=with_code(installed_distributions(), exclude=exclude),
        torch_build=torch_build(),
        python_version=platform.python_version(),
        pilotkit_version=pilotkit.__version__,
    )


def check_gate(config: PilotConfig, *, launch_dir: Path, lock: Record | None) -> Gate | None:
    """Compare what is here with the committed lock (`check`, `warn`), else with `lock`, the newest of this study.

    None when nothing was ever locked. Raises ConfigError when the committed lock cannot be read.
    """
    if config.lock.mode != "write":
        return compare_with_file(config, now=current_lock(config, launch_dir=launch_dir))
    locked: Mapping[str, Any] | None = lock.details.get("lock") if lock is not None else None
    if lock is None or lock.lock_digest is None or locked is None:
        return None
    now = current_lock(config, launch_dir=launch_dir)
    return _gate(config, against=f"lock {lock.run_id}", old=locked, now=now)


def compare_with_file(config: PilotConfig, *, now: Mapping[str, Any]) -> Gate:
    """Compare `now` with the lock that was committed. Raises ConfigError on `lock.path` when it cannot be read."""
    path = Path(config.lock.path or "")
    try:
        old = from_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        fix = f"{reason}; write one with stage=lock lock.mode=write lock.path={path.name}"
        raise ConfigError([Problem("lock.path", str(path), "a lock that pilotkit wrote", fix)]) from error
    return _gate(config, against=path.name, old=old, now=now)


def refuse_submission(config: PilotConfig, *, launch_dir: Path) -> None:
    """Before a sweep: has anything but the configuration, which points vary, drifted from the committed lock?

    Raises StageRefused in `lock.mode=check`; `warn` tells and goes on. Without a committed lock each job compares.
    """
    if config.lock.mode == "write" or config.stage in UNGATED:
        return
    gate = compare_with_file(config, now=current_lock(config, launch_dir=launch_dir))
    drift = tuple(item for item in gate.comparison.drift if not item.field.startswith("config."))
    kept = dataclasses.replace(gate, comparison=dataclasses.replace(gate.comparison, drift=drift))
    if drift and config.lock.mode == "check":
        raise StageRefused(f"nothing was submitted: {kept.words()}")
    pass_gate(kept, mode=config.lock.mode, console=Console(sys.stdout))


def pass_gate(gate: Gate, *, mode: str, console: Console) -> None:
    """Tell what drifted, by what it voids. Raises StageRefused in mode `check` when something did."""
    comparison = gate.comparison
    for item in comparison.allowed:
        console.line(f"  drifted, allowed: {short_line(str(item))} ({item.reason})")
    for text in comparison.not_compared:
        console.line(f"  not compared: {text}")
    if not comparison.drift:
        return
    for voids, lines in comparison.by_voids().items():
        console.line(f"  drifted from {gate.against}, voids {voids}: {'; '.join(map(short_line, lines))}")
    if mode == "check":
        raise StageRefused(
            f"{gate.words()}. Bring it back, lock anew (stage=lock lock.mode=write), or allow it with a reason "
            "('lock.allow=[\"field: why\"]')"
        )


def _gate(config: PilotConfig, *, against: str, old: Mapping[str, Any], now: Mapping[str, Any]) -> Gate:
    comparison = compare_locks(old, now, allow=allowed_fields(config))
    return Gate(against, lock_digest(now if comparison.drift else old), comparison)


def allowed_fields(config: PilotConfig) -> dict[str, str]:
    """Reasons by field or pattern, as the user gave them in `lock.allow`."""
    parts = [text.partition(": ") for text in config.lock.allow]
    return {field.strip(): reason.strip() for field, _, reason in parts}


def _determinism(config: PilotConfig) -> dict[str, Any]:
    """The switches as the workers set them; the reduction order of cuBLAS is set in their environment."""
    defaults = worker_defaults(os.environ)
    return {
        "deterministic_algorithms": config.train.deterministic,
        "cudnn_benchmark": False,
        "allow_tf32": config.precision.allow_tf32,
        "cublas_workspace_config": defaults["CUBLAS_WORKSPACE_CONFIG"],
        "compile": config.train.compile_scope if config.train.compile else False,
    }


def _portable(value: Any, launch_dir: Path) -> Any:
    """Folders below the one that pilotkit was started in, relative to it: a checkout may lie anywhere."""
    if isinstance(value, dict):
        return {name: _portable(item, launch_dir) for name, item in value.items()}
    if isinstance(value, str) and value.startswith(f"{launch_dir}{os.sep}"):
        return value.removeprefix(f"{launch_dir}{os.sep}")
    return value


def short_line(text: str) -> str:
    """Digests cut to the length in which people tell them apart."""
    return re.sub(r"\b[0-9a-f]{40,64}\b", lambda found: short(found[0]), text)
