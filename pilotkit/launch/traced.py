"""Start a user's own script that leaves traces of its state (`pilotkit.train.run_trace`). Called by stage `restore`."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotkit.launch.command import script_command
from pilotkit.launch.environment import WorkerEnvironment, worker_environment
from pilotkit.launch.outcome import Outcome, killed_rank, last_lines, read_tail
from pilotkit.launch.worker import judge_ended, run_command
from pilotkit.records.record import Failure
from pilotkit.records.run_dir import RunDir
from pilotkit.variables import (
    CHECKPOINTS_VARIABLE,
    KILL_VARIABLE,
    NUM_STEPS_VARIABLE,
    SAVE_EVERY_VARIABLE,
    TRACE_VARIABLE,
)

NO_TRACE = (
    "put `pilotkit.train.run_trace.RunTrace` into it, or give its trainer one of `pilotkit.train.callbacks` "
    "(docs/restore.md)"
)


@dataclass(frozen=True)
class TracedScript:
    """A script, its arguments, and what it is asked for: optimizer steps in all, and between two checkpoints."""

    path: Path
    args: Sequence[str]
    num_steps: int
    save_every_steps: int


def run_traced(
    run_dir: RunDir,
    script: TracedScript,
    *,
    phase: str,
    checkpoints: Path,
    kill_after_step: int | None,
    nproc: int,
    shares: int,
    usable_cpus: int,
    launch_dir: Path,
    timeout_seconds: float,
) -> tuple[Outcome, WorkerEnvironment]:
    """The result is `{"traces": {"0": [...]}}` by rank.

    With `kill_after_step` every rank ends itself by SIGKILL after that step, and only that end is ok.
    """
    folder = run_dir.phase(phase)
    environment = worker_environment(os.environ, run_dir=run_dir.path, usable_cpus=usable_cpus, nproc=shares)
    asked: dict[str, str] = {
        TRACE_VARIABLE: os.fspath(folder.path),
        CHECKPOINTS_VARIABLE: os.fspath(checkpoints),
        NUM_STEPS_VARIABLE: str(script.num_steps),
        SAVE_EVERY_VARIABLE: str(script.save_every_steps),
    }
    if kill_after_step is not None:
        asked[KILL_VARIABLE] = str(kill_after_step)
    variables: Mapping[str, str] = {**environment.variables, **asked}
    ended = run_command(
        script_command(script.path, args=script.args, nproc=nproc, tokens_per_step=None),
        folder=folder,
        variables=variables,
        launch_dir=launch_dir,
        timeout_seconds=timeout_seconds,
        while_running=lambda: None,
    )
    traces, returncode, log = folder.read_traces(), ended["returncode"], read_tail(folder.log)
    killed = killed_rank(log, returncode, torchrun=True) if returncode else None
    was_asked_for = kill_after_step is not None and killed is not None and killed[1] == signal.SIGKILL
    if returncode != 0 and not was_asked_for:
        return judge_ended(folder, ended, torchrun=True), environment
    if len(traces) < nproc or not all(any(line["event"] == "step" for line in lines) for lines in traces.values()):
        summary = f"the script left a trace of its steps on {len(traces)} of {nproc} ranks"
        failure = Failure(summary, cause=NO_TRACE, log=last_lines(log))
        return Outcome("failed", ended["wall_seconds"], failure=failure), environment
    if kill_after_step is not None and not was_asked_for:
        failure = Failure(f"the script ended before step {kill_after_step}, after which it was to be killed")
        return Outcome("failed", ended["wall_seconds"], failure=failure), environment
    return Outcome("ok", ended["wall_seconds"], result={"traces": traces}), environment
