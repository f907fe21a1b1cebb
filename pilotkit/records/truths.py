"""What became of each point of a submitted sweep: its record where there is one, else what the scheduler says.

Called by `pilotkit.launch.follow`, which asks the scheduler. Pure: reads files, starts nothing, never waits.

    pending running | ok does_not_fit failed mismatch refused timed_out preempted cancelled node_failed vanished
    not final       | final
"""

from __future__ import annotations

import dataclasses
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from pilotkit.errors import RecordError
from pilotkit.records.owner import Owner
from pilotkit.records.points import Point, read_point
from pilotkit.records.record import Failure, Record
from pilotkit.records.run_dir import RunDir
from pilotkit.records.sweeps import Sweep, SweepPoint, job_log

NOT_FINAL = ("pending", "running")
# These say something about the point itself; every other end says something about the circumstances.
ANSWERS = ("ok", "does_not_fit")
FAULTS = ("failed", "mismatch", "refused", "timed_out")
# A driver that was told to end writes one of these: why it was told, Slurm knows better.
INTERRUPTED = ("running", "cancelled", "preempted")

# A record on a shared file system may be seen a moment after the job is gone.
RECORD_GRACE_SECONDS = 10.0
# Composing and queuing thousands of points takes minutes.
SUBMISSION_SECONDS = 1800.0

ENDS = {
    "CANCELLED": ("cancelled", "cancelled in Slurm"),
    "TIMEOUT": ("timed_out", "Slurm ended it at its time limit"),
    "DEADLINE": ("timed_out", "Slurm ended it at its deadline"),
    "NODE_FAIL": ("node_failed", "its node failed"),
    "BOOT_FAIL": ("node_failed", "its node did not boot"),
    "PREEMPTED": ("preempted", "preempted for another job"),
    "OUT_OF_MEMORY": ("failed", "killed for more host memory than it asked for; raise cluster.mem_gb"),
}
# Not one of Slurm's: the array is known, and the task is in it no more. Without accounting that is all there is of a
# task that was cancelled before it began, and of one whose end is forgotten.
LEFT_ARRAY = "LEFT_ARRAY"
OVER_MEMORY = ENDS["OUT_OF_MEMORY"]
# Where Slurm counts memory without control groups it kills, and its words are in the job's own log only.
_OVER_MEMORY_WORDS = re.compile(r"exceeded (job )?memory limit|oom[-_]kill", re.IGNORECASE)
LOG_TAIL_BYTES = 16 * 1024
_ACTIVE = {
    "PENDING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_HOLD": "pending",
    "SPECIAL_EXIT": "pending",
    "RUNNING": "running",
    "CONFIGURING": "running",
    "COMPLETING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "RESIZING": "running",
}


@dataclass(frozen=True)
class JobView:
    """One job as the scheduler sees it. `exit_code` is `code:signal`; `seconds_since_end` None while it goes on."""

    state: str
    reason: str = ""
    exit_code: str = "0:0"
    nodes: str = ""
    restarts: int = 0
    seconds_since_end: float | None = None

    @property
    def is_stuck(self) -> bool:
        """It waits for something that only a person will change."""
        words = self.reason.lower()
        return self.state in ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT") and any(
            # The last three are limits of one job, which no other job's end makes room under.
            word in words
            for word in (
                *("held", "dependencyneversatisfied", "badconstraints", "invalid"),
                *("partitiontimelimit", "partitionnodelimit", "perjob"),
            )
        )


@dataclass(frozen=True)
class Truth:
    """The status of a point, why in one sentence, and what it was read from."""

    point: SweepPoint
    status: str
    cause: str = ""
    record: Record | None = None
    job_id: str | None = None
    nodes: str = ""
    attempts: int = 0
    is_stuck: bool = False

    @property
    def is_final(self) -> bool:
        return self.status not in NOT_FINAL

    def row(self) -> Record:
        """A record with this status, for tables: the point's own, or one that holds nothing but the truth."""
        problem = Failure(self.cause) if self.cause else None
        if self.record is None:
            name = f"point {self.point.index}"
            return Record(name, "", self.status, "", problem=problem, overrides=self.point.overrides)
        kept = self.record.problem if self.record.status == self.status else problem
        return dataclasses.replace(self.record, status=self.status, problem=kept)


