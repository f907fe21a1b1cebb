"""Submit a sweep to Slurm and return: one array for each shape of resources, a manifest that says which job is whose.

Called by the launcher plugin. In order: compose and check every point, find what was run before, claim the folder,
keep the code, write the manifest, queue the arrays, write the manifest again with their ids.
Nothing is queued when one point is wrong; nothing stays queued when Slurm refuses one array.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import secrets
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from pilotkit.config.load import dump
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import SubmissionRefused
from pilotkit.launch.follow import assign_job_ids, find_truths
from pilotkit.launch.shapes import Shape
from pilotkit.launch.slurm_job import PointJob
from pilotkit.launch.slurm_plan import Candidate, compose_points, raise_problems, reuse_earlier
from pilotkit.launch.slurm_submit import (
    clean_environment,
    parameters_for_manifest,
    split,
    submit_array,
    take_back,
    uninterrupted,
)
from pilotkit.launch.slurm_view import find_by_name, has_slurm, max_array_size, partitions
from pilotkit.launch.snapshot import Snapshot, take_snapshot
from pilotkit.records.owner import Owner
from pilotkit.records.points import Point, write_point, write_point_config
from pilotkit.records.sweeps import (
    CODE_FOLDER,
    Sweep,
    SweepArray,
    SweepPoint,
    claim,
    has_sweep,
    read_sweep,
    read_sweeps,
    write_sweep,
)

NO_SLURM = (
    "cluster=slurm needs Slurm's commands (sbatch, srun), which this machine does not have. "
    "Run this on a login node of the cluster, or take cluster=local"
)

WRITERS = 8


@dataclass(frozen=True)
class _Array:
    """Points of one shape that go into one submission."""

    shape: Shape
    candidates: list[Candidate]


def submit_sweep(launcher: Any, job_overrides: Sequence[Sequence[str]], first_index: int) -> list[JobReturn]:
    """Queue the points and return one JobReturn a point; its value is where the point will be found."""
    if not has_slurm():
        raise SubmissionRefused(NO_SLURM)
    sweep_dir = Path(str(launcher.config.hydra.sweep.dir)).absolute()
    candidates = compose_points(launcher, job_overrides, first_index, limits=partitions())
    configs = [candidate.config for candidate in candidates if candidate.config is not None]
    raise_problems(candidates, skip_invalid=bool(configs) and configs[0].sweep.skip_invalid)
    sweep = _open(sweep_dir, candidates, is_first=first_index == 0)
    queued = _plan(sweep, candidates)
    launch_dir = Path(sweep.launch_dir)
    if queued:
        snapshot = _keep_code(sweep_dir, sweep, launch_dir=launch_dir, config=configs[0])
        _write_points(sweep_dir, queued, launch_dir=launch_dir)
        _submit(sweep_dir, sweep, _arrays(queued), entry=str(launcher.params["entry"]), snapshot=snapshot)
    else:
        sweep.state = "submitted"
        write_sweep(sweep_dir, sweep)
    return [_job_return(sweep_dir, candidate) for candidate in candidates]


def _open(sweep_dir: Path, candidates: Sequence[Candidate], *, is_first: bool) -> Sweep:
    """A new manifest, or the one that an earlier batch of the same sweep has begun."""
    submitter = dataclasses.asdict(Owner.of_this_process())
    if not is_first and has_sweep(sweep_dir):
        sweep = read_sweep(sweep_dir)
        sweep.state, sweep.submitter = "submitting", submitter
        return sweep
    claim(sweep_dir)
    config = next(candidate.config for candidate in candidates if candidate.config is not None)
    return Sweep(
        sweep_id=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}",
        created_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        state="submitting",
        stage=config.stage,
        user=getpass.getuser(),
        hostname=socket.gethostname(),
        launch_dir=str(Path.cwd()),
        wait=config.cluster.wait,
        submitter=submitter,
    )


def _plan(sweep: Sweep, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add the points to the manifest; returns those that need a job."""
    planned = [candidate.planned() for candidate in candidates]
    sweep.points += planned
    sound: list[tuple[SweepPoint, PilotConfig]] = [
        (point, candidate.config)
        for point, candidate in zip(planned, candidates, strict=True)
        if candidate.config is not None and not candidate.problems
    ]
    if sound:
        output_dir, name = Path(sound[0][1].output_dir), sound[0][1].name
        wanted = {point.digest for point, _ in sound}
        earlier = [
            (folder, other)
            for folder, other in read_sweeps(output_dir, name=name)
            if any(twin.digest in wanted and twin.job_id for twin in other.points)
        ]
        alive = [
            str(truth.job_id)
            for folder, other in earlier
            for truth in find_truths(folder, other)[0]
            if not truth.is_final and truth.job_id and truth.point.elsewhere is None
        ]
        reuse_earlier(sound, earlier=earlier, alive=alive)
    needed = {point.index for point, _ in sound if not point.reused_run_dir and not point.elsewhere}
    return [candidate for candidate in candidates if candidate.index in needed]


