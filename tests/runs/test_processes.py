"""Processes behave: a rank that dies is named, Ctrl-C and kill leave nobody behind, two runs do not meet."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotkit.records.search import find_records
from tests.runs.documented import undocumented

PILOT = ("stage=pilot", "pilot.strategies=[ddp]", "pilot.num_warmup_steps=1", "pilot.num_measured_steps=3")
LONG = ("stage=restore", "restore.num_steps=100000")


def _record(folder: Path, stage: str) -> dict[str, Any]:
    (path,) = folder.glob(f"outputs/*/{stage}/*/record.json")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


@pytest.mark.parametrize(
    ("fault", "summary", "cause"),
    [
        ("raise", "rank 1: ValueError: bad row 17", ""),
        ("SIGKILL", "rank 1 was killed by signal 9 (SIGKILL)", "often the machine's out-of-memory killer"),
        ("leave", "rank 1 ended with exit code 3 and no error", "by os._exit, or by native code"),
        ("SIGSEGV", "rank 1 was killed by signal 11 (SIGSEGV)", "a fault in native code"),
    ],
)
def test_the_rank_that_failed_first_is_named(
    pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...], fault: str, summary: str, cause: str
) -> None:
    faults = (f"+model.kwargs.fault={fault}", "+model.kwargs.fault_rank=1")
    result = pilotkit_cli("stage=restore", *mine, *faults)
    record = _record(tmp_path, "restore")
    assert result.returncode == 1
    assert summary in result.stderr
    assert "Traceback" not in result.stderr
    assert (record["status"], record["problem"]["rank"]) == ("failed", 1)
    assert record["problem"]["summary"] == summary
    assert record["problem"]["cause"].startswith(cause)
    if fault == "raise":
        assert 'raise ValueError("bad row 17")' in record["problem"]["traceback"]
    # Everything that led to it lies in the run's own folder.
    folder = next(tmp_path.glob("outputs/*/restore/*"))
    assert "model.factory=mine:build" in (folder / "overrides.txt").read_text(encoding="utf-8").replace("\\", "")
    assert (folder / "run.yaml").is_file()
    assert (folder / "driver.log").is_file()
    assert (folder / "phases/restore_uninterrupted/log.txt").stat().st_size > 0


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "signal 15 (SIGTERM)")],
    ids=["ctrl-c", "terminate"],
)
def test_a_signal_ends_every_process_and_is_recorded(
    start_pilotkit: Callable[..., Any], tmp_path: Path, mine: tuple[str, ...], number: int, code: int, words: str
) -> None:
    run = start_pilotkit(*LONG, *mine, "data.num_workers=1")
    run.wait_for_step("restore_uninterrupted")
    assert len(run.workers()) == 1 + 2 + 2, "torchrun, two ranks, a loader process each"
    run.process.send_signal(number)
    returncode, output = run.end()
    assert returncode == code
    assert output.splitlines()[-1] == f"pilotkit was ended by {words}; what was recorded before is kept."
    assert run.workers() == []
    record = _record(tmp_path, "restore")
    assert (record["status"], record["problem"]["summary"]) == ("cancelled", f"ended by {words}")


def test_workers_do_not_outlive_a_driver_that_was_killed(
    start_pilotkit: Callable[..., Any], tmp_path: Path, mine: tuple[str, ...]
) -> None:
    run = start_pilotkit(*LONG, *mine, "data.num_workers=1")
    run.wait_for_step("restore_uninterrupted")
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 60
    while run.workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert run.workers() == []
    assert _record(tmp_path, "restore")["status"] == "running", "nobody was left to say more"
    [found] = find_records(tmp_path / "outputs", stage="restore").records
    assert found.status == "vanished"


def test_a_rank_that_is_killed_from_outside_ends_the_run_in_seconds(
    start_pilotkit: Callable[..., Any], tmp_path: Path, mine: tuple[str, ...]
) -> None:
    run = start_pilotkit(*LONG, *mine)
    run.wait_for_step("restore_uninterrupted")
    run.rank(1).kill()
    returncode, _ = run.end()  # long before its hundred thousand steps
    assert returncode == 1
    assert _record(tmp_path, "restore")["problem"]["summary"] == "rank 1 was killed by signal 9 (SIGKILL)"


def test_two_pilots_on_one_node_finish_and_ignore_what_a_scheduler_left(
    start_pilotkit: Callable[..., Any], tmp_path: Path, mine: tuple[str, ...]
) -> None:
    foreign = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "SLURM_NTASKS": "9", "SLURM_PROCID": "3", "RANK": "7"}
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 29500))
        taken.listen()
        runs = [start_pilotkit(*PILOT, *mine, f"name=study{number}", env=foreign) for number in (1, 2)]
        ends = [run.end(timeout=120) for run in runs]
    assert [code for code, _ in ends] == [0, 0], ends
    records = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/*/pilot/*/record.json")]
    assert len(records) == 2
    for record in records:
        assert record["status"] == "ok"
        assert undocumented(record["metrics"]) == []
        assert record["metrics"]["world_size"] == 2
        assert set(foreign) <= set(record["details"]["threads"]["removed_variables"])


def test_memory_that_a_peer_point_used_is_not_seen(pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]) -> None:
    """Each point is measured in a process of its own: the order of a sweep changes no peak."""
    for order in ("8,1", "1,8"):
        result = pilotkit_cli("-m", "stage=measure", *mine, f"train.micro_batch_size={order}")
        assert result.returncode == 0, result.stderr
    peaks: dict[int, set[float]] = {}
    for path in tmp_path.glob("outputs/*/measure/*/record.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        size = record["config"]["train"]["micro_batch_size"]
        peaks.setdefault(size, set()).add(record["metrics"]["peak_allocated_bytes"])
    assert {size: len(found) for size, found in peaks.items()} == {1: 1, 8: 1}
    assert max(peaks[1]) < min(peaks[8])


def test_threads_are_chosen_and_recorded(pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]) -> None:
    usable = len(os.sched_getaffinity(0))
    pilotkit_cli("stage=budget", "name=chosen", *mine, env={"OMP_NUM_THREADS": ""})
    pilotkit_cli("stage=budget", "name=given", *mine, env={"OMP_NUM_THREADS": "3"})
    found = {
        path.parents[2].name: json.loads(path.read_text())["details"]["threads"]
        for path in tmp_path.glob("outputs/*/budget/*/record.json")
    }
    assert found["chosen"]["threads_set_by"] == "pilotkit"
    assert found["chosen"]["usable_cpus"] <= usable
    assert found["chosen"]["suggested_num_workers"] <= found["chosen"]["usable_cpus"]
    assert (found["given"]["num_threads"], found["given"]["threads_set_by"]) == (
        3,
        "OMP_NUM_THREADS in the environment",
    )
