"""Submit every point as a local job, wait for each of them, and account for those that died without a word.

Hydra's launcher reads the results in order and gives up at the first job without one; the jobs after it go on unread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from omegaconf import OmegaConf, open_dict

from pilotkit.config.load import dump, load
from pilotkit.errors import ConfigError
from pilotkit.records.points import Point, read_points, write_point, write_point_config


def launch_and_account(launcher: Any, job_overrides: Sequence[Sequence[str]], first_index: int) -> list[JobReturn]:
    """One JobReturn a point, in order. `launcher` is Hydra's own, which knows how to run one job."""
    import submitit
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

    params = dict(launcher.params)
    folder = params.pop("submitit_folder")
    max_num_timeout = params.pop("max_num_timeout", None)
    known = set(OmegaConf.structured(BaseQueueConf).keys())
    executor = submitit.AutoExecutor(
        cluster="local",
        folder=folder,
        **({} if max_num_timeout is None else {"local_max_num_timeout": max_num_timeout}),
    )
    executor.update_parameters(**{name if name in known else f"local_{name}": value for name, value in params.items()})
    sweep_dir = Path(launcher.config.hydra.sweep.dir).absolute()
    sweep_dir.mkdir(parents=True, exist_ok=True)
    state = Singleton.get_state()
    calls = [
        (list(overrides), "hydra.sweep.dir", first_index + offset, f"job_{first_index + offset}", state)
        for offset, overrides in enumerate(job_overrides)
    ]
    sound = [call for call in calls if _fix_configuration(launcher, sweep_dir, call[2], call[0])]
    jobs = executor.map_array(launcher, *zip(*sound, strict=True)) if sound else []
    try:
        return [
            _account(job, sweep_dir, call[2], filter_overrides(call[0])) for job, call in zip(jobs, sound, strict=True)
        ]
    except BaseException:
        for job in jobs:
            job.cancel()
        raise


def _fix_configuration(launcher: Any, sweep_dir: Path, index: int, overrides: Sequence[str]) -> bool:
    """Resolve a point now, as the job may start when the environment says something else.

    A point whose configuration is wrong becomes a row at once and no job; False then.
    """
    folder = sweep_dir / str(index)
    composed = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, list(overrides))
    launch_dir = Path(composed.hydra.runtime.cwd)
    with open_dict(composed):
        del composed["hydra"]
    try:
        write_point_config(folder, dump(load(composed, launch_dir=launch_dir)))
    except ConfigError as error:
        words = list(filter_overrides(overrides))
        write_point(folder, Point(index, words, problem=str(error), is_config_problem=True))
        return False
    return True


def _account(job: Any, sweep_dir: Path, index: int, overrides: Sequence[str]) -> JobReturn:
    """Wait for one job. Its truth is on the disk; what the job returned is only looked at for an exception."""
    result: JobReturn | None = None
    words = ""
    try:
        result = job.results()[0]
        if result.status is JobStatus.FAILED:
            error = result._return_value
            words = f"{type(error).__name__}: {error}"
    except Exception as error:
        words = _how_it_died(job, error)
    if words:
        found = {point.index: point for point in read_points(sweep_dir)}
        point = found.get(index) or Point(index, list(overrides))
        point.problem = point.problem or words
        write_point(sweep_dir / str(index), point)
    # Never FAILED: Hydra's sweeper would raise the first one and the others would not be told.
    done = result or JobReturn(overrides=list(overrides))
    done.status, done.return_value = JobStatus.COMPLETED, None
    return done


def _how_it_died(job: Any, error: Exception) -> str:
    """submitit keeps no exit code of a local job: what is known is that there is neither a result nor a traceback."""
    if type(error).__name__ == "UncompletedJobError":
        return f"crashed without a word, as kill -9 or the out-of-memory killer leave it; log: {job.paths.stderr}"
    return f"crashed: {str(error).strip().splitlines()[0]}"
