"""Turn the points of a sweep into what is to be queued: composed, checked against the cluster, and known before or not.

Called by `pilotkit.launch.slurm_sweep`, before anything is queued. Asks Slurm for its limits; submits nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.utils import filter_overrides

from pilotkit.config.identity import config_digest
from pilotkit.config.load import load
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import ConfigError, Problem
from pilotkit.launch.compose import Composer
from pilotkit.launch.shapes import Shape, check_shape, shape_of
from pilotkit.launch.slurm_view import Partition
from pilotkit.records.record import Record
from pilotkit.records.search import find_records, newest_by_stage
from pilotkit.records.sweeps import Sweep, SweepPoint
from pilotkit.records.truths import ANSWERS, FAULTS

# How and where a point is run changes nothing in its result.
NOT_RESULT = ("cluster", "sweep", "output_dir", "report")


@dataclass
class Candidate:
    """One point on its way into the queue. Without a `config` its `problems` say why."""

    index: int
    overrides: list[str]
    config: PilotConfig | None = None
    shape: Shape | None = None
    problems: list[Problem] = field(default_factory=list)

    def planned(self) -> SweepPoint:
        words = "; ".join(f"{problem.key}={problem.value}: {problem.allowed}" for problem in self.problems)
        digest = result_digest(dataclasses.asdict(self.config)) if self.config else ""
        return SweepPoint(self.index, self.overrides, digest, problem=words or None)


def compose_points(
    launcher: Any, job_overrides: Sequence[Sequence[str]], first_index: int, *, limits: Sequence[Partition]
) -> list[Candidate]:
    """Compose, type and check every point, and work out what it asks of Slurm. Raises nothing of a point's own."""
    candidates = []
    composer = Composer(launcher.hydra_context.config_loader, launcher.config)
    for index, overrides in enumerate(job_overrides, first_index):
        candidate = Candidate(index, list(filter_overrides(overrides)))
        candidates.append(candidate)
        try:
            candidate.config = load(composer.compose(overrides), launch_dir=composer.launch_dir)
        except ConfigError as error:
            candidate.problems = list(error.problems)
            continue
        candidate.shape = shape_of(candidate.config, launcher=launcher.params)
        candidate.problems = [
            *check_shape(candidate.config, candidate.shape),
            *check_partition(candidate.config, candidate.shape, limits=limits),
        ]
    return candidates


def check_partition(config: PilotConfig, shape: Shape, *, limits: Sequence[Partition]) -> list[Problem]:
    """A partition that does not exist, or that ends jobs before the time that is asked for."""
    if not limits:
        return []
    asked = shape.parameters.get("partition")
    names = str(asked).split(",") if asked else [limit.name for limit in limits if limit.is_default]
    known = {limit.name: limit for limit in limits}
    unknown = [name for name in names if name not in known]
    if unknown:
        allowed = "one of this cluster's partitions: " + ", ".join(known)
        return [Problem("cluster.partition", asked, allowed, f"for example cluster.partition={limits[0].name}")]
    minutes = int(shape.parameters["time"])
    # Slurm takes a job when one of several partitions would.
    longest = [known[name].max_minutes for name in names]
    shortest_words = ", ".join(f"{name} {known[name].max_minutes} minutes" for name in names)
    if not names or any(limit is None or limit >= minutes for limit in longest):
        return []
    source = "cluster.time_minutes" if config.cluster.time_minutes else f"reservation={config.reservation.name}"
    return [
        Problem(
            "cluster.time_minutes",
            minutes,
            f"at most the partition's limit ({shortest_words}); {minutes} minutes come from {source}",
            "set cluster.time_minutes to what a point needs, or choose another cluster.partition",
            ("reservation", "cluster.partition"),
        )
    ]


def raise_problems(candidates: Sequence[Candidate], *, skip_invalid: bool) -> None:
    """Refuse the sweep for one wrong point, every reason once with the points it concerns."""
    wrong = [candidate for candidate in candidates if candidate.problems]
    if not wrong or (skip_invalid and len(wrong) < len(candidates)):
        return
    concerned: dict[str, tuple[Problem, list[int]]] = {}
    for candidate in wrong:
        for problem in candidate.problems:
            concerned.setdefault(str(problem), (problem, []))[1].append(candidate.index)
    hint = "" if len(wrong) == len(candidates) else "; sweep.skip_invalid=true submits the others"
    raise ConfigError(
        [
            dataclasses.replace(problem, fix=f"{problem.fix} ({_points(indices, len(candidates))}{hint})")
            for problem, indices in concerned.values()
        ]
    )


def reuse_earlier(
    points: Sequence[tuple[SweepPoint, PilotConfig]], *, earlier: Sequence[tuple[Path, Sweep]], alive: Sequence[str]
) -> None:
    """Mark the points that need no job: answered by a record, or waiting in an earlier sweep.

    `alive` are the ids of jobs that Slurm still has before it or is running. What a point's own `sweep.rerun` asks to
    be run again is left alone.
    """
    if not points:
        return
    config = points[0][1]
    found = find_records(Path(config.output_dir), name=config.name)
    kept = {
        "none": (*ANSWERS, *FAULTS),
        "failed": ANSWERS,
        "all": (),
    }
    answered: dict[tuple[str, str | None], Record] = {}
    for record in found.records:
        if record.status in (*ANSWERS, *FAULTS) and record.parent_run_id is None:
            answered[_result_key(record)] = record
    waiting = {
        twin.digest: (folder, twin)
        for folder, sweep in reversed(earlier)
        for twin in sweep.points
        if twin.job_id in alive
    }
    for point, config in points:
        if config.sweep.rerun != "all" and point.digest in waiting:
            folder, twin = waiting[point.digest]
            point.elsewhere, point.elsewhere_index = str(folder), twin.index
            continue
        lock = newest_by_stage(found.records, config_digest=config_digest(config)).get("lock")
        match = answered.get((point.digest, lock.lock_digest if lock else None))
        # The stage that pins is itself the newest lock there is: it is compared with nothing.
        if match is None and config.stage == "lock":
            match = next((other for key, other in answered.items() if key[0] == point.digest), None)
        if match is not None and match.status in kept[config.sweep.rerun]:
            point.reused_run_dir = match.folder


def result_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of everything in a configuration that can change the result, as canonical JSON, in hex."""
    kept = {name: value for name, value in config.items() if name not in NOT_RESULT}
    kept["hardware"] = {name: value for name, value in (kept.get("hardware") or {}).items() if name != "sources"}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _result_key(record: Record) -> tuple[str, str | None]:
    return result_digest(record.config), record.lock_digest


def _points(indices: Sequence[int], total: int) -> str:
    if len(indices) == total:
        return "every point"
    shown = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
    return f"point {shown}" if len(indices) == 1 else f"points {shown}"
