"""What is told about a submitted sweep: which one, its table, its counts, and the commands that follow it.

Shared by the stages that show sweeps and by the front door after a submission. Prints; asks Slurm nothing.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotkit.config.overrides import quote_value
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import EXIT_FAILED, EXIT_OK, RecordError
from pilotkit.launch.slurm_job import CLOCK_SECONDS
from pilotkit.records.sweeps import Sweep, any_sweep_dirs
from pilotkit.records.truths import ANSWERS, Truth
from pilotkit.report.tables import sweep_table, varying_keys
from pilotkit.stages.console import Console

# submitit's guaranteed time, min(0.8 * limit, limit - 10 minutes), is nothing up to here: it takes every signal for the
# limit.
SHORT_MINUTES = 10


def chosen_sweep(config: PilotConfig) -> Path:
    """The folder that `sweep.dir` names, else the newest of the study. Raises RecordError when there is none."""
    if config.sweep.dir is not None:
        return Path(config.sweep.dir)
    found = any_sweep_dirs(Path(config.output_dir), name=config.name)
    if not found:
        raise RecordError(f"no sweep of name={config.name} under {config.output_dir}; name one with sweep.dir=...")
    return found[-1]


def show_truths(truths: Sequence[Truth], console: Console) -> None:
    """The table of a sweep: one row a point with its status, its numbers, or the reason why there are none."""
    console.table(sweep_table([truth.row() for truth in truths], varying=varying_keys(overrides_of(truths))))


def overrides_of(truths: Sequence[Truth]) -> list[list[str]]:
    """What was typed for each point."""
    return [truth.point.overrides for truth in truths]


def summary(truths: Sequence[Truth]) -> str:
    """`6 points: 4 ok, 1 failed, 1 pending`."""
    counts = Counter(truth.status.replace("_", " ") for truth in truths)
    return f"{len(truths)} points: " + (", ".join(f"{count} {status}" for status, count in counts.items()) or "none")


def exit_code(truths: Sequence[Truth]) -> int:
    """0 while nothing is known to have gone wrong: a point that does not fit is an answer."""
    wrong = [truth for truth in truths if truth.is_final and truth.status not in ANSWERS]
    return EXIT_FAILED if wrong else EXIT_OK


def _short_words(minutes: int, parameters: Mapping[str, Any]) -> str:
    """What a short time limit means for a job that is preempted."""
    near = int(parameters.get("signal_delay_s", 0) + CLOCK_SECONDS)
    begins = "from its start" if near >= minutes * 60 else f"in its last {near} s"
    return (
        f"a limit of {minutes} minutes is short: submitit would never queue such a job again. pilotkit does when Slurm "
        f"says that the job is preempted; {begins} any other SIGUSR2 is taken for the time limit"
    )


def submission_lines(sweep: Sweep, sweep_dir: Path) -> list[str]:
    """What is told after submission: ids, folder, and the command that follows the sweep."""
    queued = [point for point in sweep.points if point.job_id]
    arrays = [array for array in sweep.arrays if array.job_id]
    lines = [f"submitted {len(queued)} of {len(sweep.points)} points in {len(arrays)} arrays"]
    lines += [f"  job {array.job_id}: {array.count} points, {array.words}" for array in arrays]
    reused = sum(point.reused_run_dir is not None for point in sweep.points)
    elsewhere = sum(point.elsewhere is not None for point in sweep.points)
    left_out = sum(point.problem is not None for point in sweep.points)
    if reused:
        lines.append(f"  {reused} points have a record already and are not run again (sweep.rerun=all runs them)")
    if elsewhere:
        lines.append(f"  {elsewhere} points are waiting or running in an earlier sweep")
    if left_out:
        lines.append(f"  {left_out} points are left out, as their configuration is wrong")
    if sweep.removed_variables:
        lines.append(f"  not handed on to the jobs: {', '.join(sweep.removed_variables)}")
    short = [int(array.parameters["time"]) for array in arrays if int(array.parameters["time"]) <= SHORT_MINUTES]
    if short:
        lines.append(f"  note: {_short_words(max(short), arrays[0].parameters)}")
    tree = sweep.code.get("tree")
    if isinstance(tree, str):
        lines.append(f"  note: {tree}")
    chosen = shlex.quote(f"sweep.dir={quote_value(str(sweep_dir))}")
    return [
        *lines,
        f"sweep folder: {sweep_dir}",
        f"follow it:    pilotkit stage=sweep_status {chosen}",
        f"collect it:   pilotkit stage=sweep_collect {chosen}",
        "This terminal may be closed: the jobs need it no more.",
    ]
