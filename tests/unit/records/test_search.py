"""Records are found on the disk, oldest first; a damaged one is listed, never raised."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pilotkit.records.owner import Owner
from pilotkit.records.record import Record
from pilotkit.records.run_dir import RunDir
from pilotkit.records.search import find_records, newest_by_stage

MakeRecord = Callable[..., Record]


def _leave(output_dir: Path, record: Record, *, name: str = "study") -> Path:
    path = output_dir / name / record.stage / record.run_id
    path.mkdir(parents=True)
    RunDir(path).write_record(record)
    return path


def test_oldest_first_whatever_the_folder_order(odd_tmp_path: Path, make_record: MakeRecord) -> None:
    for run_id, started_at in (("c", "2026-01-01"), ("a", "2026-01-03"), ("b", "2026-01-02"), ("d", "2026-01-01")):
        _leave(odd_tmp_path, make_record(run_id=run_id, started_at=started_at))
    found = find_records(odd_tmp_path)
    assert [record.run_id for record in found.records] == ["c", "d", "b", "a"]
    assert found.records[0].folder == str(odd_tmp_path / "study" / "measure" / "c")
    assert found.unreadable == []


def test_nothing_there_is_nothing_found(tmp_path: Path) -> None:
    assert find_records(tmp_path / "outputs").records == []


@pytest.mark.parametrize("name", ["plain", "a*", "a[b]", "a?", "two words"])
def test_a_name_is_taken_literally(tmp_path: Path, make_record: MakeRecord, name: str) -> None:
    for study in ("plain", "a*", "a[b]", "a?", "two words", "ab", "abc"):
        _leave(tmp_path, make_record(run_id=f"in {study}"), name=study)
    assert [record.run_id for record in find_records(tmp_path, name=name).records] == [f"in {name}"]


def test_a_stage_selects(tmp_path: Path, make_record: MakeRecord) -> None:
    _leave(tmp_path, make_record(run_id="a", stage="lock"))
    _leave(tmp_path, make_record(run_id="b", stage="pilot"))
    assert [record.run_id for record in find_records(tmp_path, stage="pilot").records] == ["b"]


def test_damaged_records_are_listed_beside_the_good_ones(tmp_path: Path, make_record: MakeRecord) -> None:
    _leave(tmp_path, make_record(run_id="good"))
    cut = _leave(tmp_path, make_record(run_id="cut"))
    (cut / "record.json").write_text('{"schema_version": 1,', encoding="utf-8")
    newer = _leave(tmp_path, make_record(run_id="newer"))
    plain = json.loads((newer / "record.json").read_text(encoding="utf-8"))
    (newer / "record.json").write_text(json.dumps({**plain, "schema_version": 99}), encoding="utf-8")
    undated = _leave(tmp_path, make_record(run_id="undated"))
    (undated / "record.json").write_text(json.dumps({**plain, "started_at": None}), encoding="utf-8")
    (tmp_path / "study" / "measure" / "no record yet").mkdir()

    found = find_records(tmp_path)
    assert [record.run_id for record in found.records] == ["good"]
    assert len(found.unreadable) == 3
    for path, reason in ((cut, "cannot be read"), (newer, "schema version 99"), (undated, "not a record")):
        assert any(str(path) in line and reason in line for line in found.unreadable)


def test_newest_of_each_stage_for_one_configuration(make_record: MakeRecord) -> None:
    records = [
        make_record(run_id="1", stage="lock", config_digest="x"),
        make_record(run_id="2", stage="measure", config_digest="x"),
        make_record(run_id="3", stage="measure", config_digest="x", status="failed"),
        make_record(run_id="4", stage="measure", config_digest="x", status="running"),
        make_record(run_id="5", stage="measure", config_digest="y"),
    ]
    newest = newest_by_stage(records, config_digest="x")
    assert {stage: record.run_id for stage, record in newest.items()} == {"lock": "1", "measure": "3"}


def test_a_run_whose_driver_is_gone_reads_vanished(tmp_path: Path, make_record: MakeRecord) -> None:
    child = subprocess.Popen(["sleep", "600"])
    here = Owner.of_this_process()
    gone = dataclasses.replace(here, pid=child.pid, started=psutil.Process(child.pid).create_time())
    child.kill()
    child.wait()
    drivers = {
        "gone": gone,
        "going on": here,
        "its id came again": dataclasses.replace(here, started=here.started - 1000),
        "another machine": dataclasses.replace(gone, host="elsewhere"),
        "another container": dataclasses.replace(gone, pid_namespace="pid:[1]"),
    }
    for number, (run_id, driver) in enumerate(drivers.items()):
        provenance = {"driver": dataclasses.asdict(driver)}
        started_at = f"2026-01-0{number + 1}"
        _leave(tmp_path, make_record(run_id=run_id, status="running", started_at=started_at, provenance=provenance))
    records = {record.run_id: record for record in find_records(tmp_path).records}
    assert [run_id for run_id, record in records.items() if record.status == "vanished"] == [
        "gone",
        "its id came again",
    ]
    assert records["gone"].problem is not None
    assert records["gone"].problem.summary.startswith(f"its driver (process {child.pid} on {here.host}) ended without")
    assert {record.status for record in records.values()} == {"vanished", "running"}


@pytest.mark.parametrize("plain", [None, 7, {}, {"host": "a", "pid": "x", "started": 1.0}, {"pid": 1}])
def test_an_owner_that_cannot_be_read_is_none(plain: object) -> None:
    assert Owner.from_plain(plain) is None
