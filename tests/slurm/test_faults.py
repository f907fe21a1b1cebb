"""What happens to jobs that were not asked to end: each fault on the real cluster, and the truth it must give.

Each test tells what it did, what came of it and after how many seconds (`told`): `benchmarks/slurm_faults.py` makes the
table of docs/slurm.md from that.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

SLEEP = ("+model.kwargs.how=sleep",)


def running(lab, *arguments: str) -> Path:
    """A sweep of one point that is asleep in its worker; a second attempt of it does not sleep."""
    marker = lab.folder / "asleep"
    sweep = lab.submit(*SLEEP, f"+model.kwargs.once={marker}", *arguments)
    end = time.monotonic() + 60
    while not marker.exists():
        assert time.monotonic() < end, lab.truths(sweep)
        time.sleep(0.2)
    return sweep


def test_kill_9_of_the_batch_script(lab, told) -> None:
    sweep = running(lab)
    started = time.monotonic()
    os.kill(lab.pid_of_job(sweep, 0), signal.SIGKILL)
    truths = lab.until_final(sweep)
    told("`kill -9` of the batch script", truths, started)
    assert truths == [("failed", "the job was killed by signal 9 (SIGKILL) and left no record")]


def test_scancel(lab, told) -> None:
    sweep = running(lab)
    started = time.monotonic()
    lab.cluster.run("scancel", lab.array_id(sweep))
    truths = lab.until_final(sweep)
    told("`scancel`, running", truths, started)
    assert truths == [("cancelled", "cancelled in Slurm")]


def test_time_limit(lab, told) -> None:
    """What is measured is over with its time, wherever it is by then; `test_attempts` has a pilot at its limit."""
    sweep = lab.submit(*SLEEP, "cluster.partition=debug", "cluster.time_minutes=1", "cluster.signal_delay_seconds=10")
    truths = lab.until_final(sweep, seconds=150)
    told("time limit of a stage that measures (Slurm looks every 30 s)", truths, None)
    assert [status for status, _ in truths] == ["timed_out"]
    record = next(lab.folder.glob("outputs/*/measure/*/record.json"))
    assert json.loads(record.read_text())["status"] in ("timed_out", "cancelled")


def test_preempted_and_run_again(lab, told) -> None:
    """A job of a higher partition takes the node: the point goes back to the queue and starts afresh."""
    sweep = running(lab, "cluster.partition=low", "cluster.constraint=h100", "cluster.time_minutes=30")
    started = time.monotonic()
    # Everything of the node, so that there is no room beside it.
    urgent = lab.cluster.run(
        "sbatch",
        "--parsable",
        "-p",
        "7d",
        "-C",
        "h100",
        "--exclusive",
        "-t",
        "5",
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 2",
    )
    assert urgent.returncode == 0, urgent.stderr
    truths = lab.until_final(sweep, seconds=120)
    told("preempted for another job, to the end of attempt 2", truths, started)
    assert truths == [("ok", "")]
    point = json.loads((sweep / "0" / "point.json").read_text())
    assert [attempt["number"] for attempt in point["attempts"]] == [1, 2]
    first, second = (Path(attempt["run_dir"]) for attempt in point["attempts"])
    assert first != second
    before = json.loads((first / "record.json").read_text())
    assert before["status"] in ("preempted", "cancelled")
    assert json.loads((second / "record.json").read_text())["provenance"]["slurm"]["number"] == 2


def test_requeue(lab, told) -> None:
    sweep = running(lab)
    job_id = lab.manifest(sweep)["points"][0]["job_id"]
    started = time.monotonic()
    assert lab.cluster.run("scontrol", "requeue", job_id).returncode == 0
    truths = lab.until_final(sweep, seconds=90)
    told("`scontrol requeue`, to the end of attempt 2", truths, started)
    assert truths == [("ok", "")]
    assert len(json.loads((sweep / "0" / "point.json").read_text())["attempts"]) == 2


def test_controller_restarted_in_mid_sweep(lab, told) -> None:
    sweep = lab.submit("stage=lock", "model=gpt_tiny", "train.micro_batch_size=1,2,3,4", "cluster.array_parallelism=1")
    lab.until(sweep, lambda found: "running" in found or "ok" in found)
    lab.cluster.restart_controller()
    truths = lab.until_final(sweep, seconds=90)
    told("`slurmctld` restarted in mid-sweep", truths, None)
    assert [status for status, _ in truths] == ["ok"] * 4


def test_node_lost(lab, told) -> None:
    """The node's daemon is killed: Slurm needs its timeout (12 s here) to notice, then says so."""
    sweep = running(lab, "cluster.constraint=a100", "+cluster.additional_parameters.no-requeue=true")
    started = time.monotonic()
    lab.cluster.kill_node("a100-1")
    try:
        truths = lab.until_final(sweep)
        told("`slurmd` killed, job not requeued (`SlurmdTimeout=12`)", truths, started)
        assert truths == [("node_failed", "its node failed")]
    finally:
        os.kill(lab.pid_of_job(sweep, 0), signal.SIGKILL)
        lab.cluster.start_node("a100-1")
        lab.cluster.run("scontrol", "update", "nodename=a100-1", "state=resume")


def test_job_that_slurm_has_forgotten(lab, told) -> None:
    """Without accounting a job is forgotten some minutes after its end: no record then means vanished."""
    sweep = running(lab)
    started = time.monotonic()
    plain = lab.manifest(sweep)
    for entry in (*plain["arrays"], *plain["points"]):
        entry["job_id"] = "99999"
    os.kill(lab.pid_of_job(sweep, 0), signal.SIGKILL)
    (sweep / "sweep.json").write_text(json.dumps(plain))
    truths = lab.until_final(sweep)
    told("forgotten by Slurm, no accounting, no record", truths, started)
    assert truths[0][0] == "vanished"
    assert "Slurm no longer knows job 99999" in truths[0][1]
