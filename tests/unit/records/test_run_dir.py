"""A run directory belongs to one run; a folder that cannot be written is one clear message."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pilotkit.errors import OutputError, RecordError
from pilotkit.records import run_dir
from pilotkit.records.record import Record
from pilotkit.records.run_dir import RESERVE_BYTES, PhaseDir, RunDir


def test_run_id_sorts_by_time_and_is_unique() -> None:
    first = run_dir.new_run_id()
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", first)
    assert run_dir.new_run_id() != first


def test_create_makes_the_folder_of_the_layout(odd_tmp_path: Path) -> None:
    run = RunDir.create(odd_tmp_path / "outputs", name="study", stage="measure")
    assert run.path.parent == odd_tmp_path / "outputs" / "study" / "measure"
    assert run.path.is_dir()
    assert run.run_id == run.path.name


def test_two_hundred_starts_at_once_get_a_folder_each(tmp_path: Path) -> None:
    gate = threading.Barrier(200)

    def start(_number: int) -> Path:
        gate.wait()
        return RunDir.create(tmp_path, name="study", stage="measure").path

    with ThreadPoolExecutor(200) as pool:
        paths = set(pool.map(start, range(200)))
    assert len(paths) == 200
    assert paths == set((tmp_path / "study" / "measure").iterdir())


def test_a_taken_run_id_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["same", "same", "same", "other"])
    monkeypatch.setattr(run_dir, "new_run_id", lambda: next(ids))
    first = RunDir.create(tmp_path, name="study", stage="measure")
    second = RunDir.create(tmp_path, name="study", stage="measure")
    assert (first.run_id, second.run_id) == ("same", "other")


def test_a_read_only_output_folder_is_explained(read_only_folder: Path) -> None:
    output_dir = read_only_folder / "outputs"
    with pytest.raises(OutputError) as caught:
        RunDir.create(output_dir, name="study", stage="measure")
    assert re.fullmatch(
        rf"output_dir={re.escape(str(output_dir))} cannot be written: (Read-only file system|Permission denied) "
        rf"\({re.escape(str(output_dir))}.*\); give another folder with output_dir=\.\.\.\s?",
        str(caught.value),
    )


@pytest.mark.parametrize(
    ("taken", "reason"),
    [("outputs", "Not a directory"), ("outputs/study", "Not a directory"), ("outputs/study/measure", "File exists")],
    ids=["output_dir", "name", "stage"],
)
def test_a_file_in_place_of_a_folder_is_explained(tmp_path: Path, taken: str, reason: str) -> None:
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).write_text("a file", encoding="utf-8")
    with pytest.raises(OutputError) as caught:
        RunDir.create(tmp_path / "outputs", name="study", stage="measure")
    assert str(caught.value).rstrip() == (
        f"output_dir={tmp_path}/outputs cannot be written: {reason} ({tmp_path}/outputs/study/measure); "
        "give another folder with output_dir=..."
    )
    assert (tmp_path / taken).read_text(encoding="utf-8") == "a file"


def test_a_disk_filled_by_the_run_still_takes_its_last_record(
    small_disk: Path, make_record: Callable[..., Record]
) -> None:
    run = RunDir.create(small_disk, name="study", stage="measure")
    run.write_record(make_record(status="running"))
    _fill(small_disk / "checkpoint.bin")
    with pytest.raises(OutputError) as caught:
        run.write_record(make_record(status="running", details={"much": "x" * 2 * RESERVE_BYTES}))
    assert str(caught.value) == f"{run.record} cannot be written: No space left on device"
    assert run.read_record().status == "running"
    run.write_record(make_record(status="failed"))
    assert run.read_record().status == "failed"


def test_a_full_disk_starts_no_run(small_disk: Path) -> None:
    _fill(small_disk / "other.bin")
    with pytest.raises(OutputError, match="cannot be written: No space left on device"):
        RunDir.create(small_disk, name="study", stage="measure")


def test_record_survives_a_moved_folder(tmp_path: Path, make_record: Callable[..., Record]) -> None:
    run = RunDir.create(tmp_path, name="study", stage="measure")
    run.write_record(make_record())
    moved = run.path.rename(tmp_path / "elsewhere")
    assert RunDir(moved).read_record() == make_record(folder=str(moved))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"cannot be read \(Expecting value.*\)"),
        (b'{"schema_version": 1, "run', r"cannot be read \(Unterminated string.*\)"),
        (b"\xff\xfe", r"cannot be read \('utf-8' codec can't decode.*\)"),
        (b"[1, 2]", r"not a record \(its content is a list\)"),
        (b"null", r"not a record \(its content is a NoneType\)"),
    ],
    ids=["empty", "cut short", "not text", "list", "null"],
)
def test_a_damaged_record_is_explained(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "record.json").write_bytes(content)
    with pytest.raises(RecordError) as caught:
        RunDir(tmp_path).read_record()
    assert re.fullmatch(f"{re.escape(str(tmp_path))}/record.json: {reason}", str(caught.value))


def test_a_missing_record_is_explained(tmp_path: Path) -> None:
    with pytest.raises(RecordError) as caught:
        RunDir(tmp_path).read_record()
    assert str(caught.value) == f"{tmp_path}: no record.json here"


def test_phase_reads_what_the_ranks_left(tmp_path: Path) -> None:
    phase = PhaseDir(tmp_path)
    assert phase.read_result() is None
    assert phase.errors() == []
    phase.result.write_text(json.dumps({"loss": 1.5}), encoding="utf-8")
    phase.error(1).write_text(json.dumps({"rank": 1}), encoding="utf-8")
    phase.error(0).write_text('{"rank": 0, "cut', encoding="utf-8")
    assert phase.read_result() == {"loss": 1.5}
    assert phase.errors() == [{"rank": 1}]


def test_an_attempt_that_did_not_get_through_is_set_aside(tmp_path: Path) -> None:
    phase = PhaseDir(tmp_path / "phase")
    phase.set_aside()
    assert phase.attempts() == []
    phase.path.mkdir()
    for number in (1, 2):
        for path in (phase.log, phase.progress, phase.result, phase.error(3), phase.stop):
            path.write_text(f"{number}", encoding="utf-8")
        phase.steps(7).touch()
        phase.set_aside()
        assert [path.name for path in phase.attempts()] == [f"attempt-{one}" for one in range(1, number + 1)]
        assert (phase.attempts()[-1] / "log.txt").read_text(encoding="utf-8") == f"{number}"
    left = sorted(path.name for path in phase.path.iterdir())
    assert left == ["attempt-1", "attempt-2", "steps-7.json"], "what goes with the checkpoint stays"


def _fill(path: Path) -> None:
    """Write until the disk takes no more byte."""
    with open(path, "wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"x" * 4096)
    assert shutil.disk_usage(path).free == 0
