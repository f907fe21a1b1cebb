"""Follow a submitted sweep: ask Slurm once, then judge every point.

Called by the stages that show a sweep and by the launcher in waiting mode.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pilotkit.errors import RecordError
from pilotkit.launch.slurm_view import Views, cancel, find_by_name, view_jobs
from pilotkit.records.points import Point, read_points
from pilotkit.records.sweeps import SWEEP_FILE, Sweep, SweepPoint, has_sweep, read_sweep, write_sweep
from pilotkit.records.truths import Truth, truth_of

# Slurm's controller may be restarted while a sweep runs; when it is gone for longer, waiting has no end in sight.
SILENCE_SECONDS = 600.0
FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 1.0, 10.0


def find_truths(sweep_dir: Path, sweep: Sweep) -> tuple[list[Truth], str]:
    """The truth of every point, in order, and what Slurm said when it did not answer."""
    complaint = _complete_job_ids(sweep_dir, sweep)
    # Only those without a last word are asked for: a sweep that is over costs Slurm nothing.
    first = [truth_of(sweep_dir, sweep, point, view=None, complaint="not asked") for point in sweep.points]
    open_points = [truth.point for truth in first if not truth.is_final]
    wanted = {sweep.arrays[point.array].job_id for point in open_points if point.array is not None}
    asked = sorted(job_id for job_id in wanted if job_id)
    tasks = [point.job_id for point in open_points if point.job_id]
    views = view_jobs(asked, tasks=tasks) if asked else Views(complaint=complaint)
    truths = []
    for truth in first:
        if truth.is_final:
            truths.append(truth)
            continue
        if truth.point.elsewhere is not None:
            truths.append(_elsewhere(truth))
            continue
        view = views.of(truth.point.job_id)
        truths.append(truth_of(sweep_dir, sweep, truth.point, view=view, complaint=views.complaint or complaint))
    return truths, views.complaint or complaint


def find_any_truths(sweep_dir: Path) -> tuple[str, list[Truth], str]:
    """The stage of a sweep, and the truths of its points: submitted to Slurm or run on this machine.

    Raises RecordError when the folder is that of neither.
    """
    if has_sweep(sweep_dir):
        sweep = read_sweep(sweep_dir)
        return sweep.stage, *find_truths(sweep_dir, sweep)
    points = read_points(sweep_dir)
    if not points:
        raise RecordError(f"{sweep_dir} is not the folder of a sweep: it holds neither {SWEEP_FILE} nor a point")
    truths = local_truths(points)
    return next((truth.record.stage for truth in truths if truth.record), "a sweep"), truths, ""


def local_truths(points: Sequence[Point]) -> list[Truth]:
    """Of points that run on this machine, which nobody else has to be asked about."""
    truths = []
    for point in points:
        record = point.record()
        planned = SweepPoint(point.index, point.overrides)
        cause = record.problem.summary if record.problem else ""
        truths.append(Truth(planned, record.status, cause, record if record.config else None))
    return truths


def wait_for_all(sweep_dir: Path, *, show: Callable[[Sequence[Truth]], None]) -> list[Truth]:
    """Poll until every point has its last word, is held by somebody, or Slurm has been silent for ten minutes."""
    pause, heard = FIRST_POLL_SECONDS, time.monotonic()
    while True:
        truths, complaint = find_truths(sweep_dir, read_sweep(sweep_dir))
        show(truths)
        if not complaint:
            heard = time.monotonic()
        waiting = [truth for truth in truths if not truth.is_final and not truth.is_stuck]
        if not waiting or time.monotonic() - heard > SILENCE_SECONDS:
            return truths
        time.sleep(pause)
        pause = min(pause * 1.2, LAST_POLL_SECONDS)


def _elsewhere(truth: Truth) -> Truth:
    """The point waits or runs in an earlier sweep: what became of it there."""
    point = truth.point
    folder = Path(str(point.elsewhere))
    try:
        there = read_sweep(folder)
        twin = next(other for other in there.points if other.index == point.elsewhere_index)
    except (RecordError, StopIteration):
        return dataclasses.replace(truth, status="vanished", cause=f"its earlier sweep is gone: {folder}")
    views = view_jobs([twin.job_id.partition("_")[0]], tasks=[twin.job_id]) if twin.job_id else Views()
    view = views.of(twin.job_id)
    found = truth_of(folder, there, twin, view=view, complaint=views.complaint)
    words = found.cause or f"as job {twin.job_id} of {folder}"
    return dataclasses.replace(found, point=point, cause=found.cause if found.is_final else words)


def _complete_job_ids(sweep_dir: Path, sweep: Sweep) -> str:
    """A submission that was killed between Slurm's yes and the manifest is found again by its job names.

    Returns Slurm's complaint: until it has answered, nobody knows whether there are such jobs.
    """
    nameless = [array for array in sweep.arrays if array.job_id is None and array.refusal is None]
    if sweep.state != "submitting" or not nameless:
        return ""
    found, complaint = find_by_name([array.job_name for array in nameless])
    for array in nameless:
        array.job_id = found.get(array.job_name)
    if found:
        assign_job_ids(sweep)
        write_sweep(sweep_dir, sweep)
    return complaint


def assign_job_ids(sweep: Sweep) -> None:
    """Give every point the id of its task: tasks of an array are numbered in the order of its points."""
    for number, array in enumerate(sweep.arrays):
        if array.job_id is None:
            continue
        points = [point for point in sweep.points if point.array == number]
        for task, point in enumerate(points):
            point.job_id = f"{array.job_id}_{task}" if array.count > 1 else array.job_id


def cancel_sweep(sweep: Sweep) -> list[str]:
    """End every submission of the sweep; returns their ids."""
    job_ids = [array.job_id for array in sweep.arrays if array.job_id]
    if job_ids:
        cancel(job_ids)
    return job_ids
