"""Stage `lock`: exactly what are we running? Resolves every revision and writes `lock.yaml`."""

from __future__ import annotations

import platform

import pilotkit
from pilotkit.config.identity import config_digest
from pilotkit.provenance.container import read_container
from pilotkit.provenance.git import read_git
from pilotkit.provenance.lock import build_lock, lock_digest, reproducibility_problems, to_yaml
from pilotkit.provenance.packages import installed_distributions, torch_build
from pilotkit.provenance.revisions import resolve_data, resolve_model
from pilotkit.records import atomic
from pilotkit.records.record import Metrics
from pilotkit.stages.run import Run, StageResult


def run(run: Run) -> StageResult:
    """Pin the run. What cannot be pinned is listed, and left to the user to judge."""
    config = run.config
    model, data = config.model, config.data
    lock = build_lock(
        config_digest=config_digest(config),
        model=resolve_model(
            name=model.name,
            factory=model.factory,
            revision=model.revision,
            kwargs=model.kwargs,
            launch_dir=run.launch_dir,
        ),
        data=resolve_data(
            name=data.name,
            factory=data.factory,
            revision=data.revision,
            path=data.path,
            kwargs=data.kwargs,
            launch_dir=run.launch_dir,
        ),
        seed=config.train.seed,
        git=read_git(run.launch_dir, exclude=[run.output_dir]),
        container=read_container(config.image, launch_dir=run.launch_dir),
        distributions=installed_distributions(),
        torch_build=torch_build(),
        python_version=platform.python_version(),
        pilotkit_version=pilotkit.__version__,
    )
    atomic.write_text(run.run_dir.lock, to_yaml(lock))
    problems = reproducibility_problems(lock)
    for problem in problems:
        run.console.line(f"  not pinned: {problem}")
    metrics = Metrics()
    metrics.add("measured", num_distributions=len(lock["packages"]))
    return StageResult(
        metrics=metrics,
        details={"lock": lock, "lock_digest": lock_digest(lock), "problems": problems},
        artifacts={"lock": run.run_dir.lock.name},
    )