def _keep_code(sweep_dir: Path, sweep: Sweep, *, launch_dir: Path, config: PilotConfig) -> Snapshot:
    number = len(list(sweep_dir.glob(f"{CODE_FOLDER}*")))
    target = sweep_dir / (CODE_FOLDER if number == 0 else f"{CODE_FOLDER}-{number}")
    # As the lock leaves itself out of what it is a lock of.
    lock = [Path(config.lock.path)] if config.lock.path else []
    snapshot = take_snapshot(target, launch_dir=launch_dir, exclude=[Path(config.output_dir), sweep_dir, *lock])
    sweep.code = snapshot.description
    return snapshot


def _write_points(sweep_dir: Path, candidates: Sequence[Candidate], *, launch_dir: Path) -> None:
    """Several at a time: each file is flushed, which is waiting and no work."""

    def write(candidate: Candidate) -> None:
        assert candidate.config is not None
        folder = sweep_dir / str(candidate.index)
        write_point_config(folder, dump(candidate.config))
        write_point(folder, Point(candidate.index, candidate.overrides, launch_dir=str(launch_dir)))

    with ThreadPoolExecutor(WRITERS) as pool:
        for _ in pool.map(write, candidates):
            pass  # raises what a write has raised


def _arrays(candidates: Sequence[Candidate]) -> list[_Array]:
    by_shape: dict[str, _Array] = {}
    for candidate in candidates:
        assert candidate.shape is not None
        by_shape.setdefault(candidate.shape.key, _Array(candidate.shape, [])).candidates.append(candidate)
    largest = max_array_size()
    return [
        _Array(array.shape, [array.candidates[place] for place in part])
        for array in by_shape.values()
        for part in split(len(array.candidates), largest=largest)
    ]


def _submit(sweep_dir: Path, sweep: Sweep, arrays: Sequence[_Array], *, entry: str, snapshot: Snapshot) -> None:
    """Queue every array; raises SubmissionRefused, with nothing left in the queue, when Slurm refuses one."""
    first = len(sweep.arrays)
    points = {point.index: point for point in sweep.points}
    for number, array in enumerate(arrays, first):
        name = f"pilotkit-{sweep.sweep_id}-{number}"
        plain = dict(parameters_for_manifest(array.shape))
        sweep.arrays.append(SweepArray(array.shape.words(), name, len(array.candidates), plain))
        for candidate in array.candidates:
            points[candidate.index].array = number
    setup = snapshot.setup_lines(launch_dir=Path(sweep.launch_dir), inherited=os.environ.get("PYTHONPATH", ""))
    with clean_environment() as removed:
        sweep.removed_variables = removed
        write_sweep(sweep_dir, sweep)
        with uninterrupted():
            for array, submitted in zip(arrays, sweep.arrays[first:], strict=True):
                try:
                    submitted.job_id = submit_array(
                        [_job(sweep_dir, candidate, entry=entry) for candidate in array.candidates],
                        shape=array.shape,
                        job_name=submitted.job_name,
                        setup=setup,
                        sweep_dir=sweep_dir,
                    )
                except SubmissionRefused as error:
                    submitted.refusal = str(error)
                    doubt = _give_up(sweep_dir, sweep, first, refused=submitted)
                    raise SubmissionRefused(_refusal_words(error, submitted, sweep_dir, doubt)) from error
            sweep.state = "submitted"
            assign_job_ids(sweep)
            try:
                write_sweep(sweep_dir, sweep)
            except OSError:
                # A manifest without ids, in a folder that takes no records either.
                _take_back(sweep, first)
                raise


def _take_back(sweep: Sweep, first: int) -> None:
    take_back([array.job_id for array in sweep.arrays[first:] if array.job_id])


def _give_up(sweep_dir: Path, sweep: Sweep, first: int, *, refused: SweepArray) -> str:
    """Returns what Slurm says when it cannot be known that nothing is queued."""
    _take_back(sweep, first)
    # A controller that was silent for too long may have taken the job all the same.
    found, doubt = find_by_name([refused.job_name])
    take_back(list(found.values()))
    sweep.state = "refused"
    for array in sweep.arrays[first:]:
        array.job_id = None
    # Where the disk refuses this too, Slurm's sentence is the one to tell; no job is left for the manifest to name.
    with contextlib.suppress(OSError):
        write_sweep(sweep_dir, sweep)
    return doubt


def _refusal_words(error: SubmissionRefused, array: SweepArray, sweep_dir: Path, doubt: str) -> str:
    queued = "nothing is queued."
    if doubt:
        queued = f"whether anything is queued it does not say ({doubt}): scancel --name={array.job_name} takes it back."
    return (
        f"Slurm refused the sweep; {queued}\n{error}\n"
        f"asked for: {array.words or 'the defaults'} ({array.count} points)\nsweep folder: {sweep_dir}"
    )


def _job(sweep_dir: Path, candidate: Candidate, *, entry: str) -> PointJob:
    config, shape = candidate.config, candidate.shape
    assert config is not None
    assert shape is not None
    return PointJob(
        entry=entry,
        folder=str(sweep_dir / str(candidate.index)),
        time_minutes=int(shape.parameters["time"]),
        signal_delay_seconds=int(shape.parameters["signal_delay_s"]),
        max_requeues=config.cluster.max_requeues,
    )


def _job_return(sweep_dir: Path, candidate: Candidate) -> JobReturn:
    folder = sweep_dir / str(candidate.index)
    done = JobReturn(overrides=candidate.overrides, working_dir=str(folder), status=JobStatus.COMPLETED)
    done.return_value = {"point": str(folder)}
    return done