def truth_of(sweep_dir: Path, sweep: Sweep, planned: SweepPoint, *, view: JobView | None, complaint: str) -> Truth:
    """Judge one point. `view` None: the scheduler knows no such job, or, with a `complaint`, did not answer."""
    if planned.problem is not None:
        return Truth(planned, "refused", planned.problem)
    if planned.reused_run_dir is not None:
        record = _read(planned.reused_run_dir)
        if record is None:
            return Truth(planned, "vanished", f"its earlier record is gone: {planned.reused_run_dir}")
        return Truth(planned, record.status, _cause(record), record)
    point = read_point(sweep_dir / str(planned.index)) or Point(planned.index)
    record = _read(point.run_dir) if point.run_dir else None
    truth = Truth(
        planned,
        "pending",
        record=record,
        job_id=planned.job_id,
        nodes=view.nodes if view else "",
        attempts=len(point.attempts),
    )
    if record is not None and record.status not in INTERRUPTED:
        return dataclasses.replace(truth, status=record.status, cause=_cause(record))
    if view is not None and view.state in _ACTIVE:
        words = view.reason if view.reason not in ("", "None") else ""
        return dataclasses.replace(truth, status=_ACTIVE[view.state], cause=words, is_stuck=view.is_stuck)
    status, cause = _without_record(sweep_dir, sweep, planned, point, record, view=view, complaint=complaint)
    return dataclasses.replace(truth, status=status, cause=cause)


def _was_over_memory(log: Path | None) -> bool:
    """Whether Slurm's last words in a job's log are that it took more memory than it had asked for."""
    if log is None:
        return False
    try:
        with open(log, "rb") as stream:
            stream.seek(max(stream.seek(0, 2) - LOG_TAIL_BYTES, 0))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return False
    # The point prints into the same log: only what Slurm itself says counts.
    return any(line.startswith("slurmstepd") and _OVER_MEMORY_WORDS.search(line) for line in lines)


def _without_record(
    sweep_dir: Path,
    sweep: Sweep,
    planned: SweepPoint,
    point: Point,
    record: Record | None,
    *,
    view: JobView | None,
    complaint: str,
) -> tuple[str, str]:
    """The point has no last word of its own: the scheduler's, or that nobody knows."""
    if view is not None and view.state == LEFT_ARRAY:
        log = job_log(sweep_dir, planned.job_id)
        if not (complaint or point.attempts or (log and log.exists())):
            return ENDS["CANCELLED"]
        view = None
    if view is not None:
        just_ended = view.seconds_since_end is not None and view.seconds_since_end < RECORD_GRACE_SECONDS
        if just_ended and view.state == "COMPLETED" and point.problem is None:
            return "running", "the job has ended, its record is not to be seen yet"
        if view.state in ENDS:
            return ENDS[view.state]
        if point.problem is not None:
            return "failed", point.problem
        if record is not None and record.status != "running" and view.state != "FAILED":
            return record.status, _cause(record)
        if _was_over_memory(job_log(sweep_dir, planned.job_id)):
            return OVER_MEMORY
        return "failed", exit_words(view)
    if complaint:
        return ("running" if point.attempts else "pending"), f"Slurm does not answer: {complaint}"
    if point.problem is not None:
        return "failed", point.problem
    if record is not None and record.status != "running":
        return record.status, _cause(record)
    if planned.job_id is None and _is_being_submitted(sweep):
        return "pending", "it is being submitted"
    if planned.job_id is None:
        words = "refused by Slurm" if sweep.state == "refused" else "its submission was cut short"
        return "vanished", f"no job was queued for it: {words}"
    started = f"started on {point.attempts[-1].get('node', 'a node')}" if point.attempts else "never seen to start"
    return "vanished", f"Slurm no longer knows job {planned.job_id}; {started}, and it left no record"


def _is_being_submitted(sweep: Sweep) -> bool:
    """Whether the process that submits is still at it; from another machine, for as long as that can take."""
    owner = Owner.from_plain(sweep.submitter)
    if sweep.state != "submitting" or owner is None:
        return False
    if owner.is_of_this_machine:
        return owner.is_alive_here
    return time.time() - owner.started < SUBMISSION_SECONDS


def exit_words(view: JobView) -> str:
    """`the job ended with exit code 3 and left no record`; a signal by its name."""
    code, _, number = view.exit_code.partition(":")
    if number not in ("", "0") or int(code or 0) > 128:
        killed = int(number) if number not in ("", "0") else int(code) - 128
        try:
            name = f"signal {killed} ({signal.Signals(killed).name})"
        except ValueError:
            name = f"signal {killed}"
        return f"the job was killed by {name} and left no record"
    return f"the job ended with exit code {code} and left no record"


def _read(run_dir: str) -> Record | None:
    try:
        return RunDir(Path(run_dir)).read_record()
    except RecordError:
        return None


def _cause(record: Record) -> str:
    return record.problem.summary if record.problem else ""
