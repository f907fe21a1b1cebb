"""Hand arrays to Slurm through submitit: all of them or none, with an environment that is nobody else's.

Called by `pilotkit.launch.slurm_sweep`. Never waits for a job.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotkit.errors import SubmissionRefused
from pilotkit.launch.shapes import Shape
from pilotkit.launch.slurm_view import cancel, is_inherited
from pilotkit.records.sweeps import JOBS_FOLDER


def submit_array(
    calls: Sequence[Callable[[], None]], *, shape: Shape, job_name: str, setup: Sequence[str], sweep_dir: Path
) -> str:
    """Queue one job a call and return the id of the array (of the job, when it is one alone).

    Raises SubmissionRefused with sbatch's own sentence.
    """
    import submitit

    parameters = {**shape.parameters, "job_name": job_name, "stderr_to_stdout": True}
    parameters["setup"] = [*setup, *parameters.get("setup", [])]
    # The batch script becomes Python, so that the signal for the script (`B:`) reaches the driver.
    python = shape.python or shlex.quote(sys.executable)
    uses_srun = bool(parameters.get("use_srun"))
    delay = parameters.get("signal_delay_s", 120)
    if not uses_srun:
        python = f"exec {python}"
        parameters["additional_parameters"] = {
            "signal": f"B:USR2@{delay}",
            **parameters.get("additional_parameters", {}),
        }
    try:
        executor = submitit.SlurmExecutor(folder=sweep_dir / JOBS_FOLDER / "%j", max_num_timeout=0, python=python)
        # submitit asks for a wckey of its own, which a cluster that checks them does not know.
        executor.update_parameters(**{"wckey": None, **parameters})
    except (RuntimeError, ValueError) as error:
        raise SubmissionRefused(f"The sweep cannot be submitted: {error}") from error
    try:
        # submitit prints sbatch's words as well as raising them.
        with contextlib.redirect_stderr(io.StringIO()):
            jobs = executor.map_array(_call, list(calls))
    except (RuntimeError, OSError) as error:  # submitit raises both for a command that failed
        raise SubmissionRefused(sbatch_sentence(error)) from error
    return str(jobs[0].job_id).partition("_")[0]


def _call(call: Callable[[], None]) -> None:
    call()


def sbatch_sentence(error: Exception) -> str:
    """What sbatch itself said, without the traceback around it."""
    lines = [line.strip() for line in str(error).splitlines() if "sbatch: " in line]
    kept = list(dict.fromkeys(line[line.index("sbatch: ") :] for line in lines))
    return "\n".join(kept) or str(error).strip().splitlines()[-1]


def split(count: int, *, largest: int | None) -> list[range]:
    """`count` points in arrays of at most `largest`."""
    size = min(count, largest or count)
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


@contextlib.contextmanager
def clean_environment() -> Iterator[list[str]]:
    """Without the variables of a job that we may be inside of, which sbatch would take for options. Yields names."""
    removed = {name: value for name, value in os.environ.items() if is_inherited(name)}
    for name in removed:
        del os.environ[name]
    try:
        yield sorted(removed)
    finally:
        os.environ.update(removed)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and a closed terminal wait until Slurm's answer is written down; only the main thread may say so."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_back(job_ids: Sequence[str]) -> None:
    """A later array was refused: what was queued before it must not run alone."""
    if job_ids:
        cancel(job_ids)


def parameters_for_manifest(shape: Shape) -> Mapping[str, Any]:
    """What was asked for, as plain data."""
    return {name: value for name, value in shape.parameters.items() if value not in (None, [], {})}
