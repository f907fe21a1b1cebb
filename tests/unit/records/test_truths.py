"""The truth of a point from every pair of what it left and what Slurm says."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from pilotkit.errors import RecordError
from pilotkit.records.owner import Owner
from pilotkit.records.points import Point, write_point
from pilotkit.records.record import Failure, Record
from pilotkit.records.run_dir import RunDir
from pilotkit.records.sweeps import Sweep, SweepArray, SweepPoint, claim, read_sweep, write_sweep
from pilotkit.records.truths import LEFT_ARRAY, JobView, Truth, truth_of

GONE = None
KILLED = "the job was killed by signal 9 (SIGKILL) and left no record"
OVER_MEMORY = "killed for more host memory than it asked for; raise cluster.mem_gb"
NOT_YET = "the job has ended, its record is not to be seen yet"


def sweep(state: str = "submitted") -> Sweep:
    return Sweep("s", "2026-01-01T00:00:00.000+00:00", state, "measure", "me", "login", "/launch")


@pytest.fixture
def judge(tmp_path: Path):
    """`judge(status, view)`: a point whose record has this status (None: no record; "": it never started)."""

    def run(status: str | None, view: JobView | None, *, complaint: str = "", problem: str | None = None) -> Truth:
        folder = tmp_path / "0"
        point = Point(0, problem=problem)
        if status != "":
            point.attempts.append({"number": 1, "node": "h100-1"})
        if status:
            run_dir = RunDir.create(tmp_path / "out", name="n", stage="measure")
            words = Failure("its own words") if status not in ("ok", "running") else None
            run_dir.write_record(Record(run_dir.run_id, "measure", status, "2026", problem=words))
            point.run_dir = str(run_dir.path)
        write_point(folder, point)
        return truth_of(tmp_path, sweep(), SweepPoint(0, [], job_id="7_0"), view=view, complaint=complaint)

    return run


FORGOTTEN = "Slurm no longer knows job 7_0; started on h100-1, and it left no record"
ENDED = JobView("COMPLETED", seconds_since_end=60.0)


@pytest.mark.parametrize(
    ("status", "view", "expected", "cause"),
    [
        ("ok", JobView("COMPLETED"), "ok", ""),
        ("ok", JobView(LEFT_ARRAY), "ok", ""),
        ("", JobView(LEFT_ARRAY), "cancelled", "cancelled in Slurm"),
        (None, JobView(LEFT_ARRAY), "vanished", FORGOTTEN),
        ("ok", JobView("CANCELLED"), "ok", ""),  # a scancel in the gap between the record and the end of the job
        ("ok", GONE, "ok", ""),
        ("does_not_fit", JobView("RUNNING"), "does_not_fit", "its own words"),
        ("failed", JobView("COMPLETED"), "failed", "its own words"),
        ("", JobView("PENDING", "Resources"), "pending", "Resources"),
        ("", JobView("CANCELLED"), "cancelled", "cancelled in Slurm"),
        ("running", JobView("RUNNING"), "running", ""),
        ("running", JobView("NODE_FAIL"), "node_failed", "its node failed"),
        ("running", JobView("TIMEOUT"), "timed_out", "Slurm ended it at its time limit"),
        ("running", JobView("FAILED", exit_code="0:9"), "failed", KILLED),
        (None, JobView("FAILED", exit_code="3:0"), "failed", "the job ended with exit code 3 and left no record"),
        ("running", JobView("OUT_OF_MEMORY"), "failed", OVER_MEMORY),
        ("cancelled", JobView("TIMEOUT"), "timed_out", "Slurm ended it at its time limit"),
        ("cancelled", JobView("PREEMPTED"), "preempted", "preempted for another job"),
        ("cancelled", JobView("COMPLETED", seconds_since_end=60.0), "cancelled", "its own words"),
        ("preempted", JobView("PENDING", "BeginTime"), "pending", "BeginTime"),
        ("preempted", GONE, "preempted", "its own words"),
        (None, ENDED, "failed", "the job ended with exit code 0 and left no record"),
        ("running", JobView("COMPLETED", seconds_since_end=1.0), "running", NOT_YET),
        ("running", GONE, "vanished", "Slurm no longer knows job 7_0; started on h100-1, and it left no record"),
        ("", GONE, "vanished", "Slurm no longer knows job 7_0; never seen to start, and it left no record"),
    ],
)  # fmt: skip
def test_truth(judge, status: str | None, view: JobView | None, expected: str, cause: str) -> None:
    found = judge(status, view)
    assert (found.status, found.cause) == (expected, cause)
    assert found.row().status == expected


def test_silence_is_never_an_end(judge) -> None:
    assert judge("running", GONE, complaint="no route").status == "running"
    assert judge("", GONE, complaint="no route").status == "pending"
    assert judge("ok", GONE, complaint="no route").status == "ok"
    assert judge("", JobView(LEFT_ARRAY), complaint="no route").status == "pending"


def test_a_point_that_could_not_write_a_record_says_why(judge) -> None:
    found = judge(None, JobView("FAILED", exit_code="1:0"), problem="output_dir=/full cannot be written")
    assert (found.status, found.cause) == ("failed", "output_dir=/full cannot be written")


@pytest.mark.parametrize(
    "reason",
    [
        *("JobHeldUser", "launch_failed_requeued_held", "DependencyNeverSatisfied"),
        *("PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "AssocMaxNodePerJobLimit"),
    ],
)
def test_held_jobs_are_not_waited_for(reason: str) -> None:
    assert JobView("PENDING", reason).is_stuck
    assert not any(JobView("PENDING", words).is_stuck for words in ("Resources", "QOSMaxJobsPerUserLimit"))


def test_manifest_comes_back(tmp_path: Path) -> None:
    claim(tmp_path)
    written = sweep()
    written.arrays.append(SweepArray("gres=gpu:h100:1", "pilotkit-s-0", 2, {"time": 5}, job_id="7"))
    written.points.append(SweepPoint(0, ["a=1"], "d", 0, "7_0"))
    write_sweep(tmp_path, written)
    assert read_sweep(tmp_path) == written
    with pytest.raises(RecordError, match="holds another sweep already"):
        claim(tmp_path)


def test_a_manifest_of_another_version_is_named(tmp_path: Path) -> None:
    write_sweep(tmp_path, sweep())
    plain = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps({**plain, "schema_version": 9}))
    with pytest.raises(RecordError, match="version 9 is not known"):
        read_sweep(tmp_path)


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("slurmstepd-n1: error: StepId=7_0.batch exceeded memory limit (298819584 > 209715200), being killed", True),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.", True),
        ("my own words: exceeded memory limit", False),
        ("slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED ***", False),
    ],
)
def test_slurms_own_words_in_the_log(tmp_path: Path, line: str, is_told: bool) -> None:
    planned = SweepPoint(0, [], array=0, job_id="7_0")
    log = tmp_path / ".submitit" / "7_0" / "7_0_0_log.out"
    log.parent.mkdir(parents=True)
    log.write_text(f"{'x' * 20000}\n{line}\n")
    truth = truth_of(tmp_path, sweep(), planned, view=JobView("FAILED", exit_code="0:9"), complaint="")
    assert truth.status == "failed"
    assert truth.cause == (OVER_MEMORY if is_told else KILLED)


def test_a_point_of_a_submission_that_goes_on_is_pending(tmp_path: Path) -> None:
    """It has no job yet: only a submitter that is gone leaves it without one."""
    here = Owner.of_this_process()
    gone = dataclasses.replace(here, started=here.started - 1000)  # the id belongs to another process now
    cut_short = ("vanished", "no job was queued for it: its submission was cut short")
    being = ("pending", "it is being submitted")
    for owner, expected in (
        (here, being),
        (gone, cut_short),
        (dataclasses.replace(here, host="another-login", started=time.time() - 60), being),
        (dataclasses.replace(here, host="another-login", started=time.time() - 86_400), cut_short),
    ):
        going_on = dataclasses.replace(sweep("submitting"), submitter=dataclasses.asdict(owner))
        truth = truth_of(tmp_path, going_on, SweepPoint(0, []), view=None, complaint="")
        assert (truth.status, truth.cause) == expected
