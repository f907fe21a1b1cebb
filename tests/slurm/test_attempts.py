"""A pilot that is told to end saves, goes back to the queue, and goes on where it was: on the real cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pilotkit.records.checkpoint_check import check_store

PILOT = (
    *("stage=pilot", "pilot.strategies=[ddp]", "pilot.num_warmup_steps=2", "pilot.max_warmup_steps=2"),
    *("pilot.num_measured_steps=60", "hardware.device_count=2"),
)


def until(done: Callable[[], Any], *, seconds: float = 90) -> Any:
    """What `done` returns once it is true."""
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def steps_of(folder: Path) -> list[int]:
    """The optimizer steps that an attempt took, in order."""
    try:
        lines = (folder / "progress.jsonl").read_text().splitlines()
    except OSError:
        return []
    return [json.loads(line)["step"] for line in lines]


def run_dir_of(sweep: Path, index: int) -> Path | None:
    point = read(sweep / str(index) / "point.json") or {}
    return Path(point["run_dir"]) if point.get("run_dir") else None


def is_in_ddp(sweep: Path, index: int) -> bool:
    """The point has taken a few steps of its second phase."""
    run_dir = run_dir_of(sweep, index)
    return run_dir is not None and len(steps_of(run_dir / "phases" / "pilot_ddp")) > 3


def saved_and_preempted(sweep: Path, index: int) -> dict[str, Any] | None:
    run_dir = run_dir_of(sweep, index)
    assert run_dir is not None
    for path in (run_dir / "record-1.json", run_dir / "record.json"):
        record: dict[str, Any] | None = read(path)
        if record and record["status"] == "preempted":
            return record
    return None


def goes_on_without_a_gap(run_dir: Path) -> None:
    """Attempt 2 is in the folder of attempt 1, begins one step after its last, and repeats nothing that was done."""
    phase = run_dir / "phases" / "pilot_ddp"
    first, second = steps_of(phase / "attempt-1"), steps_of(phase)
    assert first == list(range(1, first[-1] + 1))
    assert second == list(range(first[-1] + 1, second[-1] + 1))
    record = read(run_dir / "record.json")
    assert [found["name"] for found in record["phases"]] == ["pilot_ddp"], "what was done before is not done again"
    ddp = record["details"]["strategies"]["ddp"]
    assert [(found["number"], found["first_step"]) for found in ddp["attempts"]] == [(1, 1), (2, first[-1] + 1)]
    assert sum(found["num_counted"] for found in ddp["attempts"]) == len(ddp["steps"]) == 60
    assert record["metrics"]["ddp_num_measured_steps"] == 60
    assert record["provenance"]["slurm"]["number"] == 2
    log = (phase / "attempt-1" / "log.txt").read_text()
    assert "Traceback" not in log
    assert (phase / "log.txt").exists()
    assert not (run_dir / "checkpoints" / "pilot_ddp").exists(), "they have served"


def test_each_way_to_be_told(lab, told) -> None:
    """SIGUSR2 where the time limit is near, and Slurm's own requeue, which sends SIGTERM, each at one of two points.

    The limit of the first is near from its start: it is told so long before that any signal is taken for that.
    """
    slow = lab.folder / "slow"
    slow.touch()
    sweep = lab.submit(
        *(*PILOT, f"+model.kwargs.slow={slow}", "+model.kwargs.nap=0.5"),
        *("cluster.time_minutes=10,60", "cluster.signal_delay_seconds=510"),
    )
    jobs = [point["job_id"] for point in lab.manifest(sweep)["points"]]
    # A job without srun has no step: only its batch script can be told, which is pilotkit's driver. Each is told as
    # soon as it steps: on a busy machine the other may begin when this one would have ended.
    for index, command in enumerate((["scancel", "--batch", "--signal=USR2"], ["scontrol", "requeue"])):
        until(lambda index=index: is_in_ddp(sweep, index))
        started = time.monotonic()
        lab.cluster.run(*command, jobs[index])
    for index, words in enumerate(("its time limit of 10 minutes is near", "sent the job back to the queue")):
        record = until(lambda index=index: saved_and_preempted(sweep, index))
        assert words in record["problem"]["summary"]
        assert "; saved after step " in record["problem"]["summary"]
        run_dir = run_dir_of(sweep, index)
        offered = check_store(run_dir / "checkpoints" / "pilot_ddp").offered
        assert offered is not None
        assert offered.step >= 3
        assert f"saved after step {offered.step}" in record["problem"]["summary"]
    event = "SIGUSR2 near the time limit of a pilot, `scontrol requeue` of another: until both have saved"
    told(event, [("preempted", "")] * 2, started)
    slow.unlink()
    assert lab.until_final(sweep, seconds=150) == [("ok", "")] * 2
    for index in range(2):
        point = read(sweep / str(index) / "point.json")
        run_dir = run_dir_of(sweep, index)
        assert [attempt["run_dir"] for attempt in point["attempts"]] == [str(run_dir)] * 2
        goes_on_without_a_gap(run_dir)
