"""Start one phase of a run in fresh worker processes and say how it ended.

Called by the stages through `pilotkit.stages.run`. The worker gets the run directory and the phase name.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pilotkit.launch.command import worker_command
from pilotkit.launch.environment import WorkerEnvironment, worker_environment
from pilotkit.launch.outcome import Outcome, count_oom_kills, judge
from pilotkit.launch.process import run_to_end
from pilotkit.records.run_dir import PhaseDir, RunDir

OnProgress = Callable[[dict[str, Any]], None]


def run_worker(
    run_dir: RunDir,
    *,
    phase: str,
    nproc: int,
    torchrun: bool,
    shares: int,
    usable_cpus: int,
    launch_dir: Path,
    timeout_seconds: float | None,
    on_progress: OnProgress,
) -> tuple[Outcome, WorkerEnvironment]:
    """Run a phase to its end. Each process gets one of `shares` equal shares of the usable cores."""
    folder = run_dir.phase(phase)
    folder.path.mkdir(parents=True, exist_ok=True)
    environment = worker_environment(os.environ, run_dir=run_dir.path, usable_cpus=usable_cpus, nproc=shares)
    follower = _Follower(folder, on_progress)
    kills_before = count_oom_kills()
    started = time.monotonic()
    returncode = run_to_end(
        worker_command(run_dir.path, phase=phase, nproc=nproc, torchrun=torchrun),
        environment=environment.variables,
        folder=launch_dir,
        log=folder.log,
        timeout_seconds=timeout_seconds,
        while_running=follower.read_more,
    )
    wall_seconds = time.monotonic() - started
    oom_kills = count_oom_kills() - kills_before
    outcome = judge(folder, returncode=returncode, wall_seconds=wall_seconds, oom_kills=oom_kills, torchrun=torchrun)
    return outcome, environment


class _Follower:
    """Hands on the lines that rank 0 adds to the phase's progress file."""

    def __init__(self, folder: PhaseDir, on_progress: OnProgress) -> None:
        self._path = folder.progress
        self._on_progress = on_progress
        self._offset = 0
        self._rest = b""

    def read_more(self) -> None:
        try:
            with open(self._path, "rb") as stream:
                stream.seek(self._offset)
                new = stream.read()
        except FileNotFoundError:
            return
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self._on_progress(json.loads(line))
