"""Start one phase of a run in fresh worker processes and say how it ended.

Called by the stages through `pilotkit.stages.run`. The worker gets the run directory and the phase name.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from pilotkit.errors import Interrupted
from pilotkit.launch.command import script_command, script_program, worker_command, worker_program
from pilotkit.launch.environment import WorkerEnvironment, worker_environment
from pilotkit.launch.nodes import Nodes
from pilotkit.launch.outcome import Outcome, count_oom_kills, judge, last_lines, read_tail
from pilotkit.launch.process import run_to_end
from pilotkit.records.record import Failure
from pilotkit.records.run_dir import PhaseDir, RunDir
from pilotkit.variables import METER_FILE_VARIABLE

# How long nodes wait for each other where the phase has no limit of its own.
MEETING_SECONDS = 600.0
NO_METER = (
    "say pilot.tokens_per_step=... to have its optimizer watched, or put its steps under `pilotkit.meter.StepMeter` "
    "(`with meter.step(): ...`, then `meter.close()`), or give its trainer one of `pilotkit.meter.callbacks`"
)
NO_END = (
    "its optimizer was watched, and its process ended before that was written: by os._exit, or as another program "
    "(os.exec); end by sys.exit or at the end of the file"
)

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
    can_save: bool = False,
    nodes: Nodes | None = None,
) -> tuple[Outcome, WorkerEnvironment]:
    """Run a phase to its end, on all `nodes` where there are several.

    Each process gets one of `shares` equal shares of the usable cores.
    A phase that `can_save` is asked to when the run is interrupted; its outcome then carries the interruption.
    """
    folder = run_dir.phase(phase)
    environment = worker_environment(os.environ, run_dir=run_dir.path, usable_cpus=usable_cpus, nproc=shares)
    follower = _Follower(folder, on_progress)
    variables = environment.variables
    if nodes is None:
        command = worker_command(run_dir.path, phase=phase, nproc=nproc, torchrun=torchrun)
    else:
        program = worker_program(run_dir.path, phase=phase)
        command = _on_nodes(nodes, program, run_dir=run_dir, phase=phase, nproc=nproc, timeout_seconds=timeout_seconds)
        variables = nodes.variables(variables)
    ended = run_command(
        command,
        folder=folder,
        variables=variables,
        launch_dir=launch_dir,
        timeout_seconds=timeout_seconds,
        while_running=follower.read_more,
        ask_to_stop=folder.stop.touch if can_save else None,
    )
    return judge_ended(folder, ended, torchrun=torchrun), environment


def _on_nodes(
    nodes: Nodes, program: Sequence[str], *, run_dir: RunDir, phase: str, nproc: int, timeout_seconds: float | None
) -> list[str]:
    timeout = timeout_seconds or MEETING_SECONDS
    return nodes.command(run_dir.path, phase=phase, nproc=nproc, timeout_seconds=timeout, program=program)


def judge_ended(folder: PhaseDir, ended: Ended, *, torchrun: bool) -> Outcome:
    """How it ended; a worker that saved and ended says so itself, whoever told it."""
    interruption = ended["interruption"]
    outcome = judge(
        folder,
        returncode=ended["returncode"],
        wall_seconds=ended["wall_seconds"],
        oom_kills=ended["oom_kills"],
        torchrun=torchrun,
    )
    stopped_at = outcome.result.get("stopped_at")
    if stopped_at is not None:
        if interruption is None:
            words = "somebody told the worker to save and end"
            interruption = Interrupted("preempted", words, may_continue=True)
        interruption.has_saved(stopped_at)
        return Outcome("preempted", outcome.wall_seconds, interruption=interruption)
    return dataclasses.replace(outcome, interruption=interruption)


def run_script(
    run_dir: RunDir,
    *,
    phase: str,
    script: Path,
    args: Sequence[str],
    tokens_per_step: int | None,
    nproc: int,
    shares: int,
    usable_cpus: int,
    launch_dir: Path,
    timeout_seconds: float | None,
    nodes: Nodes | None = None,
) -> tuple[Outcome, WorkerEnvironment]:
    """Run a user's own script under torchrun, on all `nodes` where there are several.

    The result is `{"meters": [...]}`, what StepMeter left on each rank whose node shares the run directory.
    """
    folder = run_dir.phase(phase)
    environment = worker_environment(os.environ, run_dir=run_dir.path, usable_cpus=usable_cpus, nproc=shares)
    variables = environment.variables
    if nodes is None:
        command = script_command(script, args=args, nproc=nproc, tokens_per_step=tokens_per_step)
    else:
        program = script_program(script, args=args, tokens_per_step=tokens_per_step)
        command = _on_nodes(nodes, program, run_dir=run_dir, phase=phase, nproc=nproc, timeout_seconds=timeout_seconds)
        variables = nodes.variables(variables)
    ended = run_command(
        command,
        folder=folder,
        variables={**variables, METER_FILE_VARIABLE: os.fspath(folder.meter)},
        launch_dir=launch_dir,
        timeout_seconds=timeout_seconds,
        while_running=lambda: None,
    )
    if ended["returncode"] != 0:
        return judge_ended(folder, ended, torchrun=True), environment
    meters = folder.read_meters()
    # A script may measure on rank 0 alone, which is on the first node.
    if meters or (nodes is not None and nodes.rank > 0):
        return Outcome("ok", ended["wall_seconds"], result={"meters": meters}), environment
    failure = Failure(
        "the script ended well and left no measurement",
        cause=NO_METER if tokens_per_step is None else NO_END,
        log=last_lines(read_tail(folder.log)),
    )
    return Outcome("failed", ended["wall_seconds"], failure=failure), environment


class Ended(TypedDict):
    """How one start ended, before its folder is looked at."""

    returncode: int | None
    wall_seconds: float
    oom_kills: int
    interruption: Interrupted | None


def run_command(
    command: Sequence[str],
    *,
    folder: PhaseDir,
    variables: Mapping[str, str],
    launch_dir: Path,
    timeout_seconds: float | None,
    while_running: Callable[[], None],
    ask_to_stop: Callable[[], None] | None = None,
) -> Ended:
    """Run one start to its end, its output in the phase's log. `returncode` is None when the time was up."""
    folder.path.mkdir(parents=True, exist_ok=True)
    kills_before = count_oom_kills()
    started = time.monotonic()
    returncode, interruption = run_to_end(
        command,
        environment=variables,
        folder=launch_dir,
        log=folder.log,
        timeout_seconds=timeout_seconds,
        while_running=while_running,
        ask_to_stop=ask_to_stop,
    )
    return {
        "returncode": returncode,
        "wall_seconds": time.monotonic() - started,
        "oom_kills": count_oom_kills() - kills_before,
        "interruption": interruption,
    }


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
