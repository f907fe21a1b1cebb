"""The points of a sweep: each has a record, whatever became of its run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotkit.records.points import Point, point_config, read_points, write_point, write_point_config
from pilotkit.records.record import Failure, Record
from pilotkit.records.run_dir import RunDir

GONE = 2**22 + 1  # above the kernel's highest process id
SOMEBODY = 1  # always there
OVERRIDES = ["stage=measure", "hardware=cpu", "+model.kwargs.width=8", "hardware.device_count=2"]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    (tmp_path / "run").mkdir()
    return RunDir(tmp_path / "run")


def test_a_finished_run_is_its_own_record(make_record: Callable[..., Record], run_dir: RunDir) -> None:
    run_dir.write_record(make_record(status="does_not_fit"))
    record = Point(0, OVERRIDES, run_dir=str(run_dir.path), driver_pid=GONE).record()
    assert (record.status, record.metrics, record.folder) == ("does_not_fit", {"step_seconds": 0.25}, str(run_dir.path))


@pytest.mark.parametrize(
    ("problem", "driver_pid", "status", "summary"),
    [
        ("crashed without a word", SOMEBODY, "failed", "crashed without a word"),
        (None, GONE, "failed", "its process ended without a word"),
        (None, SOMEBODY, "running", None),
        # Our own points are over when they are read.
        (None, os.getpid(), "failed", "its process ended without a word"),
    ],
    ids=["crashed", "vanished", "going on", "ours"],
)
def test_a_run_whose_record_says_running(
    make_record: Callable[..., Record],
    run_dir: RunDir,
    problem: str | None,
    driver_pid: int,
    status: str,
    summary: str | None,
) -> None:
    run_dir.write_record(make_record(status="running"))
    record = Point(0, run_dir=str(run_dir.path), problem=problem, driver_pid=driver_pid).record()
    assert (record.status, record.problem) == (status, Failure(summary) if summary else None)


@pytest.mark.parametrize(
    ("point", "status", "summary"),
    [
        (Point(3, OVERRIDES, problem="1 problem ...", is_config_problem=True), "refused", "1 problem ..."),
        (Point(3, OVERRIDES, problem="crashed"), "failed", "crashed"),
        (Point(3, OVERRIDES, driver_pid=GONE), "failed", "its process ended without a word"),
        (Point(3, OVERRIDES), "failed", "its process ended without a word"),
        (Point(3, OVERRIDES, driver_pid=SOMEBODY), "running", None),
    ],
    ids=["refused", "crashed", "vanished", "never started", "about to start"],
)
def test_a_point_without_a_run(point: Point, status: str, summary: str | None) -> None:
    record = point.record()
    assert (record.run_id, record.status) == ("point 3", status)
    assert record.problem == (Failure(summary) if summary else None)
    assert record.overrides == OVERRIDES


@pytest.mark.parametrize("content", [None, "{", '{"schema_version": 99}'], ids=["none", "damaged", "newer"])
def test_a_record_that_cannot_be_read(run_dir: RunDir, content: str | None) -> None:
    if content is not None:
        run_dir.record.write_text(content, encoding="utf-8")
    record = Point(0, run_dir=str(run_dir.path), driver_pid=SOMEBODY).record()
    assert record.status == "failed"
    assert record.problem is not None
    assert record.problem.summary.startswith(str(run_dir.path))


def test_points_are_read_in_their_order_and_damage_is_passed_over(tmp_path: Path) -> None:
    for index in (10, 2, 0):
        write_point(tmp_path / str(index), Point(index, [f"a={index}"]))
    for name, content in {"5": "{", "6": "[1]", "7": '{"unknown": 1}', "8": "null"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "point.json").write_text(content, encoding="utf-8")
    (tmp_path / "9").mkdir()
    assert [point.index for point in read_points(tmp_path)] == [0, 2, 10]
    assert read_points(tmp_path / "absent") == []


def test_a_point_comes_back_as_it_was(tmp_path: Path) -> None:
    point = Point(4, OVERRIDES, run_dir="/r", problem="größe", is_config_problem=True, driver_pid=7)
    write_point(tmp_path / "4", point)
    assert read_points(tmp_path) == [point]
    assert json.loads((tmp_path / "4" / "point.json").read_text(encoding="utf-8"))["problem"] == "größe"


def test_the_configuration_of_a_point(tmp_path: Path) -> None:
    assert point_config(tmp_path / "0") is None
    write_point_config(tmp_path / "0", "stage: measure\n")
    path = point_config(tmp_path / "0")
    assert path is not None
    assert path.read_text(encoding="utf-8") == "stage: measure\n"
