"""Any Hydra task as Slurm jobs, waited for: what Hydra's contract of a launcher asks. No job can make it wait for ever.

Called by the launcher plugin where no entry is configured: somebody else's application with `hydra/launcher=...`.
Hydra's own launcher learns the end of a job from accounting alone, and without it waits for a dead one for ever.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, filter_overrides

from pilotkit.errors import SubmissionRefused
from pilotkit.launch.follow import SILENCE_SECONDS
from pilotkit.launch.shapes import from_launcher
from pilotkit.launch.slurm_submit import clean_environment, sbatch_sentence
from pilotkit.launch.slurm_view import cancel, has_slurm, view_jobs
from pilotkit.records.truths import LEFT_ARRAY, JobView, exit_words

POLL_SECONDS = 1.0
# A result on a shared file system may be seen a moment after the job is gone.
RESULT_GRACE_SECONDS = 10.0
DEFAULT_MINUTES = 60
ENDED = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
    LEFT_ARRAY,
)


class JobDied(RuntimeError):
    """A job ended without a result."""


def run_tasks(launcher: Any, job_overrides: Sequence[Sequence[str]], first_index: int) -> list[JobReturn]:
    """Submit one array, wait, and return one JobReturn a job in order; one that died is FAILED with the reason."""
    import submitit

    if not has_slurm():
        raise SubmissionRefused("hydra/launcher=pilotkit_slurm needs Slurm's commands (sbatch, srun)")
    parameters = {"time": DEFAULT_MINUTES, "wckey": None, **from_launcher(launcher.params)}
    parameters.setdefault("job_name", str(launcher.config.hydra.job.name))
    python = parameters.pop("python", None)
    sweep_dir = Path(str(launcher.config.hydra.sweep.dir)).absolute()
    sweep_dir.mkdir(parents=True, exist_ok=True)
    executor = submitit.SlurmExecutor(
        folder=launcher.params["submitit_folder"],
        max_num_timeout=launcher.params.get("max_num_timeout") or 0,
        python=python,
    )
    state = Singleton.get_state()
    calls = [
        (list(overrides), "hydra.sweep.dir", index, f"job_id_for_{index}", state)
        for index, overrides in enumerate(job_overrides, first_index)
    ]
    with clean_environment():
        executor.update_parameters(**parameters)
        try:
            jobs = executor.map_array(launcher, *zip(*calls, strict=True))
        except (RuntimeError, OSError) as error:
            raise SubmissionRefused(sbatch_sentence(error)) from error
    try:
        return _wait(jobs, calls)
    except BaseException:
        with contextlib.suppress(Exception):
            cancel([str(job.job_id) for job in jobs])
        raise


def _wait(jobs: Sequence[Any], calls: Sequence[tuple[Any, ...]]) -> list[JobReturn]:
    returns: dict[int, JobReturn] = {}
    ended: dict[int, float] = {}
    heard = time.monotonic()
    submission = str(jobs[0].job_id).partition("_")[0]
    while len(returns) < len(jobs):
        views = view_jobs([submission])
        now = time.monotonic()
        heard = now if not views.complaint else heard
        for number, (job, call) in enumerate(zip(jobs, calls, strict=True)):
            if number in returns:
                continue
            if job.paths.result_pickle.exists():
                returns[number] = _result(job, call)
                continue
            view = views.of(str(job.job_id))
            is_over = not views.complaint and (view is None or view.state in ENDED)
            if not is_over and now - heard < SILENCE_SECONDS:
                ended.pop(number, None)
            elif now - ended.setdefault(number, now) > RESULT_GRACE_SECONDS or now - heard >= SILENCE_SECONDS:
                returns[number] = _failed(call, _death(job, view, views.complaint))
        if len(returns) < len(jobs):
            time.sleep(POLL_SECONDS)
    return [returns[number] for number in range(len(jobs))]


def _result(job: Any, call: tuple[Any, ...]) -> JobReturn:
    try:
        result: JobReturn = job.results()[0]
        return result
    except Exception as error:
        return _failed(call, error)


def _failed(call: tuple[Any, ...], error: Exception) -> JobReturn:
    result = JobReturn(overrides=list(filter_overrides(call[0])), status=JobStatus.FAILED)
    result.return_value = error
    return result


def _death(job: Any, view: JobView | None, complaint: str) -> JobDied:
    if view is None or view.state == LEFT_ARRAY:
        words = (
            f"Slurm does not answer: {complaint}" if complaint else "Slurm no longer knows it, and it left no result"
        )
    elif view.state in ("COMPLETED", "FAILED"):
        words = exit_words(view)
    else:
        words = f"it ended as {view.state} and left no result"
    return JobDied(f"job {job.job_id}: {words}; log: {job.paths.stdout}")
