"""The manifest of a sweep that was submitted to a scheduler: every point, and the job that was asked to run it.

<output_dir>/<name>/sweeps/<sweep>/sweep.json   this manifest
<output_dir>/<name>/sweeps/<sweep>/code/        the code that the jobs run
<output_dir>/<name>/sweeps/<sweep>/.submitit/   submitit's: the script, the log and the pickles of each job
<output_dir>/<name>/sweeps/<sweep>/<index>/     one folder a point, see `pilotkit.records.points`

Written by the submission, twice: before anything is queued, and when the job ids are known. Jobs never write it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotkit.errors import RecordError
from pilotkit.records import atomic
from pilotkit.records.points import POINT_FILE

SWEEP_FILE = "sweep.json"
CODE_FOLDER = "code"
SWEEPS_FOLDER = "sweeps"
# submitit puts the logs of a job beside its pickles.
JOBS_FOLDER = ".submitit"
SWEEP_SCHEMA_VERSION = 1


@dataclass
class SweepPoint:
    """One point of the plan. `job_id` is `123_4` in an array, `123` alone, None when nothing was queued for it."""

    index: int
    overrides: list[str]
    digest: str = ""
    """SHA-256 of everything in the configuration that can change the result."""
    array: int | None = None
    """Which of `Sweep.arrays` runs it."""
    job_id: str | None = None
    reused_run_dir: str | None = None
    """The run of an earlier sweep that answers this point already."""
    elsewhere: str | None = None
    """Folder of the earlier sweep in which this point is waiting or running already, and its index there."""
    elsewhere_index: int = 0
    problem: str | None = None
    """Why it was left out (`sweep.skip_invalid=true`)."""


@dataclass
class SweepArray:
    """One submission. `job_id` is None until Slurm took it; `refusal` is Slurm's own sentence when it did not."""

    words: str
    job_name: str
    count: int
    parameters: dict[str, Any] = field(default_factory=dict)
    job_id: str | None = None
    refusal: str | None = None


@dataclass
class Sweep:
    """A sweep as it was submitted."""

    sweep_id: str
    created_at: str
    state: str
    """`submitting`, `submitted` or `refused`."""
    stage: str
    user: str
    hostname: str
    launch_dir: str
    wait: bool = False
    varying: list[str] = field(default_factory=list)
    code: dict[str, Any] = field(default_factory=dict)
    removed_variables: list[str] = field(default_factory=list)
    """Variables of somebody else's job that were kept from this one."""
    arrays: list[SweepArray] = field(default_factory=list)
    points: list[SweepPoint] = field(default_factory=list)
    submitter: dict[str, Any] = field(default_factory=dict)
    """Whose process submits, as `pilotkit.records.owner` keeps it; empty in older manifests."""
    schema_version: int = SWEEP_SCHEMA_VERSION


def claim(sweep_dir: Path) -> None:
    """Make the folder ours. Raises RecordError when another sweep lives there."""
    sweep_dir.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(sweep_dir / SWEEP_FILE, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        raise RecordError(f"{sweep_dir} holds another sweep already; leave hydra.sweep.dir to pilotkit") from None


def write_sweep(sweep_dir: Path, sweep: Sweep) -> None:
    """Publish the manifest, whole or not at all."""
    atomic.write_json(sweep_dir / SWEEP_FILE, dataclasses.asdict(sweep))


def job_log(sweep_dir: Path, job_id: str | None) -> Path | None:
    """Where submitit lets a job print, and Slurm's own words about it go."""
    return None if job_id is None else sweep_dir / JOBS_FOLDER / job_id / f"{job_id}_0_log.out"


def has_sweep(sweep_dir: Path) -> bool:
    """Whether a scheduler was asked to run what lies in this folder."""
    return (sweep_dir / SWEEP_FILE).is_file()


def read_sweep(sweep_dir: Path) -> Sweep:
    """Raises RecordError when there is none, when it is damaged, or of another version."""
    path = sweep_dir / SWEEP_FILE
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        version = plain.pop("schema_version")
        arrays = [SweepArray(**array) for array in plain.pop("arrays")]
        points = [SweepPoint(**point) for point in plain.pop("points")]
        sweep = Sweep(**plain, arrays=arrays, points=points)
    except FileNotFoundError:
        raise RecordError(f"{sweep_dir} is not the folder of a submitted sweep (no {SWEEP_FILE})") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecordError(f"{path}: cannot be read ({error})") from error
    if version != SWEEP_SCHEMA_VERSION:
        raise RecordError(f"{path}: version {version} is not known to this pilotkit (it reads {SWEEP_SCHEMA_VERSION})")
    return sweep


def sweep_dirs(output_dir: Path, *, name: str) -> list[Path]:
    """The submitted sweeps of a study, oldest first."""
    found = (path.parent for path in (output_dir / name / SWEEPS_FOLDER).glob(f"*/{SWEEP_FILE}"))
    return sorted(found, key=lambda folder: folder.name)


def any_sweep_dirs(output_dir: Path, *, name: str) -> list[Path]:
    """Every sweep of a study, those that ran on this machine too, oldest first."""
    root = output_dir / name / SWEEPS_FOLDER
    found = {path.parent for path in root.glob(f"*/{SWEEP_FILE}")}
    found |= {path.parent.parent for path in root.glob(f"*/*/{POINT_FILE}")}
    return sorted(found, key=lambda folder: folder.name)


def read_sweeps(output_dir: Path, *, name: str) -> Iterator[tuple[Path, Sweep]]:
    """Every submitted sweep of a study that can be read, newest first."""
    for folder in reversed(sweep_dirs(output_dir, name=name)):
        try:
            yield folder, read_sweep(folder)
        except RecordError:
            continue
