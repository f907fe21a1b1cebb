"""What runs inside a Slurm job: one point, and the signals that Slurm sends to it.

    in the batch script, on the first node:  python -m submitit.core._submit -> PointJob() -> entry(folder of the point)

Slurm's signals become exceptions of the main thread, so that every process of the point is ended and its record says
why; a worker that can save is given the time for it. A point that was preempted goes back to the queue, and so does one
that saved because its time limit was near; what it does there is the entry's affair.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pilotkit.errors import Interrupted
from pilotkit.launch.slurm_view import requeue, view_own_job

# The clock of Slurm's limits is coarse: a signal may come this much earlier than it was asked for.
CLOCK_SECONDS = 90.0
# Slurm is still writing down that we were preempted when we ask to be queued again.
REQUEUE_TRIES, REQUEUE_PAUSE_SECONDS = 5, 1.0


@dataclass(frozen=True)
class PointJob:
    """One point as submitit calls it in the job. `entry` is `module:function`; it gets the folder of the point."""

    entry: str
    folder: str
    time_minutes: int
    signal_delay_seconds: int
    max_requeues: int

    def __call__(self) -> None:
        module, _, function = self.entry.partition(":")
        run = getattr(importlib.import_module(module), function)
        try:
            with self._signals(started=time.monotonic()):
                run(Path(self.folder))
        except Interrupted as error:
            print(f"pilotkit: {error}", flush=True)  # noqa: T201 - the job's own log
            if error.status == "preempted":
                self._back_to_the_queue()

    @contextlib.contextmanager
    def _signals(self, *, started: float) -> Iterator[None]:
        """submitit has bound these to itself; a point has its own meaning for them."""

        def told_to_save(_number: int, _frame: FrameType | None) -> None:
            _only_once()
            left = self.time_minutes * 60 - (time.monotonic() - started)
            raise self.meaning_of_usr2(seconds_left=left)

        def told_to_end(_number: int, _frame: FrameType | None) -> None:
            _only_once()
            raise self.meaning_of_term()

        before = {
            signal.SIGUSR2: signal.signal(signal.SIGUSR2, told_to_save),
            signal.SIGTERM: signal.signal(signal.SIGTERM, told_to_end),
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def meaning_of_usr2(self, *, seconds_left: float) -> Interrupted:
        """Slurm sends it before the time limit and, where the partition allows that, before a preemption."""
        is_near = seconds_left <= self.signal_delay_seconds + CLOCK_SECONDS
        own = view_own_job(job_id()) if is_near else None
        if is_near and not (own and own.is_preempted):
            words = f"its time limit of {self.time_minutes} minutes is near"
            # It is killed at the limit: a save that takes longer is lost in any case.
            patience = max(min(float(self.signal_delay_seconds), seconds_left), 1.0)
            return Interrupted("timed_out", words, patience_seconds=patience, may_continue=self._may_go_back)
        words = "Slurm needs the node for another job, or somebody sent SIGUSR2"
        return Interrupted("preempted", words, patience_seconds=float(self.signal_delay_seconds))

    def meaning_of_term(self) -> Interrupted:
        """It comes with the end of a job, with its way back to the queue, and alone when somebody sends it."""
        own = view_own_job(job_id())
        patience = float(self.signal_delay_seconds)
        if own is not None and own.restarts > _own_restarts():
            return Interrupted("preempted", "Slurm sent the job back to the queue", patience_seconds=patience)
        if own is not None and own.state == "RUNNING":
            return Interrupted("preempted", "somebody sent SIGTERM", patience_seconds=patience)
        # Cancelled: nobody will go on from what would be saved.
        return Interrupted("cancelled", "Slurm ended the job (SIGTERM)")

    @property
    def _may_go_back(self) -> bool:
        return _own_restarts() < self.max_requeues

    def _back_to_the_queue(self) -> None:
        own = view_own_job(job_id())
        if own is not None and own.restarts > _own_restarts():
            return  # Slurm has done it already
        if not self._may_go_back:
            times = _own_restarts() + 1
            print(f"pilotkit: preempted {times} times, not queued again", flush=True)  # noqa: T201
            return
        for _ in range(REQUEUE_TRIES):
            complaint = requeue(job_id())
            if not complaint:
                return
            time.sleep(REQUEUE_PAUSE_SECONDS)
        print(f"pilotkit: could not be queued again: {complaint}", flush=True)  # noqa: T201


def job_id() -> str:
    """Our own id as Slurm's commands take it: `123_4` in an array."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


def _own_restarts() -> int:
    """How often this job was started before."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def _only_once() -> None:
    """Slurm sends several signals on the way to SIGKILL: the first one counts, the others must not cut it short."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
